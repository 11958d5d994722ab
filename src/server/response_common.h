// What the answers of all generating routes share.
// Thread rule: values.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer {

enum class ChoiceProgress : unsigned char {
  kRunning,
  kStopped,   // a stop string matched: the choice is complete, the engine must be told to cancel
  kFinished,  // the engine ended the choice
  kFailed,    // no finish reason fits: the caller answers with the event's status
};

enum class StreamUsageStyle : unsigned char {
  kOpenAi,    // one extra last chunk when include_usage is set
  kDeepSeek,  // on the finish chunk, always
};

// Times of one request for the `metrics` object.
struct ResponseMetrics {
  double queue_ms = 0;
  double ttft_ms = 0;
  double e2e_ms = 0;
};

// finish_reason "" while running; stop_reason is a JSON text, "null" if nothing matched.
struct ChoiceFinish {
  std::string reason;
  std::string stop_reason_json = "null";
};

// Told once about an answer that ended with tool calls: its tokens, the end token included, and the
// ids of its calls in their order.
using ToolTurnSink =
    std::function<void(std::span<const int32_t> ids, const std::vector<std::string>& call_ids)>;

// JSON of the `usage` field of chunks; "" leaves the field out.
struct ChunkUsage {
  std::string on_chunk;
  std::string on_finish;
};

// {"queue_ms","ttft_ms","e2e_ms"}
std::string MetricsJson(const ResponseMetrics& metrics);

// "[1,2,3]"; `ids` is any range of integers.
template <typename Ids>
std::string IdsJson(const Ids& ids) {
  std::string out = "[";
  for (const auto id : ids) {
    if (out.size() > 1) out += ',';
    out += std::to_string(id);
  }
  return out += ']';
}

}  // namespace deepinfer
