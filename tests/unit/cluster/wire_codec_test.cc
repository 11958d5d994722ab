// Requests, events and statistics survive the wire; nonsense from it is refused.

#include "cluster/wire_codec.h"

#include <gtest/gtest.h>

#include <limits>

#include <cluster.pb.h>

namespace deepinfer {
namespace {

EngineRequest FullRequest() {
  EngineRequest r;
  r.request_id = "chatcmpl-1-0";
  r.attempt = 3;
  r.prompt_ids = {1, 2, 300'000};
  SamplingParams& s = r.sampling;
  s.temperature = 0.7f;
  s.top_p = 0.9f;
  s.min_p = 0.1f;
  s.top_k = 40;
  s.repetition_penalty = 1.1f;
  s.frequency_penalty = -0.5f;
  s.presence_penalty = 0.5f;
  s.seed = 0xffff'ffff'ffff'fff0;
  s.has_seed = true;
  s.mode = SamplingMode::kStrict;
  s.max_tokens = 99;
  s.min_tokens = 2;
  s.ignore_eos = true;
  s.stop_token_ids = {7, 8};
  s.logit_bias = {{5, -1.5f}, {6, 2.0f}};
  s.banned_ids = {9};
  s.allowed_ids = {10, 11};
  s.banned_sequences = {{1, 2}, {3}};
  s.num_tokens_without_end = 4;
  s.logprobs_kind = LogprobsKind::kProcessed;
  s.mass_below = true;
  s.num_top_logprobs = 5;
  s.prompt_logprobs = true;
  r.deadline_us = 5'000;
  r.first_token_deadline_us = 900;
  r.request_class = RequestClass::kBatch;
  r.cache_scope[3] = 77;
  r.branch_of = "leader";
  r.forced_ids = {12};
  r.forced_accepts = {0, 3};
  r.cache_retention.persist = false;
  r.cache_retention.kept_tokens = 384;
  r.cache_retention.retention = RetentionClass::kAgent;
  r.cache_retention.tenant_tag = 0x8000'0000'0000'0001;
  r.cache_retention.max_lifetime_hours = 5;
  r.state_at = {128, 256};
  auto grammar = std::make_shared<OutputGrammar>();
  grammar->source.kind = GrammarKind::kRegex;
  grammar->source.text = "[a-z]+";
  grammar->fallback.emplace().kind = GrammarKind::kJsonObject;
  grammar->trigger.token_ids = {5, 6};
  grammar->trigger.preceding_text = "<";
  grammar->trigger.bound_token = 7;
  grammar->trigger.banned_ids = {8};
  grammar->trigger.optional = true;
  grammar->strict = true;
  r.grammar = grammar;
  r.work_id = std::string("\0work", 5);
  r.resume.emplace();
  r.resume->ids = {13, 14};
  r.resume->origin = {1, 2, 3};
  r.resume->counters.prompt_tokens = 3;
  r.resume->counters.decode_us = 123;
  r.resume->counters.approximate_resume = true;
  return r;
}

wire::Request Encoded(const EngineRequest& r, int64_t now_us = 1000) {
  wire::Request out;
  EncodeRequest(r, now_us, &out);
  return out;
}

TEST(WireCodec, ARequestComesThroughWhole) {
  const EngineRequest want = FullRequest();
  const wire::Request sent = Encoded(want);
  // Another clock on the other side: what is left of a deadline counts.
  const Result<EngineRequest> got = DecodeRequest(sent, 501'000);
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  EXPECT_EQ(got->deadline_us, 505'000);
  EXPECT_EQ(got->queue_deadline_us, 0) << "none";
  EXPECT_EQ(got->first_token_deadline_us, 501'001) << "passed, not none";
  EXPECT_EQ(Encoded(*got, 501'000).SerializeAsString(), [&] {
    wire::Request again = sent;
    again.set_first_token_deadline_in_us(1);
    return again.SerializeAsString();
  }());
  EXPECT_EQ(got->sampling.seed, want.sampling.seed);
  EXPECT_EQ(got->sampling.banned_sequences, want.sampling.banned_sequences);
  EXPECT_EQ(got->cache_scope, want.cache_scope);
  EXPECT_EQ(got->state_at, want.state_at);
  EXPECT_EQ(got->work_id, want.work_id);
  EXPECT_EQ(got->forced_accepts, want.forced_accepts);
  EXPECT_FALSE(got->cache_retention.persist);
  EXPECT_EQ(got->cache_retention.retention, RetentionClass::kAgent);
  EXPECT_EQ(got->cache_retention.max_lifetime_hours, 5);
  EXPECT_EQ(got->cache_retention.tenant_tag, want.cache_retention.tenant_tag);
  EXPECT_EQ(got->grammar->source, want.grammar->source);
  EXPECT_TRUE(got->grammar->strict);
  EXPECT_EQ(got->grammar->fallback, want.grammar->fallback);
  EXPECT_EQ(got->grammar->trigger.bound_token, 7);
  EXPECT_EQ(got->resume->ids, want.resume->ids);
  EXPECT_EQ(got->resume->counters.decode_us, 123);
  EXPECT_TRUE(got->resume->counters.approximate_resume);
}

TEST(WireCodec, CostsComeThroughAndNonsenseIsUnknown) {
  const PredictedCosts want{.prompt_us_per_step = 11,
                            .prompt_us_per_token = 1,
                            .prompt_us_per_square = 2,
                            .tail_us_per_row = 12,
                            .chunk_rows = 512,
                            .tail_rows = 140,
                            .cuts_at_tail = true,
                            .load_us = 13,
                            .load_us_per_token = 14,
                            .step_us = 3,
                            .step_us_per_row = 4,
                            .step_us_per_token = 5,
                            .error = 0.1,
                            .queued_us = 7};
  wire::Costs sent;
  EncodeCosts(want, &sent);
  const PredictedCosts got = DecodeCosts(sent);
  const PromptWork prompt{1'000, {.own_tokens = 512, .first_row = 384}};
  EXPECT_EQ(got.PromptUs({600}), want.PromptUs({600}));
  EXPECT_EQ(got.PromptUs(prompt), want.PromptUs(prompt));
  EXPECT_EQ(got.step_us_per_token, 5);
  EXPECT_EQ(got.error, 0.1);
  EXPECT_EQ(got.queued_us, 7);
  sent.set_step_us(-1);
  EXPECT_EQ(DecodeCosts(sent).queued_us, 0);
  sent.set_step_us(std::numeric_limits<double>::infinity());
  EXPECT_EQ(DecodeCosts(sent).prompt_us_per_token, 0);
}

TEST(WireCodec, WhatIsStoredOfAPromptIsNoMoreThanThePrompt) {
  wire::StoredPrefix sent;
  EncodeStored({.own_tokens = 256, .peer_tokens = 128, .first_row = 300}, &sent);
  EXPECT_EQ(DecodeStored(sent, 384).tokens(), 384);
  EXPECT_EQ(DecodeStored(sent, 384).first_row, 300);
  EXPECT_EQ(DecodeStored(sent, 383).tokens(), 0);
  sent.set_first_row(385);
  EXPECT_EQ(DecodeStored(sent, 1'000).first_row, 0);
  sent.set_first_row(0);
  sent.set_peer_tokens(-128);
  EXPECT_EQ(DecodeStored(sent, 1'000).tokens(), 0);
}

TEST(WireCodec, RefusesValuesOutsideOfTheirTypes) {
  const auto decode = [](auto change) {
    wire::Request r = Encoded(FullRequest());
    change(&r);
    return DecodeRequest(r, 0).status().code();
  };
  const auto invalid = StatusCode::kInvalidRequest;
  EXPECT_EQ(decode([](wire::Request* r) { r->mutable_sampling()->set_mode(3); }), invalid);
  EXPECT_EQ(decode([](wire::Request* r) { r->mutable_sampling()->set_logprobs_kind(-1); }),
            invalid);
  EXPECT_EQ(decode([](wire::Request* r) { r->set_request_class(99); }), invalid);
  EXPECT_EQ(decode([](wire::Request* r) { r->set_cache_scope("short"); }), invalid);
  EXPECT_EQ(decode([](wire::Request* r) { r->mutable_resume_origin()->set_first_row(4); }),
            invalid);
  EXPECT_EQ(decode([](wire::Request* r) { r->mutable_resume_origin()->set_replay_gen(1 << 20); }),
            invalid);
  EXPECT_EQ(decode([](wire::Request* r) { r->mutable_grammar()->set_source("?"); }),
            StatusCode::kDataCorruption);
  EXPECT_EQ(decode([](wire::Request*) {}), StatusCode::kOk);
}

TEST(WireCodec, AnEventComesThroughWhole) {
  TokenEvent event;
  event.start_index = 7;
  event.ids = {1, 2};
  event.logprobs = {{-0.5f, {{1, -0.5f}, {3, -1.0f}}, 0.25f}, {-2.0f, {}, 0.0f}};
  event.prompt_logprobs = {{-0.1f, {}, 0.0f}};
  event.finish = FinishReason::kError;
  event.stop_token_id = 2;
  event.status = DataCorruption("a logit");
  event.counters.prompt_tokens = 5;
  event.counters.cached_by_tier[1] = 4;
  event.origin = {128, 128, 1};
  wire::TokenEvent sent;
  EncodeEvent("id", 4, event, &sent);
  EXPECT_EQ(sent.request_id(), "id");
  EXPECT_EQ(sent.attempt(), 4u);
  const Result<TokenEvent> got = DecodeEvent(sent);
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->status.ToString(), event.status.ToString());
  EXPECT_EQ(got->logprobs[0].top, event.logprobs[0].top);
  EXPECT_EQ(got->origin.first_row, 128);
  wire::TokenEvent again;
  EncodeEvent("id", 4, *got, &again);
  EXPECT_EQ(again.SerializeAsString(), sent.SerializeAsString());

  sent.set_finish(99);
  EXPECT_FALSE(DecodeEvent(sent).ok());
  sent.set_finish(0);
  sent.mutable_logprobs(0)->add_top_ids(5);
  EXPECT_FALSE(DecodeEvent(sent).ok());
}

TEST(WireCodec, StatisticsComeThroughAndFewerValuesAreFine) {
  EngineStatistics s;
  s.running = 3;
  s.model_us = 77;
  s.slots_released = 5;
  s.rows_per_step.Observe(40, 2);
  wire::Statistics sent;
  EncodeStatistics(s, &sent);
  const EngineStatistics got = DecodeStatistics(sent);
  EXPECT_EQ(got.running, 3);
  EXPECT_EQ(got.model_us, 77);
  EXPECT_EQ(got.slots_released, 5);
  EXPECT_EQ(got.rows_per_step.sum(), 80);
  EXPECT_TRUE(std::equal(got.rows_per_step.counts().begin(), got.rows_per_step.counts().end(),
                         s.rows_per_step.counts().begin()));
  sent.mutable_values()->Truncate(1);
  sent.clear_histograms();
  EXPECT_EQ(DecodeStatistics(sent).running, 3);
  EXPECT_EQ(DecodeStatistics(sent).model_us, 0);
}

}  // namespace
}  // namespace deepinfer
