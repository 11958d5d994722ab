// deepinfer chat: a conversation in the terminal.

#include <fmt/core.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <iterator>

#include "cli/chat_session.h"
#include "cli/commands.h"
#include "cli/io.h"
#include "cli/model_flags.h"
#include "cli/value_checks.h"

namespace deepinfer {
namespace {

constexpr std::string_view kHelp =
    "/help               this list\n"
    "/think on|off       reasoning before the answer\n"
    "/temperature T      0 = always the most likely token\n"
    "/system TEXT        set the system text and start over\n"
    "/reset              start over\n"
    "/quit               leave (also Ctrl-D)\n"
    "Ctrl-C stops an answer.\n";

// A signal handler can reach nothing else. The flag is for a running answer, the event for a wait:
// a signal between two looks at the flag would otherwise be lost until the next key.
std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);
int interrupt_event = -1;  // eventfd

void OnInterrupt(int) {
  interrupted.store(true);
  const uint64_t one = 1;
  // Fails only when the counter is full, that is, readable anyway.
  static_cast<void>(!write(interrupt_event, &one, sizeof one));
}

// True if there was an interrupt since the last call.
bool TakeInterrupt() {
  uint64_t count = 0;
  static_cast<void>(!read(interrupt_event, &count, sizeof count));
  return interrupted.exchange(false);
}

enum class LineResult { kLine, kInterrupted, kEnd };

// Reads one line; Ctrl-C at the prompt interrupts it, unlike with buffered streams.
class LineReader {
 public:
  LineResult Read(std::string* line) {
    line->clear();
    while (true) {
      const size_t newline = buffer_.find('\n');
      if (newline != std::string::npos) {
        *line = buffer_.substr(0, newline);
        buffer_.erase(0, newline + 1);
        return LineResult::kLine;
      }
      pollfd waits[] = {{STDIN_FILENO, POLLIN, 0}, {interrupt_event, POLLIN, 0}};
      static_cast<void>(poll(waits, std::size(waits), -1));
      if (TakeInterrupt()) return LineResult::kInterrupted;
      if (waits[0].revents == 0) continue;
      char chunk[4096];
      const ssize_t n = read(STDIN_FILENO, chunk, sizeof chunk);
      if (n > 0) {
        buffer_.append(chunk, static_cast<size_t>(n));
      } else if (n < 0 && errno == EINTR) {
        continue;
      } else if (!buffer_.empty()) {
        line->swap(buffer_);
        return LineResult::kLine;
      } else {
        return LineResult::kEnd;
      }
    }
  }

 private:
  std::string buffer_;
};

class ChatCommand final : public Command {
 public:
  CLI::App* Register(CLI::App* app) override {
    CLI::App* sub = app->add_subcommand("chat", "Chat in the terminal");
    flags_.Register(sub, false, kServingNumerics);
    sub->add_option("--system", system_, "System text");
    sub->add_flag("--think", settings_.thinking, "Thinking mode");
    sub->add_option("--temperature", settings_.temperature, "0 = greedy")->capture_default_str();
    sub->add_option("--max-tokens", settings_.max_tokens, "Tokens of an answer at most")
        ->check(Positive())
        ->capture_default_str();
    sub->add_option("--max-model-len,-c", engine_.max_model_len, "Context, tokens")
        ->check(CLI::Range(2, 1 << 24))
        ->capture_default_str();
    sub->footer(
        "In the chat, /help lists the commands; Ctrl-C stops an answer.\nExample:\n"
        "  deepinfer chat --think");
    return sub;
  }

  int Run(const FlagOrigins&) override {
    const Status status = Chat();
    return status.ok() ? kExitOk : ReportFailure(status);
  }

 private:
  Status Chat() {
    DI_ASSIGN_OR_RETURN(const std::filesystem::path dir, flags_.ModelDir());
    DI_ASSIGN_OR_RETURN(BundleOptions bundle, flags_.Bundle());
    bundle.model.max_positions = engine_.max_model_len;
    DI_ASSIGN_OR_RETURN(session_, ChatSession::Open(dir, bundle, engine_));
    session_->SetSystem(system_);
    DI_RETURN_IF_ERROR(InstallInterruptHandler());
    const bool terminal = isatty(STDIN_FILENO) == 1;
    if (terminal) {
      fmt::print("{} on {} tokens of context. /help lists commands, Ctrl-D leaves.\n",
                 FolderName(dir), session_->max_model_len());
    }
    LineReader reader;
    std::string line;
    while (true) {
      if (terminal) fmt::print("> ");
      std::fflush(stdout);
      const LineResult result = reader.Read(&line);
      if (result == LineResult::kEnd) break;
      if (result == LineResult::kInterrupted) {
        fmt::print("\n(Ctrl-D or /quit leaves)\n");
        continue;
      }
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      if (line.front() != '/') {
        Ask(line);
      } else if (!RunCommandLine(line)) {
        break;
      }
    }
    if (terminal) fmt::print("\n");
    return OkStatus();
  }

  static Status InstallInterruptHandler() {
    interrupt_event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (interrupt_event < 0) return Unavailable("no file descriptor for the interrupt key");
    struct sigaction action = {};
    action.sa_handler = OnInterrupt;
    sigaction(SIGINT, &action, nullptr);
    return OkStatus();
  }

  void Ask(const std::string& message) {
    TakeInterrupt();
    const Result<ChatTurnStats> stats = session_->Ask(message, settings_, &interrupted);
    if (!stats.ok()) {
      Tell("{}\n", stats.status().message());
      return;
    }
    if (stats->interrupted) fmt::print("(stopped)\n");
    if (stats->hit_limit) fmt::print("(cut at the token limit)\n");
    TakeInterrupt();
  }

  // False to leave.
  bool RunCommandLine(const std::string& line) {
    const size_t space = line.find(' ');
    const std::string word = line.substr(0, space);
    const std::string rest = space == std::string::npos ? "" : line.substr(space + 1);
    if (word == "/quit" || word == "/exit") return false;
    if (word == "/help") {
      fmt::print("{}", kHelp);
    } else if (word == "/reset") {
      session_->Reset();
      fmt::print("(new conversation)\n");
    } else if (word == "/system") {
      session_->SetSystem(rest);
      fmt::print("(new conversation)\n");
    } else if (word == "/think" && (rest == "on" || rest == "off")) {
      settings_.thinking = rest == "on";
      fmt::print("(thinking {})\n", rest);
    } else if (word == "/temperature" && SetTemperature(rest)) {
      fmt::print("(temperature {})\n", settings_.temperature);
    } else {
      fmt::print("Unknown command or value.\n{}", kHelp);
    }
    return true;
  }

  bool SetTemperature(const std::string& text) {
    float value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || !(value >= 0 && value <= 2)) {
      return false;
    }
    settings_.temperature = value;
    return true;
  }

  ModelFlags flags_;
  EngineOptions engine_;
  ChatSettings settings_;
  std::string system_;
  std::unique_ptr<ChatSession> session_;
};

}  // namespace

std::unique_ptr<Command> MakeChatCommand() { return std::make_unique<ChatCommand>(); }

}  // namespace deepinfer
