// deepinfer run: one prompt, one answer.

#include <fmt/core.h>

#include <CLI/CLI.hpp>

#include "cli/chat_session.h"
#include "cli/commands.h"
#include "cli/io.h"
#include "cli/model_flags.h"
#include "cli/value_checks.h"

namespace deepinfer {
namespace {

class RunCommand final : public Command {
 public:
  CLI::App* Register(CLI::App* app) override {
    CLI::App* sub = app->add_subcommand("run", "Answer one prompt");
    flags_.Register(sub, true, kServingNumerics);
    sub->add_option("PROMPT", prompt_, "The user's message; '-' reads standard input")->required();
    sub->add_option("--system", system_, "System text");
    sub->add_flag("--think", settings_.thinking, "Thinking mode");
    sub->add_option("--temperature", settings_.temperature, "0 = greedy")->capture_default_str();
    sub->add_option("--top-p", settings_.top_p, "Nucleus mass")->capture_default_str();
    seed_ = sub->add_option("--seed", settings_.seed, "Seed of the random draws");
    sub->add_option("--max-tokens", settings_.max_tokens, "Tokens to generate at most")
        ->check(Positive())
        ->capture_default_str();
    sub->add_flag("--stats", stats_, "Print token counts and speed to stderr");
    sub->footer("Example:\n  deepinfer run models/deepinfer-tiny 'What is a KV cache?'");
    return sub;
  }

  int Run(const FlagOrigins&) override {
    const Status status = Answer();
    return status.ok() ? kExitOk : ReportFailure(status);
  }

 private:
  Status Answer() {
    DI_ASSIGN_OR_RETURN(const std::filesystem::path dir, flags_.ModelDir());
    DI_ASSIGN_OR_RETURN(const BundleOptions bundle, flags_.Bundle());
    if (prompt_ == "-") {
      DI_ASSIGN_OR_RETURN(prompt_, ReadStdin());
    }
    settings_.has_seed = seed_->count() > 0;
    DI_ASSIGN_OR_RETURN(const auto session, ChatSession::Open(dir, bundle, {}));
    session->SetSystem(system_);
    DI_ASSIGN_OR_RETURN(const ChatTurnStats stats, session->Ask(prompt_, settings_, nullptr));
    if (stats_) {
      Tell("prompt {} tokens in {:.3f} s, answer {} tokens in {:.3f} s\n", stats.prompt_tokens,
           stats.prefill_s, stats.generated_tokens, stats.decode_s);
    }
    return OkStatus();
  }

  ModelFlags flags_;
  ChatSettings settings_;
  std::string prompt_;
  std::string system_;
  bool stats_ = false;
  CLI::Option* seed_ = nullptr;
};

}  // namespace

std::unique_ptr<Command> MakeRunCommand() { return std::make_unique<RunCommand>(); }

}  // namespace deepinfer
