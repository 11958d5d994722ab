// deepinfer tokenize, deepinfer detokenize.

#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "cli/io.h"
#include "text/tokenizer.h"

namespace deepinfer {
namespace {

Status Tokenize(const std::string& dir, bool plain) {
  DI_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(dir));
  DI_ASSIGN_OR_RETURN(const std::string text, ReadStdin());
  std::vector<int32_t> ids;
  if (plain) {
    tokenizer->EncodeText(text, &ids);
  } else {
    tokenizer->EncodeWithSpecials(text, &ids);
  }
  return PrintLine("{\"ids\":" + IdArrayJson(ids) + "}");
}

Status Detokenize(const std::string& dir) {
  DI_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(dir));
  DI_ASSIGN_OR_RETURN(const std::string input, ReadStdin());
  DI_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, ParseIdObject(input));
  for (int32_t id : ids) {
    if (!tokenizer->IsValidId(id)) {
      return InvalidRequest("id " + std::to_string(id) + " does not exist in this tokenizer");
    }
  }
  return PrintLine("{\"text\":" + JsonString(tokenizer->Decode(ids)) + "}");
}

class TokenizeCommand final : public Command {
 public:
  explicit TokenizeCommand(bool inverse) : inverse_(inverse) {}

  CLI::App* Register(CLI::App* app) override {
    CLI::App* sub = inverse_ ? app->add_subcommand("detokenize", "Token ids on stdin to text")
                             : app->add_subcommand("tokenize", "Text on stdin to token ids");
    sub->add_option("DIR", dir_, "Folder with tokenizer.json, or a model folder")->required();
    if (inverse_) {
      sub->footer("Example:\n  echo '{\"ids\":[3085,344]}' | deepinfer detokenize DIR");
    } else {
      sub->add_flag("--plain", plain_,
                    "Treat the text as a user's: strings that look like special tokens stay text");
      sub->footer("Example:\n  printf 'What is 2+2?' | deepinfer tokenize DIR --plain");
    }
    return sub;
  }

  int Run(const FlagOrigins&) override {
    const Status status = inverse_ ? Detokenize(dir_) : Tokenize(dir_, plain_);
    return status.ok() ? kExitOk : ReportFailure(status);
  }

 private:
  bool inverse_;
  bool plain_ = false;
  std::string dir_;
};

}  // namespace

std::unique_ptr<Command> MakeTokenizeCommand() { return std::make_unique<TokenizeCommand>(false); }
std::unique_ptr<Command> MakeDetokenizeCommand() { return std::make_unique<TokenizeCommand>(true); }

}  // namespace deepinfer
