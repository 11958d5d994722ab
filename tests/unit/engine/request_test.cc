// Every field of a request outside its range is refused by name.

#include "engine/request.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

namespace deepinfer {
namespace {

constexpr int32_t kVocab = 100;
constexpr int32_t kMaxLen = 32;

EngineRequest Valid() {
  EngineRequest r;
  r.request_id = std::string("r");
  r.prompt_ids = {0, 5, 99};
  return r;
}

struct Case {
  const char* field;  // expected in the message
  std::function<void(EngineRequest*)> spoil;
};

TEST(ValidateRequest, AcceptsTheEdgesOfEveryRange) {
  EngineRequest r = Valid();
  EXPECT_TRUE(ValidateRequest(r, kVocab, kMaxLen).ok());
  r.prompt_ids.assign(kMaxLen - 1, 1);
  SamplingParams& s = r.sampling;
  s.temperature = 2.0f;
  s.top_p = std::numeric_limits<float>::denorm_min();
  s.min_p = 1.0f;
  s.top_k = std::numeric_limits<int32_t>::max();
  s.repetition_penalty = 2.0f;
  s.frequency_penalty = -2.0f;
  s.presence_penalty = 2.0f;
  s.max_tokens = 1;
  s.num_top_logprobs = kMaxTopLogprobs;
  s.logit_bias = {{0, -100.0f}, {99, 100.0f}};
  s.stop_token_ids = {0, 99};
  s.banned_ids = {0, 99};
  r.forced_ids = {0, 99};
  EXPECT_TRUE(ValidateRequest(r, kVocab, kMaxLen).ok())
      << ValidateRequest(r, kVocab, kMaxLen).ToString();
}

TEST(ValidateRequest, RefusesEachFieldOutsideItsRange) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<Case> cases = {
      {"prompt", [](EngineRequest* r) { r->prompt_ids.clear(); }},
      {"prompt", [](EngineRequest* r) { r->prompt_ids.assign(kMaxLen, 1); }},
      {"prompt", [](EngineRequest* r) { r->prompt_ids[1] = -1; }},
      {"prompt", [](EngineRequest* r) { r->prompt_ids[2] = kVocab; }},
      {"forced_ids",
       [](EngineRequest* r) {
         r->forced_ids = {1, kVocab};
       }},
      {"forced_ids", [](EngineRequest* r) { r->forced_ids = {-1}; }},
      {"temperature", [](EngineRequest* r) { r->sampling.temperature = -0.1f; }},
      {"temperature", [](EngineRequest* r) { r->sampling.temperature = 2.1f; }},
      {"temperature", [=](EngineRequest* r) { r->sampling.temperature = nan; }},
      {"top_p", [](EngineRequest* r) { r->sampling.top_p = 0.0f; }},
      {"top_p", [](EngineRequest* r) { r->sampling.top_p = 1.01f; }},
      {"top_p", [=](EngineRequest* r) { r->sampling.top_p = nan; }},
      {"min_p", [](EngineRequest* r) { r->sampling.min_p = -0.01f; }},
      {"min_p", [](EngineRequest* r) { r->sampling.min_p = 1.01f; }},
      {"min_p", [=](EngineRequest* r) { r->sampling.min_p = nan; }},
      {"top_k", [](EngineRequest* r) { r->sampling.top_k = -1; }},
      {"repetition_penalty", [](EngineRequest* r) { r->sampling.repetition_penalty = 0.0f; }},
      {"repetition_penalty", [](EngineRequest* r) { r->sampling.repetition_penalty = 2.1f; }},
      {"repetition_penalty", [=](EngineRequest* r) { r->sampling.repetition_penalty = nan; }},
      {"frequency_penalty", [](EngineRequest* r) { r->sampling.frequency_penalty = 2.1f; }},
      {"frequency_penalty", [=](EngineRequest* r) { r->sampling.frequency_penalty = nan; }},
      {"presence_penalty", [](EngineRequest* r) { r->sampling.presence_penalty = -2.1f; }},
      {"presence_penalty", [=](EngineRequest* r) { r->sampling.presence_penalty = nan; }},
      {"max_tokens", [](EngineRequest* r) { r->sampling.max_tokens = 0; }},
      {"min_tokens", [](EngineRequest* r) { r->sampling.min_tokens = -1; }},
      {"top_logprobs", [](EngineRequest* r) { r->sampling.num_top_logprobs = -2; }},
      {"top_logprobs", [](EngineRequest* r) { r->sampling.num_top_logprobs = 1001; }},
      {"logit_bias",
       [](EngineRequest* r) {
         r->sampling.logit_bias = {{kVocab, 1.0f}};
       }},
      {"logit_bias",
       [](EngineRequest* r) {
         r->sampling.logit_bias = {{-1, 1.0f}};
       }},
      {"logit_bias",
       [](EngineRequest* r) {
         r->sampling.logit_bias = {{1, 100.5f}};
       }},
      {"logit_bias",
       [=](EngineRequest* r) {
         r->sampling.logit_bias = {{1, -inf}};
       }},
      {"logit_bias",
       [=](EngineRequest* r) {
         r->sampling.logit_bias = {{1, nan}};
       }},
      {"stop_token_ids", [](EngineRequest* r) { r->sampling.stop_token_ids = {kVocab}; }},
      {"banned_ids", [](EngineRequest* r) { r->sampling.banned_ids = {-1}; }},
      {"state_at", [](EngineRequest* r) { r->state_at = {0}; }},
      {"state_at", [](EngineRequest* r) { r->state_at = {4}; }},
      {"state_at", [](EngineRequest* r) { r->state_at.assign(kMaxStateAt + 1, 1); }},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    EngineRequest r = Valid();
    cases[i].spoil(&r);
    const Status status = ValidateRequest(r, kVocab, kMaxLen);
    EXPECT_EQ(status.code(), StatusCode::kInvalidRequest) << cases[i].field << " case " << i;
    EXPECT_NE(status.message().find(cases[i].field), std::string::npos) << status.message();
  }
}

TEST(FinishReasonName, NamesEveryReason) {
  EXPECT_EQ(FinishReasonName(FinishReason::kNone), "none");
  EXPECT_EQ(FinishReasonName(FinishReason::kStop), "stop");
  EXPECT_EQ(FinishReasonName(FinishReason::kLength), "length");
  EXPECT_EQ(FinishReasonName(FinishReason::kCancelled), "cancelled");
  EXPECT_EQ(FinishReasonName(FinishReason::kDeadline), "deadline");
  EXPECT_EQ(FinishReasonName(FinishReason::kQueueTimeout), "queue_timeout");
  EXPECT_EQ(FinishReasonName(FinishReason::kError), "error");
}

}  // namespace
}  // namespace deepinfer
