// deepinfer parse: recorded model output, one line on stdin, to events and the final body.

#include <CLI/CLI.hpp>
#include <iostream>

#include "cli/commands.h"
#include "cli/io.h"
#include "server/parse_tool.h"
#include "text/tokenizer.h"

namespace deepinfer {
namespace {

class ParseCommand final : public Command {
 public:
  CLI::App* Register(CLI::App* app) override {
    CLI::App* sub = app->add_subcommand("parse", "Recorded model output to events and message");
    sub->add_option("DIR", dir_, "Folder with tokenizer.json, or a model folder")->required();
    sub->add_option("--dialect", dialect_, "Response dialect")
        ->required()
        ->check(CLI::IsMember({"chat", "messages", "responses"}));
    sub->footer(
        "Each line on stdin is {\"request\",\"options\",\"chunks\",\"finish\"}; each gives one "
        "line "
        "{\"events\",\"final\"}.\n"
        "Example:\n  deepinfer parse DIR --dialect chat < recording.jsonl");
    return sub;
  }

  int Run(const FlagOrigins&) override {
    const Status status = Parse();
    return status.ok() ? kExitOk : ReportFailure(status);
  }

 private:
  Status Parse() {
    DI_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(dir_));
    int64_t number = 0;
    for (std::string line; std::getline(std::cin, line);) {
      ++number;
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      const Result<std::string> parsed = RunParse(*tokenizer, dialect_, line);
      if (!parsed.ok()) return parsed.status().Annotate("line " + std::to_string(number));
      DI_RETURN_IF_ERROR(PrintLine(*parsed));
    }
    return OkStatus();
  }

  std::string dir_;
  std::string dialect_;
};

}  // namespace

std::unique_ptr<Command> MakeParseCommand() { return std::make_unique<ParseCommand>(); }

}  // namespace deepinfer
