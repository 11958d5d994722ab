// A conversation with a model of this process: renders the turns, generates, parses and prints the
// answer as it comes. Used by `run` and `chat`.
// Thread rule: main thread.
#pragma once

#include <atomic>
#include <string>

#include "base/result.h"
#include "cli/generation.h"
#include "text/conversation.h"
#include "text/special_tokens.h"

namespace deepinfer {

struct ChatSettings {
  bool thinking = false;
  int32_t effort = kEffortHigh;
  float temperature = 0.0f;
  float top_p = 1.0f;
  int32_t max_tokens = 1024;
  bool has_seed = false;
  uint64_t seed = 0;
  bool show_reasoning = true;
};

struct ChatTurnStats {
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0;
  double prefill_s = 0;
  double decode_s = 0;
  bool interrupted = false;
  bool hit_limit = false;
};

class ChatSession {
 public:
  static Result<std::unique_ptr<ChatSession>> Open(const std::filesystem::path& dir,
                                                   const BundleOptions& bundle,
                                                   const EngineOptions& engine);

  void SetSystem(std::string text);
  void Reset();  // forgets the turns, keeps the system text

  // Adds the user's message, prints the answer to stdout and keeps it as the next turn. An
  // interrupted answer is kept as far as it came.
  Result<ChatTurnStats> Ask(const std::string& message, const ChatSettings& settings,
                            const std::atomic<bool>* interrupted);

  int32_t max_model_len() { return local_->engine().max_model_len(); }

 private:
  ChatSession() = default;
  Result<std::vector<int32_t>> RenderPrompt(const ChatSettings& settings) const;

  std::unique_ptr<LocalEngine> local_;
  SpecialTokens special_;
  std::string system_;
  std::vector<Turn> turns_;
  uint64_t num_requests_ = 0;
};

}  // namespace deepinfer
