// Traces through a whole store: its janitor evicts and lets expire, not a model of it.
#include "kvcache/store_replay.h"

#include <gtest/gtest.h>

#include "base/log.h"
#include "support/recorded_trace.h"

namespace deepinfer {
namespace {

// Of kvcache's published numbers (docs/benchmarks.md §8).
constexpr double kTolerance = 0.001;

StoreReplayTotals Replay(const std::vector<TraceRequest>& requests, int64_t id_tokens,
                         const StoreReplayOptions& options) {
  // Nothing goes wrong here, and a removed segment is no news.
  InitLogging(LogLevel::kOff, LogFormat::kText);
  const auto totals = ReplayTraceInStore(requests, id_tokens, options);
  EXPECT_TRUE(totals.ok()) << totals.status().ToString();
  return totals.ok() ? *totals : StoreReplayTotals();
}

// One prompt of `blocks` new blocks every so many milliseconds.
std::vector<TraceRequest> NewPrompts(uint64_t count, uint64_t blocks, int64_t every_ms = 1000) {
  std::vector<TraceRequest> requests;
  for (uint64_t i = 0; i < count; ++i) {
    TraceRequest request{
        static_cast<int64_t>(i) * every_ms, static_cast<int64_t>(blocks) * 512, {}};
    for (uint64_t block = 0; block < blocks; ++block) request.ids.push_back(i * blocks + block);
    requests.push_back(request);
  }
  return requests;
}

TEST(StoreReplay, AStoreWithoutALimitHitsEverythingSeenBefore) {
  const std::vector<TraceRequest> requests = {
      {0, 1024, {1, 2}}, {1, 1500, {1, 2, 3}}, {2, 1500, {1, 2, 3}}, {3, 512, {9}}};
  const StoreReplayTotals totals = Replay(requests, 512, {});
  EXPECT_EQ(totals.trace.hit_tokens, 1024 + 1500);
  EXPECT_EQ(totals.trace.input_tokens, 1024 + 1500 + 1500 + 512);
  EXPECT_EQ(totals.trace.unique_blocks, 4);
  EXPECT_EQ(totals.trace.reclaimed_blocks, 0);
}

TEST(StoreReplay, TheJanitorKeepsWithinTheSpaceAndSparesWhatIsUsed) {
  auto requests = NewPrompts(600, 8);
  // The first prompt again, every minute.
  for (int64_t minute = 1; minute < 10; ++minute) {
    requests.insert(requests.begin() + minute * 61, {minute * 60'000, 8 * 512, requests[0].ids});
  }
  StoreReplayOptions options;
  options.capacity_blocks = 800;
  options.segment_records = 40;
  const StoreReplayTotals totals = Replay(requests, 512, options);
  EXPECT_GT(totals.evicted_blocks, 3000);
  EXPECT_EQ(totals.trace.reclaimed_blocks, totals.evicted_blocks);
  EXPECT_GT(totals.removed_segments, 80);
  // Ten seconds of writes come between two rounds: 80 blocks, two segments.
  EXPECT_LE(totals.most_segments, 20 + 3);
  EXPECT_EQ(totals.trace.hit_tokens, 9 * 8 * 512) << "what is used again stays";
}

TEST(StoreReplay, TheJanitorLetsBlocksExpireAndCopiesThoseInUse) {
  // Ten prompts in each bucket, of which one goes on.
  auto requests = NewPrompts(2000, 4, 100);
  const std::vector<uint64_t> goes_on = requests[5].ids;
  const std::vector<uint64_t> rests = requests[6].ids;
  for (int64_t turn = 1; turn < 20; ++turn) {
    requests.insert(requests.begin() + turn * 101, {turn * 10'000, 4 * 512, goes_on});
  }
  requests.push_back({300'000, 4 * 512, rests});
  StoreReplayOptions options;
  options.ttl_ms = 24'000;
  const StoreReplayTotals totals = Replay(requests, 512, options);
  EXPECT_EQ(totals.evicted_blocks, 0) << "nothing leaves before its time";
  EXPECT_GT(totals.trace.reclaimed_blocks, 7000);
  EXPECT_EQ(totals.copied_blocks, 4) << "what goes on moves on, then has a segment of its own";
  EXPECT_EQ(totals.trace.hit_tokens, 19 * 4 * 512);
}

// The numbers that every cache without a limit has to reproduce, on the whole public traces.
void ExpectKnownRate(const char* trace, double rate) {
  const auto requests = RecordedTrace(trace);
  EXPECT_NEAR(Replay(requests, 512, {}).trace.hit_rate(), rate, kTolerance);
  EXPECT_NEAR(ReplayTrace(requests, 512, CountUniqueIds(requests))->hit_rate(), rate, kTolerance);
}

TEST(StoreReplay, ReproducesThePublicConversationsWithoutALimit) {
  ExpectKnownRate("conversation", 0.374);
}

TEST(StoreReplay, ReproducesThePublicSyntheticLoadWithoutALimit) {
  ExpectKnownRate("synthetic", 0.651);
}

TEST(StoreReplay, EvictsLikeALittleLessMemoryAndNoBetterThanTheFutureKnown) {
  const auto requests = RecordedTrace("synthetic");
  const int64_t unique = CountUniqueIds(requests);
  ASSERT_EQ(unique, 43'924);
  StoreReplayOptions options;
  options.capacity_blocks = unique / 5;
  const StoreReplayTotals totals = Replay(requests, 512, options);
  EXPECT_GT(totals.evicted_blocks, 0);
  // Forty segments, and those that may be open.
  EXPECT_LE(totals.most_segments, 40 + 8);
  // Whole segments leave, some space stays free and open segments are not full.
  EXPECT_GT(totals.trace.hit_rate(),
            ReplayTrace(requests, 512, options.capacity_blocks * 6 / 10)->hit_rate());
  EXPECT_LE(totals.trace.hit_rate(),
            ReplayTraceBelady(requests, 512, options.capacity_blocks).hit_rate());
}

TEST(StoreReplay, ExpiryKeepsBlocksAtLeastAsLongAsPromisedAndAtMostABucketLonger) {
  const auto requests = RecordedTrace("synthetic");
  constexpr int64_t kTtlMs = 60'000;
  StoreReplayOptions options;
  options.ttl_ms = kTtlMs;
  const StoreReplayTotals totals = Replay(requests, 512, options);
  EXPECT_EQ(totals.evicted_blocks, 0);
  EXPECT_GE(totals.trace.hit_rate(), ReplayTraceTtl(requests, 512, kTtlMs).hit_rate() - 1e-9);
  // Two buckets, and a round that comes up to one later.
  EXPECT_LE(totals.trace.hit_rate(),
            ReplayTraceTtl(requests, 512, kTtlMs + kTtlMs * 3 / 24).hit_rate());
}

}  // namespace
}  // namespace deepinfer
