// Lives of a store on a disk that fails and lies (kv_format.md §18): whatever happens, no wrong
// byte is served, nothing stays held, and what was lost is counted.
//
// DEEPINFER_KV_FAULTS sets how many faults are injected, DEEPINFER_KV_FIRST_LIFE the life to begin
// with.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <random>
#include <set>

#include "base/log.h"
#include "kvcache/segment_file.h"
#include "kvcache/store_folders.h"
#include "support/fault_file_system.h"
#include "support/kv_store_fixture.h"

namespace deepinfer {
namespace {

constexpr uint32_t kNumChains = 24;
constexpr uint32_t kChainLength = 9;
constexpr int kStepsPerLife = 600;
constexpr int64_t kUsPerHour = int64_t{3600} * 1'000'000;
constexpr int64_t kLoadDeadlineUs = 1'000'000;
// Longer than any pause of a breaker and any time to live.
constexpr int64_t kForeverHours = 24 * 365;

// A second or two.
constexpr int64_t kFaultsByDefault = 10'000;

int64_t Setting(const char* name, int64_t by_default) {
  const char* text = std::getenv(name);
  return text == nullptr ? by_default : std::atoll(text);
}

// Sections that leave no gap: bytes between sections mean nothing, and nothing guards them.
KvBlockLayout GaplessLayout() {
  KvBlockLayout layout = SmallLayout();
  layout.sections = {{2, 4, 48, 16}, {20, 8, 36, 12}};
  return layout;
}

// Keys and their bytes, computed once.
struct Reference {
  std::map<uint32_t, std::vector<BlockKey>> keys;
  std::map<BlockKey, std::vector<std::byte>> payloads;

  Reference() {
    for (uint32_t chain = 0; chain < kNumChains; ++chain) {
      keys[chain] = NumberedKeys(chain, kChainLength);
      for (const BlockKey& key : keys[chain]) {
        payloads[key] = PayloadOfKey(GaplessLayout(), key);
      }
    }
  }
};

struct Tally {
  int64_t loads = 0;
  int64_t partial_loads = 0;
  int64_t blocks = 0;
  int64_t starts = 0;
  int64_t failed_starts = 0;
  int64_t power_cuts = 0;
};

class FaultyLife : public KvStoreFixture {
 public:
  FaultyLife(const Reference* reference, uint32_t seed, Tally* tally)
      : faults(files.get(), &clock, seed), reference_(reference), tally_(tally), dice_(seed) {
    options.layout = GaplessLayout();
    options.space_bytes = 40 * options.layout.segment_bytes();
    options.shared = seed % 3 == 0;
    options.boot_id = "one boot";
    options.quotas.each.all_bytes = 300 * options.layout.record_bytes();
    // Mostly healthy disks with a bad moment, and disks that do little else.
    per_mille_ = std::array<uint32_t, 4>{10, 60, 150, 350}[seed % 4];
    Start();
  }
  ~FaultyLife() { store.reset(); }

  void Run() {
    for (int step = 0; step < kStepsPerLife; ++step) {
      faults.set_per_mille(per_mille_);
      Act(dice_() % 100);
      if (testing::Test::HasFailure()) return;
    }
    End();
  }

  FaultFileSystem faults;

 private:
  uint32_t AnyChain() { return static_cast<uint32_t>(dice_() % kNumChains); }

  void Act(uint32_t draw) {
    if (draw < 30) return PublishSome();
    if (draw < 60) return LoadSome();
    if (draw < 70) return store->Flush(dice_() % 4 == 0);
    if (draw < 76) {
      clock.Advance(options.group_commit_us);
      return store->RunWriter();
    }
    if (draw < 82) {
      return store->Touch(reference_->keys.at(AnyChain()), RetentionClass::kAgent);
    }
    if (draw < 85) return EraseSome();
    if (draw < 94) {
      const auto hours = static_cast<int64_t>(dice_() % 30);
      clock.Advance(hours * kUsPerHour);
      wall_clock.AdvanceHours(hours);
      store->RunJanitor();
      if (options.shared) store->RunPeers();
      return;
    }
    if (draw < 97) {
      store.reset();
    } else {
      CutPower();
    }
    Start();
  }

  void Start() {
    ++tally_->starts;
    // The first thing in a new folder decides what belongs to it: an operator would look at it.
    ASSERT_TRUE(PrepareNamespace(files.get(), options.dir, options.namespace_id, "").ok());
    auto opened = KvStore::Open(options, &faults, &clock, &wall_clock);
    if (!opened.ok()) {
      ++tally_->failed_starts;
      faults.set_per_mille(0);
      opened = KvStore::Open(options, &faults, &clock, &wall_clock);
    }
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    store = *std::move(opened);
  }

  void CutPower() {
    ++tally_->power_cuts;
    auto image = files->PowerCut(&dice_);
    store.reset();
    files = std::move(image);
    faults.set_under(files.get());
  }

  void PublishSome() {
    const uint32_t chain = AnyChain();
    PublishRequest request;
    request.retention = static_cast<RetentionClass>(dice_() % 3);
    request.tenant_tag = 1 + dice_() % 3;
    request.replay_gen = static_cast<uint16_t>(dice_() % 3);
    request.replace_above_gen = static_cast<uint16_t>(dice_() % 3);
    for (uint32_t block = 0; block < kChainLength; ++block) {
      request.key = reference_->keys.at(chain)[block];
      request.block_number = block;
      if (block > 0) request.parent = reference_->keys.at(chain)[block - 1];
      (void)store->Publish(request, reference_->payloads.at(request.key));
    }
  }

  void LoadSome() {
    auto found = store->Lookup(reference_->keys.at(AnyChain()), 65535).blocks;
    if (found.empty()) return;
    const auto wanted = static_cast<int64_t>(found.size());
    const std::vector<BlockRequest> blocks = found;
    const int64_t corrupt = store->counters().corrupt_records;
    const int64_t errors = store->counters().read_errors;
    const auto load = store->BeginLoad(std::move(found), clock.NowUs() + kLoadDeadlineUs);
    const int64_t loaded = load->Poll(clock.NowUs());
    ++tally_->loads;
    tally_->blocks += loaded;
    for (int64_t block = 0; block < loaded; ++block) {
      const BlockKey& key = blocks[static_cast<size_t>(block)].key;
      ASSERT_TRUE(std::ranges::equal(load->Payload(block), reference_->payloads.at(key)))
          << "wrong bytes were served";
    }
    EXPECT_TRUE(load->done());
    EXPECT_EQ(store->Stats().reads_in_flight, 0);
    if (loaded == wanted) return;
    ++tally_->partial_loads;
    switch (load->failure()) {
      case MissReason::kCorrupt:
        EXPECT_GT(store->counters().corrupt_records, corrupt);
        break;
      case MissReason::kIoError:
        EXPECT_GT(store->counters().read_errors, errors);
        break;
      default:
        EXPECT_TRUE(load->failure() == MissReason::kAbsent ||
                    load->failure() == MissReason::kBreaker)
            << MissReasonName(load->failure());
    }
  }

  void EraseSome() {
    const auto& keys = reference_->keys.at(AnyChain());
    (void)store->EraseKeys(keys);
    store->Flush(false);
    EXPECT_TRUE(store->Lookup(keys, 65535).blocks.empty()) << "an erased block is offered";
  }

  // With a sound disk again: everything still there is right, and no entry stays for ever.
  void End() {
    faults.set_per_mille(0);
    LetEverythingExpire();
    store.reset();
    Start();
    PublishSome();
    for (int i = 0; i < 40; ++i) LoadSome();
    store->Flush(true);
    ExpectAccounts();
    LetEverythingExpire();
    store.reset();
    EXPECT_EQ(faults.num_handles(), 0);
    for (const std::string& path : files->Paths()) {
      const std::string name = path.substr(path.rfind('/') + 1);
      EXPECT_FALSE(ParseSegmentFileName(name)) << path << " stays for ever";
    }
  }

  void LetEverythingExpire() {
    for (int round = 0; round < 8; ++round) {
      clock.Advance(kForeverHours * kUsPerHour);
      wall_clock.AdvanceHours(kForeverHours);
      files->AdvanceClock(kForeverHours * kNsPerHour);
      // In a shared store folders that earlier lives had adopted are adopted again.
      if (options.shared) store->RunPeers();
      store->RunJanitor();
      store->Flush(true);
    }
    ExpectAccounts();
    EXPECT_EQ(store->Stats().blocks, 0);
    EXPECT_EQ(store->Stats().segments, 0);
  }

  void ExpectAccounts() {
    const KvStoreStats stats = store->Stats();
    EXPECT_EQ(stats.queued_bytes, 0);
    int64_t charged = 0;
    for (const auto& [tag, bytes] : store->context().BytesByTenant()) charged += bytes;
    EXPECT_EQ(charged, stats.blocks * options.layout.record_bytes());
  }

  const Reference* reference_;
  Tally* tally_;
  std::mt19937 dice_;
  uint32_t per_mille_ = 0;
};

TEST(KvStoreFaults, NoFaultServesAWrongByteOrLeavesAnythingHeld) {
  const int64_t wanted = Setting("DEEPINFER_KV_FAULTS", kFaultsByDefault);
  // Every fault has its line.
  InitLogging(LogLevel::kOff, LogFormat::kText);
  const Reference reference;
  Tally tally;
  std::array<int64_t, kNumFaultKinds> by_kind{};
  int64_t injected = 0;
  for (auto seed = static_cast<uint32_t>(Setting("DEEPINFER_KV_FIRST_LIFE", 0)); injected < wanted;
       ++seed) {
    SCOPED_TRACE("life " + std::to_string(seed));
    FaultyLife life(&reference, seed, &tally);
    life.Run();
    if (testing::Test::HasFailure()) return;
    injected += life.faults.num_faults();
    for (size_t kind = 0; kind < kNumFaultKinds; ++kind)
      by_kind[kind] += life.faults.counts()[kind];
  }
  for (const int64_t count : by_kind) EXPECT_GT(count, 0) << "a kind of fault never happened";
  // Lives in which nothing was ever stored would prove nothing.
  EXPECT_GT(tally.blocks, tally.loads);
  EXPECT_GT(tally.partial_loads, 0);
  RecordProperty("faults", std::to_string(injected));
  std::printf(
      "%ld faults, %ld power cuts, %ld starts (%ld only without faults), %ld loads (%ld in "
      "part) of %ld blocks\n",
      injected, tally.power_cuts, tally.starts, tally.failed_starts, tally.loads,
      tally.partial_loads, tally.blocks);
}

}  // namespace
}  // namespace deepinfer
