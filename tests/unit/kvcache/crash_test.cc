// Power cuts and dead disks at every operation: what comes back is right, and what was committed
// comes back.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "support/kv_store_fixture.h"

namespace deepinfer {
namespace {

constexpr int64_t kHourUs = int64_t{3600} * 1'000'000;
constexpr uint32_t kChainLength = 9;

// A life of a store: writes, commits, seals, expiry and erasure; `committed` gets the blocks that a
// completed commit covers, `erased` those that a completed erasure covers.
class Life : public KvStoreFixture {
 public:
  // Every operation after this many that change the disk fails: the power is gone.
  void LoseTheDiskAfter(int64_t num_changes) {
    files->set_fault([this, num_changes](const std::string& operation, const std::string&) {
      if (operation == "read" || operation == "stat" || operation == "list") return OkStatus();
      if (num_changes_ >= num_changes) return Unavailable("the disk is gone");
      ++num_changes_;
      return OkStatus();
    });
    limit_ = num_changes;
  }
  bool disk_gone() const { return num_changes_ >= limit_; }
  int64_t num_changes() const { return num_changes_; }

  Life() {
    // Three pages a record, so that a record can be torn.
    options.layout.sections = {{2, 32, 200, 50}};
    options.layout.segment_pages = 48;
  }

  void Run() {
    auto opened = KvStore::Open(options, files.get(), &clock, &wall_clock);
    if (!opened.ok()) return;
    store = *std::move(opened);
    for (uint32_t chain = 1; chain <= 3; ++chain) CommitChain(chain, false);
    CommitChain(4, true);
    const auto erased_keys = NumberedKeys(2, kChainLength);
    const auto count = store->EraseKeys(erased_keys);
    if (count.ok() && !disk_gone()) erased.insert(2);
    clock.Advance(181 * kHourUs);
    wall_clock.AdvanceHours(181);
    store->Touch(NumberedKeys(1, 4), RetentionClass::kChat);
    CommitChain(5, false);
    for (int round = 0; round < 3; ++round) {
      store->RunJanitor();
      store->Flush(false);
    }
    CommitChain(6, true);
  }

  std::map<uint32_t, bool> committed;
  std::set<uint32_t> erased;

 private:
  void CommitChain(uint32_t chain, bool seal) {
    PublishChain(chain, kChainLength);
    store->Flush(seal);
    if (!disk_gone()) committed[chain] = true;
  }

  int64_t num_changes_ = 0;
  int64_t limit_ = INT64_MAX;
};

// Opens the image and compares every block.
void ExpectRightBytes(Life* life, std::unique_ptr<MemoryFileSystem> image, int64_t cut) {
  life->store.reset();
  life->files = std::move(image);
  life->Open();
  const bool expired = life->committed.contains(6);  // the janitor ran
  for (uint32_t chain = 1; chain <= 6; ++chain) {
    const int64_t loaded = life->LoadChain(chain, kChainLength);
    if (life->erased.contains(chain)) {
      EXPECT_EQ(loaded, 0) << "erased chain came back, cut " << cut;
    } else if (life->committed.contains(chain) && chain >= 5) {
      EXPECT_EQ(loaded, int64_t{kChainLength}) << "chain " << chain << ", cut " << cut;
    } else if (life->committed.contains(chain) && !expired && chain != 2 &&
               !life->committed.contains(5)) {
      EXPECT_EQ(loaded, int64_t{kChainLength}) << "chain " << chain << ", cut " << cut;
    }
  }
}

TEST(KvStoreCrash, CommittedBlocksSurviveAPowerCutAtAnyOperation) {
  Life whole;
  whole.LoseTheDiskAfter(INT64_MAX);
  whole.Run();
  ASSERT_GT(whole.num_changes(), 50);
  ASSERT_EQ(whole.LoadChain(6, kChainLength), int64_t{kChainLength});
  for (int64_t cut = 0; cut <= whole.num_changes(); ++cut) {
    std::mt19937 random(static_cast<uint32_t>(cut));
    for (int image = 0; image < 3; ++image) {
      Life life;
      life.LoseTheDiskAfter(cut);
      life.Run();
      ExpectRightBytes(&life, life.files->PowerCut(&random), cut);
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(KvStoreCrash, ASecondPowerCutDuringRecoveryLosesNothingMore) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    Life life;
    life.LoseTheDiskAfter(20 + seed);
    life.Run();
    life.store.reset();
    const auto committed = life.committed;
    auto image = life.files->PowerCut(&random);
    // Recovery itself is cut off.
    Life second;
    second.committed = committed;
    second.files = std::move(image);
    second.LoseTheDiskAfter(static_cast<int64_t>(random() % 12));
    auto opened =
        KvStore::Open(second.options, second.files.get(), &second.clock, &second.wall_clock);
    if (opened.ok()) opened->reset();
    auto after = second.files->PowerCut(&random);
    second.files = std::move(after);
    second.Open();
    for (uint32_t chain = 1; chain <= 6; ++chain) {
      const int64_t loaded = second.LoadChain(chain, kChainLength);
      if (committed.contains(chain) && chain != 2 && !committed.contains(4)) {
        EXPECT_EQ(loaded, int64_t{kChainLength}) << "chain " << chain << " seed " << seed;
      }
    }
  }
}

TEST(KvStoreCrash, OneFlippedByteAnywhereIsNeverServed) {
  // Offsets inside a segment: superblock, each part of a record, footer entries, footer trailer.
  const KvBlockLayout layout = SmallLayout();
  std::vector<int64_t> offsets = {0, 9, 40, 95, 150, 4093};
  for (const int64_t in_record :
       {0,   8,   12,  33,  70,  81,  90,        97,        105,       121,      130,
        193, 230, 253, 256, 300, 700, 256 + 576, 256 + 580, 256 + 590, 256 + 600}) {
    offsets.push_back(layout.RecordOffset(2) + in_record);
  }
  for (const int64_t in_footer : {0, 33, 58, 62, 64 * 3 + 5, 4096 - 64, 4096 - 50, 4096 - 2}) {
    offsets.push_back(layout.footer_offset() + in_footer);
  }
  for (const int64_t offset : offsets) {
    KvStoreFixture fixture;
    fixture.Open();
    fixture.PublishChain(1, kChainLength);
    fixture.store->Flush(true);
    const std::string path = fixture.store->context().segments.List()[0].path;
    fixture.store.reset();
    fixture.files->At(path, offset) ^= std::byte{0x10};
    fixture.Open();
    // LoadChain compares the bytes of whatever it gets.
    for (uint32_t block = 0; block < kChainLength; ++block) {
      const auto found = fixture.store->context().index.Find(NumberedKey(1, block));
      if (!found) continue;
      const auto load = fixture.store->BeginLoad({{NumberedKey(1, block), block, *found}}, 1 << 30);
      if (load->Poll(0) == 0) continue;
      EXPECT_TRUE(std::ranges::equal(load->Payload(0), PayloadOfKey(layout, NumberedKey(1, block))))
          << "offset " << offset << " block " << block;
    }
    const StoreCounters& counters = fixture.store->counters();
    // The zero word of the trailer is the only byte here that means nothing.
    const bool harmless = offset == layout.RecordOffset(2) + 256 + 590;
    const int64_t noticed = counters.corrupt_records + counters.quarantined_segments +
                            counters.foreign_segments + counters.sealed_segments +
                            counters.repaired_segments;
    EXPECT_EQ(noticed > 0, !harmless) << "offset " << offset;
  }
}

TEST(KvStoreCrash, DamagedIndexLogsCostNoBlockAndServeNoWrongOne) {
  for (const int64_t offset : {0, 35, 45, 59, 63, 64, 200}) {
    KvStoreFixture fixture;
    fixture.Open();
    fixture.PublishChain(1, kChainLength);
    fixture.store->Flush(true);
    const std::string folder = fixture.store->context().segments.List()[0].folder;
    fixture.store.reset();
    fixture.files->At(folder + "/index.log", offset) ^= std::byte{1};
    fixture.Open();
    EXPECT_EQ(fixture.LoadChain(1, kChainLength), int64_t{kChainLength}) << offset;
  }
}

}  // namespace
}  // namespace deepinfer
