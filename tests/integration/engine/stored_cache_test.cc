// An engine with a persistent store: what a restart finds again, bit for bit, and that no fault of
// the disk costs more than a recomputation (kv_format.md §20).

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <set>

#include "engine/kv_namespace.h"
#include "integration/engine/engine_fixture.h"
#include "kvcache/kv_store.h"
#include "support/fake_wall_clock.h"
#include "support/memory_file_system.h"

namespace deepinfer {
namespace {

// Reads wait while it is closed, and fail when it says so.
class Gate {
 public:
  void Close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  void Open() {
    const std::lock_guard lock(mutex_);
    closed_ = false;
    changed_.notify_all();
  }
  void Pass() {
    std::unique_lock lock(mutex_);
    WaitUntil(changed_, lock, "the gate to open", [this] { return !closed_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
};

class StoredCache : public EngineTest {
 protected:
  // Three blocks of the tiny model in a segment, so that a prompt needs several reads.
  static constexpr uint32_t kBlocksPerSegment = 3;

  void SetUp() override { Restart(ReplayMode::kExact); }
  void TearDown() override {
    gate_.Open();
    EngineTest::TearDown();
    engine_.reset();
    // A read that was given up may still be on its way.
    SpinUntil("the end of all reads",
              [&] { return store_ == nullptr || store_->Stats().reads_in_flight == 0; });
  }

  // Everything in memory is gone; what was committed to disk stays.
  void Restart(ReplayMode replay, int32_t io_threads = 0) {
    if (store_ != nullptr) store_->Flush(false);
    engine_.reset();
    store_.reset();
    KvStoreOptions o;
    o.dir = "/kv";
    o.namespace_id = MakeKvNamespace(*model_->get(), {}).Id();
    o.layout = MakeBlockLayout(model_->get()->layout());
    o.layout.segment_pages =
        static_cast<uint32_t>(1 + kBlocksPerSegment * o.layout.record_pages() + 1);
    o.io_threads = io_threads;
    o.io_uring = false;
    o.background_threads = false;
    auto store = KvStore::Open(o, &files_, &clock_, &wall_clock_);
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    store_ = *std::move(store);
    EngineOptions e;
    e.replay = replay;
    e.max_replay_gen = max_replay_gen_;
    e.swa_snapshots = snapshots_;
    e.max_model_len = 2048;
    e.async_scheduling = UseAsyncScheduling();
    if (adjust_) adjust_(&e);
    auto engine = Engine::Create(model_->get(), e, &clock_, nullptr, store_.get());
    ASSERT_TRUE(engine.ok()) << engine.status().ToString();
    engine_ = *std::move(engine);
  }

  static EngineRequest Request(std::vector<int32_t> prompt, std::string id = std::string("r")) {
    return StrictRequest(std::move(prompt), 8, 5, std::move(id));
  }
  static int64_t OfTier(const RequestCounters& c, CacheTier tier) {
    return c.cached_by_tier[static_cast<size_t>(tier)];
  }
  static void ExpectIdentity(const RequestCounters& c) {
    EXPECT_EQ(c.cached_tokens + c.computed_tokens, c.prompt_tokens);
    int64_t sum = 0;
    for (const int64_t tokens : c.cached_by_tier) sum += tokens;
    EXPECT_EQ(sum, c.cached_tokens);
  }
  // What exact mode need not run of a prompt of which `hit` tokens are found.
  static int64_t ExactCached(int64_t hit, int64_t length) {
    const ModelConfig& c = model_->get()->config();
    const int64_t bound = std::max<int64_t>(0, std::min(hit, length - c.decoder_keep_rows()));
    const int64_t edge = bound / kBlockTokens * kBlockTokens;
    return std::max<int64_t>(0, edge - int64_t{c.window - 1} * c.decoder_start());
  }
  // The first row to run again of the lost state of 1002 positions, of which 896 are stored.
  static int64_t ExactRebuild() {
    const ModelConfig& c = model_->get()->config();
    const int64_t reach = c.window - 1;
    const int64_t origin = 1000 - c.decoder_keep_rows();
    const int64_t decoder_from =
        std::max(origin, 1002 - reach * (c.num_layers - c.decoder_start()));
    return std::max<int64_t>(0, std::min<int64_t>(896, decoder_from) - reach * c.decoder_start());
  }
  // Changes a byte in the middle of every stored record of block `block`.
  void Damage(const std::vector<BlockKey>& keys, size_t block) {
    const LookupResult found = store_->Lookup(keys, 0);
    ASSERT_GT(found.blocks.size(), block);
    const BlockLocation at = found.blocks[block].indexed.location;
    const auto info = store_->context().segments.Find(at.segment);
    ASSERT_TRUE(info.has_value());
    const int64_t offset = store_->context().options.layout.RecordOffset(at.record) + 1000;
    files_.At(info->path, offset) ^= std::byte{1};
  }
  static std::vector<BlockKey> KeysOf(const std::vector<int32_t>& tokens) {
    KeyOrigin origin;
    origin.namespace_id = MakeKvNamespace(*model_->get(), {}).Id();
    return ComputeBlockKeys(origin, tokens, {});
  }
  void FailReads(Status status) {
    files_.set_fault([this, status](const std::string& operation, const std::string& path) {
      if (operation != "read" || path.find("/seg-") == std::string::npos) return OkStatus();
      gate_.Pass();
      return status;
    });
  }

  MemoryFileSystem files_;
  FakeWallClock wall_clock_;
  Gate gate_;
  // From the next Restart on.
  uint16_t max_replay_gen_ = kAnyReplayGen;
  bool snapshots_ = false;
  std::function<void(EngineOptions*)> adjust_;
  std::unique_ptr<KvStore> store_;
};

TEST_F(StoredCache, ARestartFindsThePromptOnDiskAndChangesNoBit) {
  const std::vector<int32_t> prompt = RandomPrompt(1000, 70);
  const auto cold = Run(Request(prompt));
  EXPECT_EQ(cold->Wait().counters.miss_reason, MissReason::kAbsent);
  Restart(ReplayMode::kExact);
  const auto hit = Run(Request(prompt));
  ExpectSameAnswer(*hit, *cold);
  const RequestCounters c = hit->Wait().counters;
  ExpectIdentity(c);
  EXPECT_EQ(c.cached_tokens, ExactCached(896, 1000));
  EXPECT_GT(c.cached_tokens, 0);
  EXPECT_EQ(OfTier(c, CacheTier::kDisk), c.cached_tokens);
  EXPECT_EQ(c.miss_reason, MissReason::kNone);

  // Now it is in memory.
  const RequestCounters again = Run(Request(prompt))->Wait().counters;
  EXPECT_EQ(OfTier(again, CacheTier::kDram), c.cached_tokens);
  const EngineStatistics s = engine_->Statistics();
  EXPECT_EQ(s.store_loads, 1);
  EXPECT_EQ(s.hit_by_tier[static_cast<size_t>(CacheTier::kDisk)], 896);
  EXPECT_EQ(s.hit_by_tier[static_cast<size_t>(CacheTier::kDram)], 896);
}

TEST_F(StoredCache, AfterARestartOneExactReplayServesAllRepeatsOfAPrompt) {
  snapshots_ = true;
  Restart(ReplayMode::kExact);
  const std::vector<int32_t> prompt = RandomPrompt(1000, 70);
  const auto cold = Run(Request(prompt));
  Restart(ReplayMode::kExact);
  const auto first = Run(Request(prompt));
  ExpectSameAnswer(*first, *cold);
  EXPECT_EQ(first->Wait().counters.cached_tokens, ExactCached(896, 1000));
  // The replay kept its windows at the last edge below the decoder rows.
  const int64_t edge =
      (1000 - model_->get()->config().decoder_keep_rows()) / kBlockTokens * kBlockTokens;
  for (int i = 0; i < 2; ++i) {
    const auto again = Run(Request(prompt));
    ExpectSameAnswer(*again, *cold);
    const RequestCounters c = again->Wait().counters;
    ExpectIdentity(c);
    EXPECT_EQ(c.cached_tokens, edge);
    EXPECT_EQ(c.replayed_tokens, 896 - edge);
  }
}

TEST_F(StoredCache, WhatIsStoredOfAPromptIsKnownBeforeItRuns) {
  const std::vector<int32_t> prompt = RandomPrompt(1000, 70);
  const std::vector<BlockKey> keys = KeysOf(prompt);
  EXPECT_EQ(engine_->FindStored(keys, 1000).tokens(), 0);
  Run(Request(prompt));
  Restart(ReplayMode::kExact);
  const StoredPrefix stored = engine_->FindStored(keys, 1000);
  EXPECT_EQ(stored.own_tokens, 896);
  EXPECT_EQ(stored.peer_tokens, 0);
  EXPECT_EQ(stored.first_row, Run(Request(prompt))->Wait().counters.cached_tokens);
  // Keys beyond the prompt are not its own, and a short one would be replayed from its first row.
  EXPECT_EQ(engine_->FindStored(keys, 300).own_tokens, 256);
  EXPECT_EQ(engine_->FindStored(keys, 300).first_row, 0);
  std::vector<BlockKey> other = keys;
  other[2] = BlockKey();
  EXPECT_EQ(engine_->FindStored(other, 1000).own_tokens, 256);
}

TEST_F(StoredCache, BlocksInMemoryAndOnDiskMakeOneHit) {
  const std::vector<int32_t> prompt = RandomPrompt(1200, 71);
  const auto cold = Run(Request(prompt));
  Restart(ReplayMode::kExact);
  const std::vector<int32_t> begin(prompt.begin(), prompt.begin() + 700);
  Run(Request(begin));
  const auto hit = Run(Request(prompt));
  ExpectSameAnswer(*hit, *cold);
  const RequestCounters c = hit->Wait().counters;
  ExpectIdentity(c);
  EXPECT_EQ(c.cached_tokens, ExactCached(1152, 1200));
  EXPECT_EQ(OfTier(c, CacheTier::kDram), std::min<int64_t>(640, c.cached_tokens));
}

TEST_F(StoredCache, TheAnswerIsStoredForTheNextTurn) {
  std::vector<int32_t> next = RandomPrompt(500, 72);
  const auto turn = Run(StrictRequest(next, 300, 9));
  next.insert(next.end(), turn->ids().begin(), turn->ids().end());
  const std::vector<int32_t> question = RandomPrompt(200, 73);
  next.insert(next.end(), question.begin(), question.end());
  Restart(ReplayMode::kExact);
  const RequestCounters c = Run(Request(next))->Wait().counters;
  EXPECT_EQ(OfTier(c, CacheTier::kDisk), ExactCached(768, 1000));
  EXPECT_EQ(c.miss_reason, MissReason::kAbsent) << "the question is new";
}

TEST_F(StoredCache, BoundedReplayIsCountedInTheBlocksBehindIt) {
  Restart(ReplayMode::kBounded);
  const std::vector<int32_t> prompt = RandomPrompt(1000, 74);
  std::vector<int32_t> other = RandomPrompt(1000, 75);
  std::copy_n(prompt.begin(), 640, other.begin());
  Run(Request(prompt));
  Restart(ReplayMode::kBounded);
  const RequestCounters c = Run(Request(other))->Wait().counters;
  EXPECT_EQ(OfTier(c, CacheTier::kDisk), 640 - model_->get()->config().window);
  store_->Flush(false);
  const LookupResult stored = store_->Lookup(KeysOf(other), 65535);
  ASSERT_EQ(stored.blocks.size(), 7u);
  EXPECT_EQ(stored.blocks[4].indexed.replay_gen, 0);
  EXPECT_EQ(stored.blocks[5].indexed.replay_gen, 1);
  EXPECT_EQ(store_->Lookup(KeysOf(other), 0).reason, MissReason::kReplayGen);
  Restart(ReplayMode::kExact);
  EXPECT_EQ(Run(Request(other))->Wait().counters.miss_reason, MissReason::kReplayGen);
}

TEST_F(StoredCache, ACapOnTheGenerationIsNeverPassedAndLowerOnesReplaceHigher) {
  max_replay_gen_ = 1;
  Restart(ReplayMode::kBounded);
  const std::vector<int32_t> first = RandomPrompt(1000, 86);
  std::vector<int32_t> second = RandomPrompt(1000, 87);
  std::copy_n(first.begin(), 256, second.begin());
  Run(Request(first));
  Restart(ReplayMode::kBounded);
  Run(Request(second));
  Restart(ReplayMode::kBounded);
  const auto gen_of = [&](const std::vector<int32_t>& tokens, size_t block) {
    store_->Flush(false);
    const LookupResult stored = store_->Lookup(KeysOf(tokens), kAnyReplayGen);
    return stored.blocks.size() > block ? int{stored.blocks[block].indexed.replay_gen} : -1;
  };
  ASSERT_EQ(gen_of(second, 1), 0);
  ASSERT_EQ(gen_of(second, 2), 1);
  // A long continuation replays exactly, which adds no generation.
  std::vector<int32_t> third = RandomPrompt(1300, 88);
  std::copy_n(second.begin(), 896, third.begin());
  EXPECT_EQ(OfTier(Run(Request(third))->Wait().counters, CacheTier::kDisk), ExactCached(896, 1300));
  EXPECT_EQ(gen_of(third, 8), 1);
  // Where exact replay would run every row the blocks are computed, and are as good as new.
  const std::vector<int32_t> begin(second.begin(), second.begin() + 390);
  ASSERT_EQ(ExactCached(384, 390), 0);
  EXPECT_EQ(Run(Request(begin))->Wait().counters.cached_tokens, 0);
  EXPECT_EQ(gen_of(second, 2), 0);
  EXPECT_EQ(gen_of(second, 3), 1);
  Restart(ReplayMode::kBounded);
  EXPECT_EQ(gen_of(second, 2), 0) << "both records are on disk";
  EXPECT_GT(Run(Request(begin))->Wait().counters.cached_tokens, 0);
}

TEST_F(StoredCache, ExactModeReplacesBlocksThatItDoesNotAccept) {
  Restart(ReplayMode::kBounded);
  const std::vector<int32_t> first = RandomPrompt(1000, 89);
  std::vector<int32_t> second = RandomPrompt(1000, 90);
  std::copy_n(first.begin(), 640, second.begin());
  Run(Request(first));
  Run(Request(second));
  Restart(ReplayMode::kExact);
  EXPECT_EQ(Run(Request(second))->Wait().counters.miss_reason, MissReason::kReplayGen);
  Restart(ReplayMode::kExact);
  EXPECT_EQ(OfTier(Run(Request(second))->Wait().counters, CacheTier::kDisk),
            ExactCached(896, 1000));
}

TEST_F(StoredCache, RequestsThatStayInMemoryLeaveNothingOnDisk) {
  const std::vector<int32_t> prompt = RandomPrompt(1000, 76);
  EngineRequest r = Request(prompt);
  r.cache_retention.persist = false;
  Run(r);
  store_->Flush(false);
  EXPECT_EQ(store_->Stats().blocks, 0);
  EXPECT_GT(Run(r)->Wait().counters.cached_tokens, 0) << "memory is allowed";
  store_->Flush(false);
  EXPECT_EQ(store_->Stats().blocks, 0);
  // Another request with the same prompt may be kept, and then its chain has no gap.
  Run(Request(prompt));
  store_->Flush(false);
  EXPECT_EQ(store_->Lookup(KeysOf(prompt), 0).blocks.size(), 7u);
}

TEST_F(StoredCache, ClassLifetimeAndTenantReachTheRecord) {
  const std::vector<int32_t> prompt = RandomPrompt(300, 77);
  EngineRequest r = Request(prompt);
  r.cache_retention = {true, kKeepAll, RetentionClass::kAgent, 12, 0x1234};
  Run(r);
  store_->Flush(false);
  const LookupResult found = store_->Lookup(KeysOf(prompt), 0);
  ASSERT_EQ(found.blocks.size(), 2u);
  for (const BlockRequest& block : found.blocks) {
    EXPECT_EQ(block.indexed.retention, RetentionClass::kAgent);
    EXPECT_TRUE(block.indexed.absolute_deadline);
    EXPECT_EQ(store_->context().tenants.TagOf(block.indexed.tenant), 0x1234u);
  }
}

TEST_F(StoredCache, ScopesDoNotShareOnDisk) {
  const std::vector<int32_t> prompt = RandomPrompt(1000, 78);
  EngineRequest a = Request(prompt), b = Request(prompt);
  a.cache_scope = Sha256("tenant a");
  b.cache_scope = Sha256("tenant b");
  Run(a);
  Restart(ReplayMode::kExact);
  EXPECT_EQ(Run(b)->Wait().counters.cached_tokens, 0);
  EXPECT_GT(Run(a)->Wait().counters.cached_tokens, 0);
}

TEST_F(StoredCache, ACorruptRecordIsComputedAgain) {
  const std::vector<int32_t> prompt = RandomPrompt(1000, 79);
  const auto cold = Run(Request(prompt));
  Restart(ReplayMode::kExact);
  Damage(KeysOf(prompt), 6);
  const auto hit = Run(Request(prompt));
  ExpectSameAnswer(*hit, *cold);
  const RequestCounters c = hit->Wait().counters;
  ExpectIdentity(c);
  EXPECT_EQ(c.miss_reason, MissReason::kCorrupt);
  EXPECT_EQ(OfTier(c, CacheTier::kDisk), ExactCached(768, 1000));
  EXPECT_EQ(store_->counters().corrupt_records, 1);
  EXPECT_EQ(engine_->Statistics().miss_tokens[static_cast<size_t>(MissReason::kCorrupt)], 128);
}

TEST_F(StoredCache, AFailingDiskCostsARecomputation) {
  const std::vector<int32_t> prompt = RandomPrompt(1000, 80);
  const auto cold = Run(Request(prompt));
  Restart(ReplayMode::kExact);
  FailReads(Unavailable("input/output error"));
  const auto miss = Run(Request(prompt));
  files_.set_fault({});
  ExpectSameAnswer(*miss, *cold);
  EXPECT_EQ(miss->Wait().counters.miss_reason, MissReason::kIoError);
  EXPECT_EQ(miss->Wait().counters.cached_tokens, 0);
}

TEST_F(StoredCache, AFullDiskDropsWritesAndNothingElse) {
  files_.set_fault([](const std::string& operation, const std::string& path) {
    const bool is_segment = path.find("/seg-") != std::string::npos;
    return operation == "write" && is_segment ? ResourceExhausted("no space") : OkStatus();
  });
  const std::vector<int32_t> prompt = RandomPrompt(1000, 81);
  const auto first = Run(Request(prompt));
  store_->Flush(false);
  EXPECT_GT(store_->counters().dropped_writes, 0);
  EXPECT_EQ(store_->Stats().blocks, 0);
  files_.set_fault({});
  // What was dropped is offered again by the next request that hits it in memory.
  ExpectSameAnswer(*Run(Request(prompt)), *first);
  store_->Flush(false);
  EXPECT_EQ(store_->Lookup(KeysOf(prompt), 0).blocks.size(), 7u);
}

class StoredTakeOver : public StoredCache {
 protected:
  // A request that another engine lost after some tokens, and what is left of its answer.
  void ExpectTail(const TokenCollector& want, size_t after, int32_t num_stored_blocks) {
    EngineRequest request = Request(prompt_, "moved");
    request.resume.emplace().ids.assign(want.ids().begin(),
                                        want.ids().begin() + static_cast<std::ptrdiff_t>(after));
    request.resume->num_stored_blocks = num_stored_blocks;
    TokenSink sink = rest_.Sink();
    const auto from = static_cast<int32_t>(after);
    ASSERT_TRUE(engine_
                    ->Submit(std::move(request),
                             [from, sink](TokenEvent event) {
                               event.start_index -= from;
                               sink(std::move(event));
                             })
                    .ok());
    if (before_the_end_) before_the_end_();
    rest_.Wait();
    const std::vector<int32_t> tail(want.ids().begin() + from, want.ids().end());
    EXPECT_EQ(rest_.ids(), tail);
  }

  const std::vector<int32_t> prompt_ = RandomPrompt(1000, 91);
  std::function<void()> before_the_end_;
  TokenCollector rest_;
};

TEST_F(StoredTakeOver, LoadsItsBlocksAndRunsOnlyWhatItsWindowsNeed) {
  const auto want = Run(Request(prompt_));
  Restart(ReplayMode::kExact);
  ExpectTail(*want, 3, 0);
  const EngineStatistics s = engine_->Statistics();
  EXPECT_EQ(s.store_loads, 1);
  EXPECT_EQ(s.resumes_rebuilt, 1);
  EXPECT_EQ(s.prefill_rows, 1002 - ExactRebuild());
  EXPECT_FALSE(rest_.Wait().counters.approximate_resume);
}

TEST_F(StoredTakeOver, GoesOnWithoutTheStoreWhenItFails) {
  const auto want = Run(Request(prompt_));
  Restart(ReplayMode::kExact);
  FailReads(Unavailable("input/output error"));
  ExpectTail(*want, 3, 0);
  files_.set_fault({});
  EXPECT_EQ(engine_->Statistics().prefill_rows, 1002);
}

TEST_F(StoredTakeOver, WaitsForBlocksThatAreOnTheirWayAndNotForever) {
  const auto want = Run(Request(prompt_));
  Restart(ReplayMode::kExact);
  // The last two never come.
  const std::vector<BlockKey> keys = KeysOf(prompt_);
  ASSERT_TRUE(store_->EraseKeys(std::span(keys).subspan(5)).ok());
  before_the_end_ = [&] {
    SpinUntil("a load", [&] { return engine_->Statistics().loading > 0; });
    EXPECT_EQ(engine_->Statistics().store_loads, 0) << "it waits";
    clock_.Advance(1'500'000);
  };
  ExpectTail(*want, 3, 7);
  const EngineStatistics s = engine_->Statistics();
  EXPECT_EQ(s.store_loads, 1);
  EXPECT_LT(s.prefill_rows, 1002);
}

TEST_F(StoredTakeOver, CancelEndsTheWait) {
  const auto want = Run(Request(prompt_));
  Restart(ReplayMode::kExact, 1);
  FailReads(OkStatus());
  gate_.Close();
  EngineRequest request = Request(prompt_, "moved");
  request.resume.emplace().ids = {want->ids()[0]};
  std::atomic<bool> cancelled{false};
  ASSERT_TRUE(
      engine_
          ->Submit(std::move(request),
                   [&](TokenEvent event) { cancelled = event.finish == FinishReason::kCancelled; })
          .ok());
  SpinUntil("a load", [&] { return engine_->Statistics().loading > 0; });
  engine_->Cancel("moved");
  SpinUntil("the end", [&] { return cancelled.load(); });
  gate_.Open();
  files_.set_fault({});
}

// Sequences that take turns, whose images and blocks are gone when they come back.
class StoredParking : public StoredCache {
 protected:
  static constexpr int64_t kNumRequests = 4;

  static std::vector<EngineRequest> Crowd() {
    std::vector<EngineRequest> crowd;
    for (uint32_t i = 0; i < kNumRequests; ++i) {
      crowd.push_back(StrictRequest(RandomPrompt(900, 95 + i), 260, i, std::to_string(i)));
    }
    return crowd;
  }
  // What they answer with room for all of them; then everything they wrote is on disk, and there is
  // room for two of the four prompts and little of their answers.
  void RunAloneAndRestart() {
    for (EngineRequest& request : Crowd()) alone_.push_back(Run(std::move(request)));
    adjust_ = [](EngineOptions* o) {
      o->kv_cache_tokens = 18 * 128;
      o->max_model_len = 1200;
      o->max_num_seqs = kNumRequests;
      o->swa_pool_bytes = 0;
    };
    Restart(ReplayMode::kExact);
  }
  void ExpectSameAnswers() {
    const auto together = RunTogether(Crowd());
    for (size_t i = 0; i < alone_.size(); ++i) {
      ExpectSameAnswer(*together[i], *alone_[i], "request " + std::to_string(i));
      EXPECT_FALSE(together[i]->Wait().counters.approximate_resume);
      ExpectIdentity(together[i]->Wait().counters);
    }
  }

  std::vector<std::unique_ptr<TokenCollector>> alone_;
};

TEST_F(StoredParking, WhatWasReclaimedMeanwhileComesFromTheStore) {
  RunAloneAndRestart();
  ExpectSameAnswers();
  const EngineStatistics s = engine_->Statistics();
  EXPECT_GT(s.resumes_rebuilt, 0);
  EXPECT_EQ(s.resumes_from_image, 0);
  // One for each prompt, and those of the sequences that came back.
  EXPECT_GT(s.store_loads, kNumRequests);
}

TEST_F(StoredParking, WhatTheStoreFailsToGiveRunsAgain) {
  RunAloneAndRestart();
  std::atomic<int64_t> failed{0};
  files_.set_fault([&](const std::string& operation, const std::string& path) {
    const bool is_segment = path.find("/seg-") != std::string::npos;
    if (operation != "read" || !is_segment || engine_->Statistics().parks == 0) return OkStatus();
    ++failed;
    return Unavailable("input/output error");
  });
  ExpectSameAnswers();
  files_.set_fault({});
  EXPECT_GT(failed, 0);
}

TEST_F(StoredCache, AStalledDiskIsGivenUpAtTheDeadlineAndItsPrefixKept) {
  const std::vector<int32_t> prompt = RandomPrompt(1000, 82);
  const auto cold = Run(Request(prompt));
  Restart(ReplayMode::kExact, 1);
  // The read of the third segment stalls.
  std::atomic<int> reads{0};
  files_.set_fault([&](const std::string& operation, const std::string& path) {
    if (operation == "read" && path.find("/seg-") != std::string::npos && ++reads > 2) {
      gate_.Pass();
    }
    return OkStatus();
  });
  gate_.Close();
  TokenCollector out;
  ASSERT_TRUE(engine_->Submit(Request(prompt), out.Sink()).ok());
  SpinUntil("three reads", [&] { return reads >= 3; });
  EXPECT_FALSE(out.done()) << "it waits for the load";
  SpinUntil("a load", [&] { return engine_->Statistics().loading > 0; });
  clock_.Advance(60'000'000);
  const RequestCounters c = out.Wait().counters;
  ExpectSameAnswer(out, *cold);
  ExpectIdentity(c);
  EXPECT_EQ(c.miss_reason, MissReason::kDeadline);
  EXPECT_EQ(OfTier(c, CacheTier::kDisk), ExactCached(768, 1000)) << "two segments had arrived";
  gate_.Open();
  engine_.reset();
  store_.reset();
  files_.set_fault({});
}

TEST_F(StoredCache, E09_CancelEndsALoad) {
  const std::vector<int32_t> prompt = RandomPrompt(1000, 83);
  Run(Request(prompt));
  Restart(ReplayMode::kExact, 1);
  FailReads(OkStatus());
  gate_.Close();
  TokenCollector out;
  ASSERT_TRUE(engine_->Submit(Request(prompt, "loads"), out.Sink()).ok());
  SpinUntil("a load", [&] { return engine_->Statistics().loading > 0; });
  engine_->Cancel("loads");
  EXPECT_EQ(out.Wait().finish, FinishReason::kCancelled);
  EXPECT_EQ(StatisticsWhenIdle(*engine_).loading, 0);
  gate_.Open();
  EXPECT_GT(Run(Request(prompt))->Wait().counters.cached_tokens, 0);
  files_.set_fault({});
}

TEST_F(StoredCache, EqualPromptsShareOneLoad) {
  const std::vector<int32_t> prompt = RandomPrompt(1000, 84);
  const auto cold = Run(Request(prompt));
  Restart(ReplayMode::kExact);
  std::vector<EngineRequest> requests;
  for (int i = 0; i < 3; ++i) requests.push_back(Request(prompt, std::to_string(i)));
  for (const auto& out : RunTogether(std::move(requests))) {
    ExpectSameAnswer(*out, *cold);
    EXPECT_EQ(out->Wait().counters.cached_tokens, ExactCached(896, 1000));
  }
  EXPECT_EQ(engine_->Statistics().store_loads, 1);
}

TEST_F(StoredCache, ShortPromptsAreNotLoaded) {
  const std::vector<int32_t> prompt = RandomPrompt(250, 85);
  Run(Request(prompt));
  Restart(ReplayMode::kExact);
  EXPECT_EQ(Run(Request(prompt))->Wait().counters.miss_reason, MissReason::kTooShort);
  EXPECT_EQ(engine_->Statistics().store_loads, 0);
}

TEST_F(StoredCache, EveryFileOfTheModelIsInTheNamespace) {
  const Model& model = *model_->get();
  const ModelFiles files;
  std::set<Sha256Digest> ids = {MakeKvNamespace(model, files).Id()};
  for (Sha256Digest ModelFiles::*file :
       {&ModelFiles::weights, &ModelFiles::tokenizer, &ModelFiles::config}) {
    ModelFiles other = files;
    (other.*file)[31] ^= 1;
    ids.insert(MakeKvNamespace(model, other).Id());
  }
  KvNamespace numerics = MakeKvNamespace(model, files);
  numerics.numerics_id += "x";
  ids.insert(numerics.Id());
  EXPECT_EQ(ids.size(), 5u);
}

TEST_F(StoredCache, AStoreOfAnotherLayoutIsRefused) {
  KvStoreOptions o;
  o.dir = "/other";
  o.layout = MakeBlockLayout(model_->get()->layout());
  o.layout.sections.pop_back();
  o.io_threads = 0;
  o.background_threads = false;
  auto other = KvStore::Open(o, &files_, &clock_, &wall_clock_);
  ASSERT_TRUE(other.ok()) << other.status().ToString();
  const auto engine = Engine::Create(model_->get(), {}, &clock_, nullptr, other->get());
  EXPECT_EQ(engine.status().code(), StatusCode::kInvalidRequest);
}

}  // namespace
}  // namespace deepinfer
