// How requests enter and leave: cancellation and deadlines in every state, the queue, drain, the
// destructor, refusals.

#include <gtest/gtest.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <limits>
#include <memory>
#include <string_view>
#include <thread>

#include "base/log.h"
#include "base/thread_name.h"
#include "engine/watchdog.h"
#include "integration/engine/engine_fixture.h"

namespace deepinfer {
namespace {

class Lifecycle : public EngineTest {
 protected:
  // Submits a request that stops inside its first event until the latch opens.
  void SubmitBlocked(const std::string& id, TokenCollector* out, Latch* latch,
                     int32_t max_tokens = 4) {
    EngineRequest r = GreedyRequest(Prompt("f32_greedy_L5"), max_tokens, id);
    r.sampling.ignore_eos = true;
    ASSERT_TRUE(engine_
                    ->Submit(std::move(r), out->Sink([latch](const TokenEvent& e) {
                      if (e.start_index == 0) latch->Block();
                    }))
                    .ok());
    latch->WaitUntilReached();
  }
  EngineRequest Short(const std::string& id) {
    EngineRequest r = GreedyRequest(Prompt("f32_greedy_L5"), 2, id);
    r.sampling.ignore_eos = true;
    return r;
  }
  // Lets time pass until the watchdog has seen the engine hang.
  void WaitUntilReported() {
    SpinUntil("the report of the hang", [this] {
      clock_.Advance(Watchdog::kLimitUs / 10);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return !engine_->healthy();
    });
  }
};

TEST_F(Lifecycle, CancelWhileQueuedEndsBeforeTheRunningRequest) {
  TokenCollector running, queued;
  Latch latch;
  SubmitBlocked("running", &running, &latch);
  bool running_was_done = true;
  ASSERT_TRUE(engine_
                  ->Submit(Short("queued"), queued.Sink([&](const TokenEvent&) {
                    running_was_done = running.done();
                  }))
                  .ok());
  engine_->Cancel("queued");
  engine_->Cancel("queued");
  EXPECT_EQ(engine_->Statistics().waiting, 1);
  latch.Release();
  EXPECT_EQ(queued.Wait().finish, FinishReason::kCancelled);
  EXPECT_TRUE(queued.ids().empty());
  EXPECT_EQ(queued.Wait().counters.computed_tokens, 0);
  EXPECT_EQ(queued.Wait().counters.prompt_tokens, 5);
  EXPECT_EQ(running.Wait().finish, FinishReason::kLength);
  EXPECT_EQ(running.ids().size(), 4u);
  EXPECT_FALSE(running_was_done);
}

TEST_F(Lifecycle, E05_CancelInTheMiddleOfThePrompt) {
  EngineOptions options;
  options.max_num_batched_tokens = 7;
  Start(options);
  // Chunks end on even positions. Seen while the third one is under way.
  clock_.OnRead([engine = engine_.get()] {
    if (engine->Statistics().kv_tokens == 12) engine->Cancel("request");
  });
  const auto out = Run(GreedyRequest(Prompt("f32_greedy_L63"), 10));
  EXPECT_EQ(out->Wait().finish, FinishReason::kCancelled);
  EXPECT_TRUE(out->ids().empty());
  EXPECT_EQ(out->Wait().counters.computed_tokens, 18);
  EXPECT_EQ(out->Wait().counters.generated_tokens, 0);
}

TEST_F(Lifecycle, CancelWhileDecodingTakesEffectBeforeTheNextStep) {
  Start(OneTokenPerStep());
  TokenCollector out;
  EngineRequest r = GreedyRequest(Prompt("f32_greedy_L5"), 100);
  r.sampling.ignore_eos = true;
  ASSERT_TRUE(engine_
                  ->Submit(std::move(r), out.Sink([&](const TokenEvent& e) {
                    if (e.start_index == 2 && !e.ids.empty()) engine_->Cancel("request");
                  }))
                  .ok());
  EXPECT_EQ(out.Wait().finish, FinishReason::kCancelled);
  EXPECT_EQ(out.ids().size(), 3u);
  EXPECT_EQ(out.Wait().start_index, 3);
  EXPECT_EQ(out.Wait().counters.generated_tokens, 3);
}

TEST_F(Lifecycle, CancelOfEndedOrUnknownRequestsDoesNothing) {
  engine_->Cancel("never seen");
  Run(Short("a"));
  engine_->Cancel("a");
  // The mark must not wait for the next request of that name.
  const auto again = Run(Short("a"));
  EXPECT_EQ(again->Wait().finish, FinishReason::kLength);
}

TEST_F(Lifecycle, AnIdIsFreeOnceItsLastEventCame) {
  TokenCollector first, second;
  Status reuse = Internal("not called"), duplicate = Internal("not called");
  ASSERT_TRUE(engine_
                  ->Submit(Short("same"), first.Sink([&](const TokenEvent& e) {
                    if (e.finish == FinishReason::kNone) {
                      duplicate = engine_->Submit(Short("same"), second.Sink());
                    } else {
                      reuse = engine_->Submit(Short("same"), second.Sink());
                    }
                  }))
                  .ok());
  first.Wait();
  EXPECT_EQ(second.Wait().finish, FinishReason::kLength);
  EXPECT_EQ(duplicate.code(), StatusCode::kInvalidRequest);
  EXPECT_TRUE(reuse.ok()) << reuse.ToString();
}

TEST_F(Lifecycle, DeadlineInTheQueue) {
  TokenCollector running, late, in_time;
  Latch latch;
  SubmitBlocked("running", &running, &latch);
  EngineRequest r = Short("late");
  r.deadline_us = clock_.NowUs() + 1000;
  ASSERT_TRUE(engine_->Submit(std::move(r), late.Sink()).ok());
  EngineRequest s = Short("in time");
  s.deadline_us = clock_.NowUs() + 1001;
  ASSERT_TRUE(engine_->Submit(std::move(s), in_time.Sink()).ok());
  clock_.Advance(1000);
  latch.Release();
  EXPECT_EQ(late.Wait().finish, FinishReason::kDeadline);
  EXPECT_EQ(late.Wait().status.code(), StatusCode::kDeadline);
  EXPECT_EQ(late.Wait().counters.queue_us, 1000);
  EXPECT_EQ(late.Wait().counters.computed_tokens, 0);
  EXPECT_EQ(in_time.Wait().finish, FinishReason::kLength);
  EXPECT_EQ(in_time.Wait().counters.queue_us, 1000);
  EXPECT_EQ(running.Wait().finish, FinishReason::kLength);
}

TEST_F(Lifecycle, QueueTimeOutEndsOnlyWhatStillWaits) {
  TokenCollector running, late, in_time;
  Latch latch;
  SubmitBlocked("running", &running, &latch);
  EngineRequest r = Short("late");
  r.queue_deadline_us = clock_.NowUs() + 1000;
  ASSERT_TRUE(engine_->Submit(std::move(r), late.Sink()).ok());
  EngineRequest s = Short("in time");
  s.queue_deadline_us = clock_.NowUs() + 1001;
  // The wait is over once the request has started.
  ASSERT_TRUE(
      engine_->Submit(std::move(s), in_time.Sink([&](const TokenEvent&) { clock_.Advance(5000); }))
          .ok());
  clock_.Advance(1000);
  latch.Release();
  EXPECT_EQ(late.Wait().finish, FinishReason::kQueueTimeout);
  EXPECT_EQ(late.Wait().status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(late.Wait().counters.queue_us, 1000);
  EXPECT_EQ(late.Wait().counters.computed_tokens, 0);
  EXPECT_EQ(in_time.Wait().finish, FinishReason::kLength);
  EXPECT_EQ(in_time.ids().size(), 2u);
  EXPECT_EQ(running.Wait().finish, FinishReason::kLength);
}

TEST_F(Lifecycle, QueueTimeOutDuringTheLastStepOfTheRequestBefore) {
  TokenCollector running, late;
  Latch latch;
  EngineRequest last = GreedyRequest(Prompt("f32_greedy_L5"), 1, "running");
  ASSERT_TRUE(engine_
                  ->Submit(std::move(last), running.Sink([&](const TokenEvent&) {
                    latch.Block();
                    clock_.Advance(1000);
                  }))
                  .ok());
  latch.WaitUntilReached();
  EngineRequest r = Short("late");
  r.queue_deadline_us = clock_.NowUs() + 1000;
  ASSERT_TRUE(engine_->Submit(std::move(r), late.Sink()).ok());
  latch.Release();
  EXPECT_EQ(late.Wait().finish, FinishReason::kQueueTimeout);
  EXPECT_EQ(late.Wait().counters.computed_tokens, 0);
}

TEST_F(Lifecycle, DeadlineWhileDecoding) {
  Start(OneTokenPerStep());
  TokenCollector out;
  EngineRequest r = GreedyRequest(Prompt("f32_greedy_L5"), 100);
  r.sampling.ignore_eos = true;
  r.deadline_us = clock_.NowUs() + 10;
  ASSERT_TRUE(engine_
                  ->Submit(std::move(r), out.Sink([&](const TokenEvent& e) {
                    if (e.start_index == 4 && !e.ids.empty()) clock_.Advance(10);
                  }))
                  .ok());
  EXPECT_EQ(out.Wait().finish, FinishReason::kDeadline);
  EXPECT_EQ(out.Wait().status.code(), StatusCode::kDeadline);
  EXPECT_EQ(out.ids().size(), 5u);
}

TEST_F(Lifecycle, ADeadlineAlreadyPastRunsNothing) {
  EngineRequest r = Short("past");
  r.deadline_us = clock_.NowUs();
  const auto out = Run(std::move(r));
  EXPECT_EQ(out->Wait().finish, FinishReason::kDeadline);
  EXPECT_EQ(out->Wait().counters.computed_tokens, 0);
}

TEST_F(Lifecycle, AFullQueueRefuses) {
  EngineOptions options;
  options.max_queued_requests = 2;
  Start(options);
  TokenCollector running, a, b, c;
  Latch latch;
  SubmitBlocked("running", &running, &latch);
  EXPECT_TRUE(engine_->Submit(Short("a"), a.Sink()).ok());
  EXPECT_TRUE(engine_->Submit(Short("b"), b.Sink()).ok());
  EXPECT_EQ(engine_->Submit(Short("c"), c.Sink()).code(), StatusCode::kResourceExhausted);
  const EngineStatistics stats = engine_->Statistics();
  EXPECT_EQ(stats.running, 1);
  EXPECT_EQ(stats.waiting, 2);
  latch.Release();
  a.Wait();
  b.Wait();
  EXPECT_TRUE(engine_->Submit(Short("c"), c.Sink()).ok()) << "the refused id must not stay live";
  c.Wait();
}

TEST_F(Lifecycle, RequestsRunInOrderOfArrival) {
  TokenCollector running, out[5];
  Latch latch;
  SubmitBlocked("running", &running, &latch);
  std::vector<int> order;
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(
        engine_
            ->Submit(Short(std::to_string(i)), out[i].Sink([&order, i](const TokenEvent& e) {
              if (e.finish != FinishReason::kNone) order.push_back(i);
            }))
            .ok());
  }
  latch.Release();
  engine_->Drain(std::numeric_limits<int64_t>::max());
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4}));
}

TEST_F(Lifecycle, DrainLetsLiveRequestsFinish) {
  TokenCollector running, queued, refused;
  Latch latch;
  SubmitBlocked("running", &running, &latch);
  ASSERT_TRUE(engine_->Submit(Short("queued"), queued.Sink()).ok());
  std::thread drain([&] { engine_->Drain(std::numeric_limits<int64_t>::max()); });
  SpinUntil("the drain", [&] { return engine_->draining(); });
  EXPECT_EQ(engine_->Submit(Short("refused"), refused.Sink()).code(), StatusCode::kUnavailable);
  latch.Release();
  drain.join();
  EXPECT_TRUE(running.done());
  EXPECT_TRUE(queued.done());
  EXPECT_EQ(running.Wait().finish, FinishReason::kLength);
  EXPECT_EQ(queued.Wait().finish, FinishReason::kLength);
  engine_->Drain(0);
}

TEST_F(Lifecycle, SinksAreDestroyedBeforeDrainReturns) {
  for (int round = 0; round < 50; ++round) {
    Start({});
    std::vector<std::weak_ptr<int>> held;
    for (const char* id : {"a", "b"}) {
      auto resource = std::make_shared<int>(round);
      held.push_back(resource);
      ASSERT_TRUE(engine_->Submit(Short(id), [resource](const TokenEvent&) {}).ok());
    }
    engine_->Drain(std::numeric_limits<int64_t>::max());
    for (const std::weak_ptr<int>& w : held) ASSERT_TRUE(w.expired()) << "round " << round;
  }
}

TEST_F(Lifecycle, DrainCancelsTheRestAtTheDeadline) {
  EngineOptions options;
  options.max_num_seqs = 1;
  Start(options);
  TokenCollector running, queued;
  Latch latch;
  SubmitBlocked("running", &running, &latch, 400);
  ASSERT_TRUE(engine_->Submit(Short("queued"), queued.Sink()).ok());
  std::thread drain([&] { engine_->Drain(clock_.NowUs()); });
  SpinUntil("the drain", [&] { return engine_->draining(); });
  latch.Release();
  drain.join();
  EXPECT_TRUE(running.done());
  EXPECT_TRUE(queued.done());
  EXPECT_EQ(running.Wait().finish, FinishReason::kCancelled);
  EXPECT_EQ(queued.Wait().finish, FinishReason::kCancelled);
}

TEST_F(Lifecycle, TheDestructorEndsEveryRequestOnce) {
  TokenCollector running, queued[4];
  Latch latch;
  SubmitBlocked("running", &running, &latch, 400);
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(engine_->Submit(Short(std::to_string(i)), queued[i].Sink()).ok());
  }
  // Alive while its own thread waits at the latch.
  const Engine* engine = engine_.get();
  std::thread destroy([&] { engine_.reset(); });
  SpinUntil("the drain", [&] { return engine->draining(); });
  latch.Release();
  destroy.join();
  EXPECT_TRUE(running.done());
  for (TokenCollector& q : queued) {
    ASSERT_TRUE(q.done());
    EXPECT_EQ(q.Wait().finish, FinishReason::kCancelled);
  }
}

TEST_F(Lifecycle, AnInvalidRequestTakesNothing) {
  TokenCollector out;
  EngineRequest r = Short("bad");
  r.prompt_ids[1] = 512;
  EXPECT_EQ(engine_->Submit(r, out.Sink()).code(), StatusCode::kInvalidRequest);
  r = Short("bad");
  r.prompt_ids.assign(512, 3);
  EXPECT_EQ(engine_->Submit(r, out.Sink()).code(), StatusCode::kInvalidRequest);
  r = Short("bad");
  r.sampling.max_tokens = 0;
  EXPECT_EQ(engine_->Submit(r, out.Sink()).code(), StatusCode::kInvalidRequest);
  EXPECT_EQ(engine_->Statistics().blocks_acquired, 0);
  EXPECT_EQ(engine_->Statistics().slots_acquired, 0);
  EXPECT_EQ(out.num_events(), 0);
  EXPECT_EQ(Run(Short("bad"))->Wait().finish, FinishReason::kLength);
}

TEST_F(Lifecycle, OptionsWithoutRoomAreRefused) {
  for (const auto& [len, rows] : {std::pair{1, 512}, {0, 512}, {512, 0}}) {
    EngineOptions o;
    o.max_model_len = len;
    o.max_num_batched_tokens = rows;
    EXPECT_EQ(Engine::Create(model_->get(), o, &clock_).status().code(),
              StatusCode::kInvalidRequest);
  }
}

TEST_F(Lifecycle, AllTokensBannedFailsOnlyThatRequest) {
  EngineRequest r = Short("banned");
  for (int32_t id = 0; id < 512; ++id) r.sampling.banned_ids.push_back(id);
  const auto out = Run(std::move(r));
  EXPECT_EQ(out->Wait().finish, FinishReason::kError);
  EXPECT_EQ(out->Wait().status.code(), StatusCode::kInvalidRequest);
  EXPECT_TRUE(out->ids().empty());
  EXPECT_EQ(Run(Short("next"))->Wait().finish, FinishReason::kLength);
}

TEST_F(Lifecycle, TimesAreMeasuredWithTheGivenClock) {
  EngineOptions options;
  options.max_num_batched_tokens = 3;
  Start(options);
  TokenCollector out;
  ASSERT_TRUE(
      engine_->Submit(Short("timed"), out.Sink([&](const TokenEvent&) { clock_.Advance(40); }))
          .ok());
  const RequestCounters& c = out.Wait().counters;
  EXPECT_EQ(c.queue_us, 0);
  EXPECT_EQ(c.prefill_us, 0);
  EXPECT_EQ(c.decode_us, 40);
}

TEST_F(Lifecycle, TheTargetOfAClassOrdersRequestsWithoutADeadlineOfTheirOwn) {
  for (const bool has_targets : {true, false}) {
    EngineOptions options = OneTokenPerStep();
    options.max_num_seqs = 1;
    if (!has_targets) options.ttft_target_us = {0, 0, 0};
    Start(options);
    TokenCollector running, lax, plain;
    Latch latch;
    SubmitBlocked("running", &running, &latch);
    EngineRequest r = Short("lax");
    r.first_token_deadline_us = clock_.NowUs() + kTtftTargetInteractiveUs + 1'000'000;
    ASSERT_TRUE(engine_->Submit(std::move(r), lax.Sink()).ok());
    bool lax_was_done = false;
    ASSERT_TRUE(engine_
                    ->Submit(Short("plain"), plain.Sink([&](const TokenEvent& e) {
                      if (e.start_index == 0) lax_was_done = lax.done();
                    }))
                    .ok());
    latch.Release();
    lax.Wait();
    plain.Wait();
    EXPECT_EQ(lax_was_done, !has_targets);
  }
}

TEST_F(Lifecycle, AMissedTargetOfAClassEndsNoRequest) {
  EngineOptions options = OneTokenPerStep();
  options.max_num_seqs = 1;
  Start(options);
  TokenCollector running;
  Latch latch;
  SubmitBlocked("running", &running, &latch);
  std::vector<std::unique_ptr<TokenCollector>> out;
  for (const RequestClass c : kRequestClasses) {
    EngineRequest r = Short(std::string(RequestClassName(c)));
    r.request_class = c;
    out.push_back(std::make_unique<TokenCollector>());
    ASSERT_TRUE(engine_->Submit(std::move(r), out.back()->Sink()).ok());
  }
  clock_.Advance(2 * kTtftTargetBatchUs);
  latch.Release();
  for (const auto& o : out) EXPECT_EQ(o->Wait().finish, FinishReason::kLength);
}

TEST_F(Lifecycle, AStepThatDoesNotEndIsReportedWithWhatRunsAndTheEngineGoesOnAfterIt) {
  const std::string thread = UseAsyncScheduling() ? "step" : "engine";
  const auto held = std::make_shared<Latch>();
  const auto num_looks = std::make_shared<std::atomic<int>>(0);
  ::testing::internal::CaptureStderr();
  InitLogging(LogLevel::kInfo, LogFormat::kText);
  clock_.OnRead([held, num_looks, thread] {
    std::array<char, kMaxThreadName + 1> name{};
    (void)pthread_getname_np(pthread_self(), name.data(), name.size());
    if (name.data() == thread && !held->released()) held->Block();
    if (name.data() == std::string_view("watchdog")) ++*num_looks;
  });
  TokenCollector out;
  ASSERT_TRUE(engine_->Submit(Short("held"), out.Sink()).ok());
  held->WaitUntilReached();
  EXPECT_TRUE(engine_->healthy());
  // The other thread of the engine may be about to note that it has work.
  WaitUntilReported();
  // Its next look comes behind the report.
  const int reported_at = *num_looks;
  SpinUntil("the end of the report", [&] { return *num_looks > reported_at; });
  held->Release();
  EXPECT_EQ(out.Wait().finish, FinishReason::kLength);
  SpinUntil("the end of the hang", [this] { return engine_->healthy(); });
  const std::string log = ::testing::internal::GetCapturedStderr();
  InitLogging(LogLevel::kInfo, LogFormat::kText);
  const auto has = [&log](const std::string& what) { return log.find(what) != std::string::npos; };
  EXPECT_TRUE(has("engine.stalled")) << log;
  EXPECT_TRUE(has("engine.stack thread=" + thread)) << log;
  EXPECT_TRUE(has("engine.goes_on")) << log;
  // Synchronous steps run on the engine thread, which is held before it launches one.
  EXPECT_EQ(has("prompt of held from 0: 5 rows"), UseAsyncScheduling()) << log;
}

TEST_F(Lifecycle, ASinkThatHoldsTheEngineThreadIsAHang) {
  TokenCollector running;
  Latch latch;
  SubmitBlocked("running", &running, &latch);
  WaitUntilReported();
  latch.Release();
  EXPECT_EQ(running.Wait().finish, FinishReason::kLength);
  SpinUntil("the end of the hang", [this] { return engine_->healthy(); });
}

}  // namespace
}  // namespace deepinfer
