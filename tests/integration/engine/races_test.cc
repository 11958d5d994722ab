// Requests that end, are cancelled, parked and forked at random moments: nothing leaks, and what
// runs to its end has the bits of a quiet run.

#include <gtest/gtest.h>

#include <atomic>
#include <limits>

#include "integration/engine/engine_fixture.h"

namespace deepinfer {
namespace {

using Races = EngineTest;

struct Kind {
  int32_t prompt, output;
  uint64_t seed;
};

// One of a few requests, so that their quiet answers can be known.
EngineRequest KindRequest(size_t kind, std::string id) {
  static constexpr Kind kKinds[] = {{3, 20, 1},  {90, 6, 2},   {128, 30, 3},
                                    {200, 9, 4}, {333, 56, 5}, {129, 30, 6}};
  const Kind& k = kKinds[kind];
  EngineRequest r = StrictRequest(RandomPrompt(k.prompt, 500 + static_cast<uint32_t>(kind)),
                                  k.output, k.seed, std::move(id));
  r.sampling.ignore_eos = kind % 2 == 0;
  return r;
}
constexpr size_t kNumKinds = 6;

TEST_F(Races, CancelsParksForksAndEndsInAnyOrder) {
  std::vector<std::unique_ptr<TokenCollector>> want;
  EngineOptions quiet;
  quiet.prefix_cache = false;
  quiet.speculation.enabled = false;
  Start(quiet, 512);
  for (size_t kind = 0; kind < kNumKinds; ++kind) {
    want.push_back(Run(KindRequest(kind, std::string("quiet"))));
  }
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 rng(seed);
    EngineOptions o;
    o.kv_cache_tokens = 5 * 128;
    o.max_num_seqs = 2 + static_cast<int32_t>(rng() % 5);
    o.max_num_batched_tokens = 16 << (rng() % 5);
    o.replay = ReplayMode::kExact;
    o.min_hit_tokens = 128;
    o.swa_pool_bytes = seed % 2 == 0 ? -1 : 0;
    Start(o, 512);
    struct Live {
      size_t kind;
      std::string id;
      std::unique_ptr<TokenCollector> out;
    };
    std::vector<Live> live;
    for (int i = 0; i < 40; ++i) {
      const size_t kind = rng() % kNumKinds;
      const std::string id = std::to_string(i);
      EngineRequest r = KindRequest(kind, id);
      r.request_class = kRequestClasses[rng() % 3];
      if (!live.empty() && rng() % 3 == 0) r.branch_of = live[rng() % live.size()].id;
      live.push_back({kind, id, std::make_unique<TokenCollector>()});
      ASSERT_TRUE(engine_->Submit(std::move(r), live.back().out->Sink()).ok());
      if (rng() % 3 == 0) engine_->Cancel(live[rng() % live.size()].id);
      if (rng() % 4 == 0) clock_.Advance(static_cast<int64_t>(rng() % 6'000'000));
      if (rng() % 5 == 0) live[rng() % live.size()].out->WaitForEvents(1);
    }
    int64_t finished = 0, generated = 0;
    for (const Live& l : live) {
      const TokenEvent& last = l.out->Wait();
      generated += last.counters.generated_tokens;
      const auto& full = want[l.kind]->ids();
      ASSERT_LE(l.out->ids().size(), full.size());
      EXPECT_TRUE(std::equal(l.out->ids().begin(), l.out->ids().end(), full.begin()))
          << "kind " << l.kind << " id " << l.id;
      if (last.finish == FinishReason::kCancelled) continue;
      ++finished;
      ExpectSameAnswer(*l.out, *want[l.kind], "kind " + std::to_string(l.kind));
    }
    EXPECT_GT(finished, 5);
    const EngineStatistics s = StatisticsWhenIdle(*engine_);
    EXPECT_EQ(s.generated_tokens, generated);
    ExpectNothingHeld(s);
  }
}

TEST_F(Races, E05_CancelAtEveryMomentOfARequest) {
  // The n-th look at the clock cancels: every state and every phase of a step is met.
  EngineOptions o;
  o.max_num_batched_tokens = 32;
  for (int moment = 1; moment < 60; moment += 2) {
    Start(o);
    const auto reads = std::make_shared<std::atomic<int>>(0);
    clock_.OnRead([reads, moment, engine = engine_.get()] {
      if (++*reads == moment) engine->Cancel("victim");
    });
    std::vector<EngineRequest> two;
    two.push_back(StrictRequest(RandomPrompt(100, 60), 6, 1, std::string("victim")));
    two.push_back(StrictRequest(RandomPrompt(70, 61), 6, 2, std::string("other")));
    const auto out = RunTogether(std::move(two));
    EXPECT_EQ(out[1]->ids().size(), 6u) << "moment " << moment;
    const FinishReason finish = out[0]->Wait().finish;
    EXPECT_TRUE(finish == FinishReason::kCancelled || finish == FinishReason::kLength);
    ExpectNothingHeld(StatisticsWhenIdle(*engine_));
    clock_.OnRead({});
  }
}

TEST_F(Races, AHundredThousandQueuedRequestsDoNotStopTheRunningOne) {
  EngineOptions o = OneTokenPerStep();
  o.max_num_seqs = 1;
  o.max_queued_requests = 200'000;
  Start(o);
  std::atomic<int> ended{0};
  int waiting_in_the_middle = 0;
  TokenCollector running;
  Latch latch;
  ASSERT_TRUE(engine_
                  ->Submit(StrictRequest({3, 4, 5}, 200, 1, std::string("running")),
                           running.Sink([&](const TokenEvent& e) {
                             if (e.start_index == 0) latch.Block();
                             if (e.start_index != 150) return;
                             waiting_in_the_middle = engine_->Statistics().waiting;
                             clock_.Advance(700'000'000);
                           }))
                  .ok());
  latch.WaitUntilReached();
  constexpr int kQueued = 100'000;
  for (int i = 0; i < kQueued; ++i) {
    EngineRequest r = GreedyRequest({5, 6, 7}, 4, std::to_string(i));
    r.queue_deadline_us = clock_.NowUs() + 600'000'000 + i;
    ASSERT_TRUE(
        engine_
            ->Submit(std::move(r),
                     [&](const TokenEvent& e) { ended += e.finish == FinishReason::kQueueTimeout; })
            .ok());
  }
  EXPECT_EQ(engine_->Statistics().waiting, kQueued);
  latch.Release();
  EXPECT_EQ(running.Wait().finish, FinishReason::kLength);
  EXPECT_EQ(waiting_in_the_middle, kQueued);
  engine_->Drain(std::numeric_limits<int64_t>::max());
  EXPECT_EQ(ended, kQueued);
}

}  // namespace
}  // namespace deepinfer
