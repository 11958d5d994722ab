// Files of a store that are damaged, whole or in part: nothing of them is served, and nothing
// stays.
#include <gtest/gtest.h>

#include "kvcache/segment_file.h"
#include "support/changed_reads.h"
#include "support/kv_store_fixture.h"

namespace deepinfer {
namespace {

class DamagedStoreTest : public testing::Test, public KvStoreFixture {
 protected:
  void SetUp() override { Open(); }
  void TearDown() override {
    // Stores end before what they borrow.
    store.reset();
    killed.clear();
  }
  // The store that was open hangs, and its disk takes nothing more of it: the next one is opened on
  // a copy, whose reads can be changed.
  void KillAndOpenChanged(const std::function<void(ChangedReads*)>& change) {
    std::mt19937 random(1);
    auto image = files->PowerCut(&random);
    killed.push_back(std::move(store));
    killed_files.push_back(std::move(files));
    files = std::move(image);
    changed.push_back(std::make_unique<ChangedReads>(files.get()));
    change(changed.back().get());
    auto opened = KvStore::Open(options, changed.back().get(), &clock, &wall_clock);
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    store = *std::move(opened);
    changed.back()->set_change(nullptr);
  }
  std::vector<std::string> Quarantined() {
    std::vector<std::string> paths = files->Paths();
    std::erase_if(paths, [](const std::string& path) { return !path.ends_with(".bad"); });
    return paths;
  }

  std::vector<std::unique_ptr<MemoryFileSystem>> killed_files;
  std::vector<std::unique_ptr<ChangedReads>> changed;
  std::vector<std::unique_ptr<KvStore>> killed;
};

TEST_F(DamagedStoreTest, AnOpenSegmentKeepsWhatABadReadHides) {
  PublishChain(1, 9);
  store->Flush(false);
  for (const int64_t record : {0, 4}) {
    SCOPED_TRACE(record);
    // A header that fails its check however often it is read.
    KillAndOpenChanged([&](ChangedReads* reads) {
      reads->FlipAt(".open", options.layout.RecordOffset(record) + 40, 1000);
    });
    EXPECT_EQ(LoadChain(1, 9), 9);
    Open();
    EXPECT_EQ(LoadChain(1, 9), 9);
    // And as an open one of the next life.
    PublishChain(2, 9);
    store->Flush(false);
  }
}

TEST_F(DamagedStoreTest, ADamagedRecordOfAnOpenSegmentCostsItselfOnly) {
  PublishChain(1, 9);
  store->Flush(false);
  KillAndOpenChanged([&](ChangedReads*) {
    for (const std::string& path : files->Paths()) {
      if (path.ends_with(".open")) {
        files->At(path, options.layout.RecordOffset(4) + 40) ^= std::byte{1};
      }
    }
  });
  EXPECT_EQ(LoadChain(1, 9), 4);
  EXPECT_EQ(store->counters().corrupt_records, 1);
  EXPECT_EQ(store->Lookup(NumberedKeys(1, 9), 65535).blocks.size(), 4u);
  EXPECT_TRUE(store->context().index.Contains(NumberedKey(1, 8)));
}

TEST_F(DamagedStoreTest, AFooterIsMadeAgainFromTheLogAroundADamagedRecord) {
  PublishChain(1, 14);
  store->Flush(true);
  const std::string path = SegmentPaths().at(0);
  files->At(path, options.layout.RecordOffset(3) + 40) ^= std::byte{1};
  files->At(path, options.layout.footer_offset() + 70) ^= std::byte{1};
  for (int start = 0; start < 2; ++start) {
    Open();
    EXPECT_EQ(store->Stats().blocks, 14);
    EXPECT_EQ(store->counters().sealed_segments, start == 0 ? 1 : 0);
  }
  EXPECT_EQ(LoadChain(1, 14), 3);
  EXPECT_TRUE(store->context().index.Contains(NumberedKey(1, 13)));
}

TEST_F(DamagedStoreTest, PlacesThatNobodyCanNameAreLeftOut) {
  PublishChain(1, 3);
  files->set_fault([](const std::string& operation, const std::string& path) {
    return operation == "write" && path.ends_with("index.log") ? Unavailable("EIO") : OkStatus();
  });
  store->Flush(false);  // on disk, and given up
  files->set_fault(nullptr);
  PublishChain(2, 3);
  store->Flush(false);
  const std::string open = SegmentPaths().at(0);
  KillAndOpenChanged(
      [&](ChangedReads*) { files->At(open, options.layout.RecordOffset(1) + 40) ^= std::byte{1}; });
  EXPECT_EQ(LoadChain(2, 3), 3);
  EXPECT_EQ(LoadChain(1, 3), 1);
  EXPECT_EQ(store->Stats().blocks, 5);
  Open();
  EXPECT_EQ(LoadChain(2, 3), 3);
  EXPECT_EQ(store->Stats().blocks, 5);
}

TEST_F(DamagedStoreTest, ATornSuperblockIsMadeAgain) {
  PublishChain(1, 14);
  store->Flush(true);
  const std::string path = SegmentPaths().at(0);
  const uint64_t bucket = store->context().segments.List().at(0).superblock.bucket_hour;
  const int64_t capacity_offset = 24;
  // The bucket, the checksum, what says what the segment is, when it was made.
  for (const int64_t offset : {int64_t{88}, int64_t{4093}, capacity_offset, int64_t{81}}) {
    SCOPED_TRACE(offset);
    store.reset();
    files->At(path, offset) ^= std::byte{1};
    for (int start = 0; start < 2; ++start) {
      Open();
      EXPECT_EQ(LoadChain(1, 14), 14);
      EXPECT_EQ(store->counters().repaired_segments, start == 0 ? 1 : 0);
      EXPECT_EQ(store->context().segments.List().at(0).superblock.bucket_hour, bucket);
    }
    EXPECT_TRUE(Quarantined().empty());
  }
}

TEST_F(DamagedStoreTest, ARepairedSegmentOutlivesNoDeadlineOfItsOwn) {
  PublishRequest brief;
  brief.max_lifetime_hours = 10;
  PublishChain(1, 9, brief);
  store->Flush(true);
  files->At(SegmentPaths().at(0), 88) ^= std::byte{1};
  Open();
  EXPECT_EQ(store->counters().repaired_segments, 0);
  EXPECT_EQ(LoadChain(1, 9), 0);
  EXPECT_EQ(Quarantined().size(), 1u);
}

TEST_F(DamagedStoreTest, SegmentsThatSeemBlankOrBrokenForAMomentStay) {
  PublishChain(1, 9);
  store->Flush(false);
  // Twice a broken superblock, then a file that seems to end at once.
  int reads = 0;
  KillAndOpenChanged([&](ChangedReads* changes) {
    changes->set_change([&](const std::string& path, int64_t offset, std::span<std::byte> bytes) {
      if (!path.ends_with(".open") || offset != 0) return bytes.size();
      if (++reads <= kReadTries + 1) bytes[40] ^= std::byte{1};
      return reads == kReadTries + 2 ? size_t{0} : bytes.size();
    });
  });
  EXPECT_GT(reads, 0);
  EXPECT_EQ(std::ranges::count_if(
                files->Paths(),
                [](const std::string& path) { return path.find("/seg-") != std::string::npos; }),
            1);
}

TEST_F(DamagedStoreTest, SegmentsThatCannotBeReadForAMomentAreLoadedLater) {
  PublishChain(1, 14);
  store->Flush(true);
  store.reset();
  int reads_to_fail = kReadTries + 1;
  files->set_fault([&](const std::string& operation, const std::string& path) {
    if (operation != "read" || !path.ends_with(".seg")) return OkStatus();
    return reads_to_fail-- > 0 ? Unavailable("a bad moment") : OkStatus();
  });
  Open();
  EXPECT_EQ(LoadChain(1, 14), 14);
  EXPECT_EQ(store->counters().foreign_segments, 0);
}

TEST_F(DamagedStoreTest, LiveBlocksStayWhenTheFooterCannotBeReadAtExpiry) {
  PublishChain(1, 14);
  store->Flush(true);
  PassHours(100);
  store->Touch(NumberedKeys(1, 5), RetentionClass::kChat);
  // The first record, too: nothing behind it would be found by a scan alone.
  const std::string path = SegmentPaths().at(0);
  files->At(path, options.layout.footer_offset() + 70) ^= std::byte{1};
  files->At(path, options.layout.RecordOffset(6) + 40) ^= std::byte{1};
  files->At(path, 88) ^= std::byte{1};
  PassHours(81);
  RunJanitorToTheEnd();
  EXPECT_EQ(LoadChain(1, 5), 5);
  EXPECT_EQ(store->counters().copied_blocks, 5);
  for (const auto& breaches : store->counters().retention_breaches) EXPECT_EQ(breaches, 0);
}

TEST_F(DamagedStoreTest, DamagedRecordsAreNeverServedAndCounted) {
  PublishChain(1, 10);
  store->Flush(true);
  const std::string path = SegmentPaths()[0];
  // Block 4: a byte of its second section.
  files->At(path, options.layout.RecordOffset(4) + 256 + 200) ^= std::byte{1};
  EXPECT_EQ(LoadChain(1, 10), 4);
  EXPECT_EQ(store->counters().corrupt_records, 1);
  EXPECT_EQ(store->Lookup(NumberedKeys(1, 10), 65535).blocks.size(), 4u);
  // The next request computes it again and stores it.
  EXPECT_EQ(Publish(1, 4), PublishResult::kQueued);
  store->Flush(false);
  EXPECT_EQ(LoadChain(1, 10), 10);
}

TEST_F(DamagedStoreTest, TwoDamagedRecordsPutTheSegmentIntoQuarantine) {
  PublishChain(1, 10);
  store->Flush(true);
  const std::string path = SegmentPaths()[0];
  files->At(path, options.layout.RecordOffset(3) + 300) ^= std::byte{1};
  files->At(path, options.layout.RecordOffset(7) + 300) ^= std::byte{1};
  EXPECT_EQ(LoadChain(1, 10), 3);
  EXPECT_EQ(store->counters().quarantined_segments, 1);
  EXPECT_EQ(LoadChain(1, 3), 0);
  Open();
  EXPECT_EQ(LoadChain(1, 3), 0);
}

TEST_F(DamagedStoreTest, AWriterLeavesASegmentInQuarantineAndLosesNoBlockInIt) {
  PublishChain(1, 5);
  store->Flush(false);
  const std::string open = SegmentPaths().at(0);
  files->At(open, options.layout.RecordOffset(0) + 300) ^= std::byte{1};
  EXPECT_EQ(LoadChain(1, 5), 0);
  Publish(1, 0);  // has left the index
  store->Flush(false);
  files->At(open, options.layout.RecordOffset(1) + 300) ^= std::byte{1};
  EXPECT_EQ(LoadChain(1, 5), 1);
  ASSERT_EQ(store->counters().quarantined_segments, 1);
  // Space is short while a writer still holds it.
  (void)store->janitor()->FreeSpace(1.0, false);
  PublishChain(2, 5);
  store->Flush(false);
  EXPECT_EQ(LoadChain(2, 5), 5);
  RunJanitorToTheEnd();
  store->Flush(true);
  PassHours(400);
  RunJanitorToTheEnd();
  EXPECT_EQ(store->Stats().blocks, 0);
  EXPECT_EQ(store->Stats().segments, 0);
}

TEST_F(DamagedStoreTest, ABrokenRecordWithoutAFooterHidesNoEntryFromExpiry) {
  PublishRequest request;
  request.tenant_tag = 7;
  PublishChain(1, 9, request);
  store->Flush(false);
  files->set_fault([](const std::string& operation, const std::string&) {
    return operation == "write" ? Unavailable("the disk is full") : OkStatus();
  });
  store->Flush(true);  // not sealed
  files->set_fault({});
  ASSERT_EQ(store->Stats().blocks, 9);
  // The records behind it cannot be found by a scan.
  files->At(SegmentPaths().at(0), options.layout.RecordOffset(3) + 8) ^= std::byte{1};
  store->Touch(NumberedKeys(1, 9), RetentionClass::kChat);
  PassHours(400);
  RunJanitorToTheEnd();
  EXPECT_TRUE(SegmentPaths().empty());
  EXPECT_EQ(store->Stats().blocks, 0);
  EXPECT_EQ(store->context().BytesByTenant().at(7), 0);
}

TEST_F(DamagedStoreTest, ASegmentWhoseWriterDiedBeforeItWroteLeaves) {
  PublishChain(1, 14);
  store->Flush(true);
  const std::string folder = store->context().segments.List()[0].folder;
  store.reset();
  const std::string blank = folder + "/" + SegmentFileName(99, "open");
  auto file = files->Open(blank, OpenMode::kCreate, false);
  ASSERT_TRUE(file.ok() && (*file)->Allocate(options.layout.segment_bytes()).ok());
  Open();
  EXPECT_EQ(store->counters().quarantined_segments, 0);
  EXPECT_FALSE(files->Stat(blank).ok());
  EXPECT_FALSE(files->Stat(folder + "/" + SegmentFileName(99, "bad")).ok());
  EXPECT_EQ(LoadChain(1, 14), 14);
}

}  // namespace
}  // namespace deepinfer
