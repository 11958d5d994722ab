// deepinfer ledger: look at, add up and check the account of requests.
#include "cli/ledger.h"

#include <CLI/CLI.hpp>

#include "base/log.h"
#include "cli/ledger_tools.h"

namespace deepinfer {
namespace {

class LedgerCommand final : public Command {
 public:
  CLI::App* Register(CLI::App* app) override {
    app_ = app->add_subcommand("ledger", "Look at, add up and check the account of requests");
    app_->require_subcommand(1);
    tail_ = AddTool("tail", "Newest lines, one row each");
    tail_->add_option("-n,--lines", tail_options_.num_lines, "Rows")->capture_default_str();
    tail_->add_flag("--follow,-f", tail_options_.follow, "Go on with lines that are appended");
    tail_->add_flag("--json", tail_options_.json, "The lines as they are");
    sum_ = AddTool("sum", "Exact totals of tokens and money");
    sum_->add_option("--by", sum_flags_.by, "Group by these fields, as key_name,route")
        ->delimiter(',');
    sum_->add_option("--since", sum_flags_.since, "Received at or after this UTC time");
    sum_->add_option("--until", sum_flags_.until, "Received before this UTC time");
    sum_->add_option("--price-book", sum_flags_.price_book,
                     "Price every line again with this book, an id or a file");
    sum_->add_option("--cost-book", sum_flags_.cost_book,
                     "Cost every line again with this book, a file");
    sum_->add_option("--cost-device", sum_flags_.cost_device,
                     "Device of the cost book, where it has several");
    sum_->add_flag("--json", sum_flags_.json, "One JSON line per group");
    check_ = AddTool("check", "Check every invariant; exit status 1 at the first broken one");
    grade_ = AddTool("grade", "Append what a checker found about answers");
    grade_->add_option("--checker", checker_, "Its name")->required();
    grade_->add_option("--input", grades_, "JSON lines with attempt_id and quality (pass, fail)")
        ->required();
    app_->footer(
        "Examples:\n"
        "  deepinfer serve --ledger /var/log/deepinfer\n"
        "  deepinfer ledger tail /var/log/deepinfer --follow\n"
        "  deepinfer ledger sum /var/log/deepinfer --by key_name,price_window");
    return app_;
  }

  int Run(const FlagOrigins&) override {
    // Standard output is for results.
    InitLogging(LogLevel::kWarning, LogFormat::kText);
    bool clean = true;
    const Status status = Dispatch(&clean);
    if (!status.ok()) return ReportFailure(status);
    return clean ? kExitOk : kExitFailure;
  }

 private:
  CLI::App* AddTool(const char* name, const char* description) {
    CLI::App* tool = app_->add_subcommand(name, description);
    tool->add_option("LEDGER", path_, "Folder of a ledger, or one of its files")->required();
    return tool;
  }

  Status Dispatch(bool* clean) {
    if (tail_->parsed()) return PrintLedgerTail(path_, tail_options_);
    if (sum_->parsed()) return PrintLedgerSum(path_, sum_flags_);
    if (check_->parsed()) return CheckLedger(path_, clean);
    return GradeLedger(path_, checker_, grades_);
  }

  CLI::App* app_ = nullptr;
  CLI::App* tail_ = nullptr;
  CLI::App* sum_ = nullptr;
  CLI::App* check_ = nullptr;
  CLI::App* grade_ = nullptr;
  std::string path_;
  LedgerTailOptions tail_options_;
  LedgerSumFlags sum_flags_;
  std::string checker_, grades_;
};

}  // namespace

std::unique_ptr<Command> MakeLedgerCommand() { return std::make_unique<LedgerCommand>(); }

}  // namespace deepinfer
