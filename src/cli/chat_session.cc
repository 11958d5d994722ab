#include "cli/chat_session.h"

#include <unistd.h>
#include <cstdio>

#include <random>

#include "text/output_pipeline.h"
#include "text/prompt_encoder.h"
#include "text/renderer.h"

namespace deepinfer {

namespace {

// Writes reasoning dimmed on a terminal and the answer plainly, as they arrive.
class Printer {
 public:
  Printer(bool show_reasoning, bool colour) : show_reasoning_(show_reasoning), colour_(colour) {}

  void Print(const std::vector<OutputEvent>& events) {
    for (const OutputEvent& e : events) {
      switch (e.kind) {
        case OutputEventKind::kReasoning:
          reasoning += e.text;
          if (show_reasoning_) Write(e.text, true);
          break;
        case OutputEventKind::kContent:
          if (dimmed_ && content.empty()) Write("\n", false);
          content += e.text;
          Write(e.text, false);
          break;
        case OutputEventKind::kCallStart:
          Write("\n[tool call] " + e.text + " ", false);
          break;
        case OutputEventKind::kArguments:
          Write(e.text, false);
          break;
        case OutputEventKind::kCallEnd:
        case OutputEventKind::kStopMatched:
          break;
      }
    }
    std::fflush(stdout);
  }

  void End() {
    if (dimmed_now_) Write("", false);
    std::fputs("\n", stdout);
    std::fflush(stdout);
  }

  std::string reasoning;
  std::string content;

 private:
  void Write(const std::string& text, bool dim) {
    if (colour_ && dim != dimmed_now_) std::fputs(dim ? "\033[2m" : "\033[0m", stdout);
    dimmed_now_ = dim;
    dimmed_ = dimmed_ || dim;
    std::fwrite(text.data(), 1, text.size(), stdout);
  }

  bool show_reasoning_;
  bool colour_;
  bool dimmed_ = false;      // reasoning was shown in this answer
  bool dimmed_now_ = false;  // the terminal is in dim mode
};

}  // namespace

Result<std::unique_ptr<ChatSession>> ChatSession::Open(const std::filesystem::path& dir,
                                                       const BundleOptions& bundle,
                                                       const EngineOptions& engine) {
  std::unique_ptr<ChatSession> session(new ChatSession);
  DI_ASSIGN_OR_RETURN(session->local_, LocalEngine::Open(dir, bundle, engine));
  DI_ASSIGN_OR_RETURN(session->special_, SpecialTokens::Resolve(session->local_->tokenizer()));
  return session;
}

void ChatSession::SetSystem(std::string text) {
  system_ = std::move(text);
  Reset();
}

void ChatSession::Reset() { turns_.clear(); }

Result<std::vector<int32_t>> ChatSession::RenderPrompt(const ChatSettings& settings) const {
  Conversation conversation;
  conversation.thinking = settings.thinking;
  conversation.effort = settings.effort;
  if (!system_.empty()) conversation.turns.push_back(SystemTurn{{ContentPart::Text(system_)}});
  conversation.turns.insert(conversation.turns.end(), turns_.begin(), turns_.end());
  NormalizeTurns(&conversation);
  return EncodeSegments(local_->tokenizer(), Render(conversation));
}

Result<ChatTurnStats> ChatSession::Ask(const std::string& message, const ChatSettings& settings,
                                       const std::atomic<bool>* interrupted) {
  turns_.push_back(UserTurn{{ContentPart::Text(message)}});
  EngineRequest request;
  Result<std::vector<int32_t>> prompt = RenderPrompt(settings);
  if (!prompt.ok()) {
    turns_.pop_back();
    return prompt.status();
  }
  request.request_id = "chat-" + std::to_string(num_requests_++);
  request.prompt_ids = std::move(*prompt);
  request.sampling.temperature = settings.temperature;
  request.sampling.top_p = settings.top_p;
  request.sampling.max_tokens = settings.max_tokens;
  request.sampling.has_seed = settings.has_seed;
  std::random_device entropy;
  request.sampling.seed =
      settings.has_seed ? settings.seed : (uint64_t{entropy()} << 32 | entropy());

  ParserSettings parser;
  parser.start = settings.thinking ? ParserStart::kReasoningStart : ParserStart::kContentStart;
  parser.parse_tool_calls = true;
  parser.think_end_id = special_.think_end;
  parser.dsml_id = special_.dsml;
  OutputPipeline pipeline(local_->tokenizer(), parser);
  Printer printer(settings.show_reasoning, isatty(STDOUT_FILENO) == 1);
  const auto on_event = [&](const TokenEvent& event) {
    std::vector<OutputEvent> events;
    for (int32_t id : event.ids) {
      if (id != special_.eos) pipeline.Push({&id, 1}, &events);
    }
    if (event.finish != FinishReason::kNone) pipeline.Finish(&events);
    printer.Print(events);
  };
  const Result<TokenEvent> last = local_->Run(std::move(request), on_event, interrupted);
  if (!last.ok() || last->finish == FinishReason::kError) {
    turns_.pop_back();
    return last.ok() ? last->status : last.status();
  }
  printer.End();
  turns_.push_back(AssistantTurn{printer.reasoning, printer.content, {}});
  ChatTurnStats stats;
  stats.prompt_tokens = last->counters.prompt_tokens;
  stats.generated_tokens = last->counters.generated_tokens;
  stats.prefill_s = static_cast<double>(last->counters.prefill_us) * 1e-6;
  stats.decode_s = static_cast<double>(last->counters.decode_us) * 1e-6;
  stats.interrupted = last->finish == FinishReason::kCancelled;
  stats.hit_limit = last->finish == FinishReason::kLength;
  return stats;
}

}  // namespace deepinfer
