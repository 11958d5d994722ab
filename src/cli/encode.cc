// deepinfer encode: a request body on stdin to its prompt and settings.

#include "server/encode_tool.h"

#include <CLI/CLI.hpp>
#include <iostream>

#include "cli/commands.h"
#include "cli/io.h"
#include "text/tokenizer.h"

namespace deepinfer {
namespace {

class EncodeCommand final : public Command {
 public:
  CLI::App* Register(CLI::App* app) override {
    CLI::App* sub = app->add_subcommand("encode", "Request body on stdin to prompt and token ids");
    sub->add_option("DIR", dir_, "Folder with tokenizer.json, or a model folder")->required();
    sub->add_option("--dialect", dialect_, "Request dialect")
        ->required()
        ->check(CLI::IsMember({"chat", "messages", "responses"}));
    sub->add_option("--option", options_, "Conversion option as name=json; may repeat");
    sub->add_flag("--lines", lines_,
                  "Many requests: each line on stdin is {\"request\" or \"raw\", \"options\"}");
    sub->footer(
        "Prints one JSON line: prompt, ids, special_ranges, ... or an error object with exit\n"
        "code 2. With --lines one line for each, and errors leave the exit code 0.\n"
        "Example:\n"
        "  deepinfer encode DIR --dialect chat --option default_thinking_mode=false < body.json");
    return sub;
  }

  int Run(const FlagOrigins&) override {
    int exit_code = kExitOk;
    const Status status = Encode(&exit_code);
    return status.ok() ? exit_code : ReportFailure(status);
  }

 private:
  Status Encode(int* exit_code) {
    DI_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(dir_));
    ConversionOptionList options;
    for (const std::string& option : options_) {
      const size_t split = option.find('=');
      if (split == std::string::npos) {
        return InvalidRequest("--option " + option + " must have the form name=json");
      }
      options.emplace_back(option.substr(0, split), option.substr(split + 1));
    }
    if (lines_) return EncodeLines(*tokenizer, options);
    DI_ASSIGN_OR_RETURN(const std::string body, ReadStdin());
    DI_ASSIGN_OR_RETURN(const EncodeOutcome outcome,
                        RunEncode(*tokenizer, dialect_, options, body));
    *exit_code = outcome.exit_code;
    return PrintLine(outcome.json_line);
  }

  Status EncodeLines(const Tokenizer& tokenizer, const ConversionOptionList& options) {
    int64_t number = 0;
    for (std::string line; std::getline(std::cin, line);) {
      ++number;
      const Result<EncodeOutcome> outcome = RunEncodeLine(tokenizer, dialect_, options, line);
      if (!outcome.ok()) return outcome.status().Annotate("line " + std::to_string(number));
      DI_RETURN_IF_ERROR(PrintLine(outcome->json_line));
    }
    return OkStatus();
  }

  std::string dir_;
  std::string dialect_;
  std::vector<std::string> options_;
  bool lines_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeEncodeCommand() { return std::make_unique<EncodeCommand>(); }

}  // namespace deepinfer
