#include "kvcache/trace_replay.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <list>
#include <random>
#include <unordered_map>
#include <unordered_set>

namespace deepinfer {
namespace {

// A list and a map: the meaning of "least recently used".
double SimpleLru(const std::vector<TraceRequest>& requests, int64_t id_tokens, size_t capacity) {
  std::list<uint64_t> order;  // oldest first
  std::unordered_map<uint64_t, std::list<uint64_t>::iterator> places;
  int64_t hit_tokens = 0;
  int64_t input_tokens = 0;
  for (const TraceRequest& request : requests) {
    size_t hit = 0;
    while (hit < request.ids.size() && places.contains(request.ids[hit])) ++hit;
    hit_tokens += std::min(static_cast<int64_t>(hit) * id_tokens, request.input_tokens);
    input_tokens += request.input_tokens;
    for (size_t i = request.ids.size(); i-- > 0;) {
      const auto it = places.find(request.ids[i]);
      if (it != places.end()) order.erase(it->second);
      places[request.ids[i]] = order.insert(order.end(), request.ids[i]);
      if (places.size() > capacity) {
        places.erase(order.front());
        order.pop_front();
      }
    }
  }
  return static_cast<double>(hit_tokens) / static_cast<double>(input_tokens);
}

// Sessions that grow by turns and share beginnings, from a seed.
std::vector<TraceRequest> Sessions(uint32_t seed, int num_requests) {
  std::mt19937 random(seed);
  std::vector<std::vector<uint64_t>> sessions;
  uint64_t next_id = 1;
  std::vector<TraceRequest> requests;
  for (int i = 0; i < num_requests; ++i) {
    if (sessions.empty() || random() % 3 == 0) {
      std::vector<uint64_t> begin;
      if (!sessions.empty() && random() % 2 == 0) {
        begin = sessions[random() % sessions.size()];
        begin.resize(std::min<size_t>(begin.size(), 1 + random() % 4));
      }
      sessions.push_back(begin);
    }
    std::vector<uint64_t>& session = sessions[random() % sessions.size()];
    const auto grown = 1 + random() % 4;
    for (uint32_t n = 0; n < grown; ++n) session.push_back(next_id++);
    requests.push_back({i, static_cast<int64_t>(session.size() * 512 - random() % 512), session});
  }
  return requests;
}

TEST(TraceReplay, AnUnboundedCacheHitsEverythingSeenBefore) {
  const std::vector<TraceRequest> requests = {
      {0, 1024, {1, 2}}, {1, 1500, {1, 2, 3}}, {2, 1500, {1, 2, 3}}, {3, 512, {9}}};
  const auto totals = ReplayTrace(requests, 512, CountUniqueIds(requests));
  ASSERT_TRUE(totals.ok());
  EXPECT_EQ(totals->hit_tokens, 1024 + 1500);
  EXPECT_EQ(totals->input_tokens, 1024 + 1500 + 1500 + 512);
  EXPECT_EQ(totals->unique_blocks, 4);
  EXPECT_EQ(totals->reclaimed_blocks, 0);
}

TEST(TraceReplay, ATimeToLiveIsRefreshedByUse) {
  const std::vector<TraceRequest> requests = {{0, 1024, {1, 2}},
                                              {9'000, 1024, {1, 2}},
                                              {18'000, 1536, {1, 2, 3}},
                                              {28'200, 1536, {1, 2, 3}},
                                              {30'000, 512, {1}}};
  const TraceTotals totals = ReplayTraceTtl(requests, 512, 10'000);
  EXPECT_EQ(totals.hit_tokens, 1024 + 1024 + 0 + 512);
  EXPECT_EQ(totals.reclaimed_blocks, 3);
  EXPECT_EQ(ReplayTraceTtl(requests, 512, 86'400'000).hit_tokens, 1024 + 1024 + 1536 + 512);
}

TEST(TraceReplay, BeladyKeepsWhatIsUsedSoonest) {
  const std::vector<TraceRequest> requests = {
      {0, 512, {1}}, {1, 512, {2}}, {2, 512, {3}}, {3, 512, {1}}, {4, 512, {2}}};
  EXPECT_EQ(ReplayTraceBelady(requests, 512, 2).hit_tokens, 1024);
  EXPECT_EQ(ReplayTraceBelady(requests, 512, 1).hit_tokens, 512) << "1 stays, 2 and 3 do not";
  EXPECT_EQ(ReplayTrace(requests, 512, 2)->hit_tokens, 0) << "the least recently used one goes";
  // Of one prompt the deepest block goes first: a part of a prefix is worth something.
  const std::vector<TraceRequest> chain = {{0, 1536, {1, 2, 3}}, {1, 1536, {1, 2, 3}}};
  EXPECT_EQ(ReplayTraceBelady(chain, 512, 2).hit_tokens, 1024);
}

TEST(TraceReplay, BeladyBoundsLeastRecentlyUsed) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    const auto requests = Sessions(seed, 300);
    const int64_t unique = CountUniqueIds(requests);
    const double infinite = ReplayTrace(requests, 512, unique)->hit_rate();
    EXPECT_EQ(ReplayTraceBelady(requests, 512, unique).hit_rate(), infinite);
    for (const int64_t share : {4, 10}) {
      const double bound = ReplayTraceBelady(requests, 512, unique / share).hit_rate();
      EXPECT_LE(bound, infinite);
      EXPECT_GE(bound, SimpleLru(requests, 512, static_cast<size_t>(unique / share))) << seed;
    }
  }
}

TEST(TraceReplay, SplittingKeepsWholeBlocksOnly) {
  const std::vector<TraceRequest> requests = {{0, 700, {5, 6}}};
  const auto split = SplitIds(requests, 512, 128);
  ASSERT_TRUE(split.ok());
  EXPECT_EQ((*split)[0].ids, (std::vector<uint64_t>{20, 21, 22, 23, 24}));
  EXPECT_FALSE(SplitIds(requests, 512, 100).ok());
  EXPECT_EQ((*SplitIds(requests, 512, 512))[0].ids, requests[0].ids);
}

TEST(TraceReplay, RefusesACacheSmallerThanAPrompt) {
  const std::vector<TraceRequest> requests = {{0, 1024, {1, 2}}};
  EXPECT_EQ(ReplayTrace(requests, 512, 1).status().code(), StatusCode::kResourceExhausted);
}

RC_GTEST_PROP(TraceReplayProperty, AgreesWithASimpleLru, ()) {
  const auto requests = Sessions(*rc::gen::arbitrary<uint32_t>(), 300);
  const int64_t unique = CountUniqueIds(requests);
  size_t longest = 0;
  for (const TraceRequest& request : requests) longest = std::max(longest, request.ids.size());
  const auto infinite = ReplayTrace(requests, 512, unique);
  RC_ASSERT(infinite.ok());
  RC_ASSERT(infinite->hit_rate() == SimpleLru(requests, 512, static_cast<size_t>(unique)));
  // With little room the pool holds on to the blocks of the running prompt, which a plain list may
  // drop and take again: equal up to those.
  const int64_t capacity = std::max<int64_t>(4 * static_cast<int64_t>(longest), unique / 4);
  const auto small = ReplayTrace(requests, 512, capacity);
  RC_ASSERT(small.ok());
  const double expected = SimpleLru(requests, 512, static_cast<size_t>(capacity));
  RC_ASSERT(std::abs(small->hit_rate() - expected) < 0.03);
}

}  // namespace
}  // namespace deepinfer
