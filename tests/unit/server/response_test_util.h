// Plays committed tokens through an answer the way a generation does.
// Thread rule: tests run on one thread.
#pragma once

#include <algorithm>
#include <boost/json.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/request.h"
#include "server/response_common.h"
#include "unit/text/parser_test_util.h"

namespace deepinfer::testing {

inline constexpr int32_t kEosId = 1;

struct Script {
  std::vector<int32_t> ids;  // the end token not included
  FinishReason finish = FinishReason::kStop;
  bool logprobs = false;
  int32_t num_top_logprobs = 2;
};

inline Script ScriptOf(std::string_view text, FinishReason finish = FinishReason::kStop) {
  return {EncodeWithSpecials(ReleasedTokenizer(), text), finish};
}

// A number that tells token and rank apart.
inline float FakeLogprob(int32_t id, int32_t rank) {
  return -static_cast<float>(id % 1024) / 64.0f - static_cast<float>(rank);
}

inline TokenLogprobs FakeLogprobs(int32_t id, int32_t num_top) {
  TokenLogprobs logprobs;
  logprobs.logprob = FakeLogprob(id, 0);
  for (int32_t rank = 0; rank < num_top; ++rank) {
    logprobs.top.emplace_back(id + rank, FakeLogprob(id, rank));
  }
  return logprobs;
}

// The events of one request that commits `group` tokens a step.
inline std::vector<TokenEvent> EventsOf(const Script& script, size_t group) {
  std::vector<int32_t> ids = script.ids;
  const bool has_end = script.finish == FinishReason::kStop;
  if (has_end) ids.push_back(kEosId);
  std::vector<TokenEvent> events;
  for (size_t i = 0; i < ids.size() || events.empty(); i += group) {
    TokenEvent event;
    event.start_index = static_cast<int32_t>(i);
    for (size_t j = i; j < std::min(i + group, ids.size()); ++j) {
      event.ids.push_back(ids[j]);
      if (script.logprobs) event.logprobs.push_back(FakeLogprobs(ids[j], script.num_top_logprobs));
    }
    event.counters.prompt_tokens = 11;
    event.counters.cached_tokens = 8;
    event.counters.computed_tokens = 5;
    event.counters.replayed_tokens = 2;
    event.counters.generated_tokens = static_cast<int64_t>(std::min(i + group, ids.size()));
    events.push_back(std::move(event));
  }
  events.back().finish = script.finish;
  if (has_end) events.back().stop_token_id = kEosId;
  return events;
}

// What a client of a finished answer saw.
struct Answer {
  std::vector<boost::json::value> chunks;  // the usage chunk included
  boost::json::value body;
  std::vector<ChoiceProgress> progress;  // last one of each choice
};

// Events of the choices interleaved step by step, the highest choice first in each round.
template <typename Response>
Answer Play(Response* response, const std::vector<std::vector<TokenEvent>>& choices, bool stream) {
  Answer answer;
  answer.progress.resize(choices.size(), ChoiceProgress::kRunning);
  std::vector<std::string> chunks;
  size_t longest = 0;
  for (const auto& events : choices) longest = std::max(longest, events.size());
  for (size_t step = 0; step < longest; ++step) {
    for (size_t i = choices.size(); i-- > 0;) {
      if (step >= choices[i].size()) continue;
      answer.progress[i] = response->OnEvent(static_cast<int32_t>(i), choices[i][step], &chunks);
    }
  }
  if (response->done()) {
    if (stream && !response->UsageChunk().empty()) chunks.push_back(response->UsageChunk());
    answer.body = boost::json::parse(response->Body(nullptr));
  }
  for (const std::string& chunk : chunks) answer.chunks.push_back(boost::json::parse(chunk));
  return answer;
}

inline std::vector<std::string> Keys(const boost::json::value& object) {
  std::vector<std::string> keys;
  for (const auto& entry : object.as_object()) keys.emplace_back(entry.key());
  std::sort(keys.begin(), keys.end());
  return keys;
}

}  // namespace deepinfer::testing
