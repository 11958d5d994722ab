// Files of a store that are damaged, whole or in part: nothing of them is served, and nothing
// stays.
#include <gtest/gtest.h>

#include "kvcache/segment_file.h"
#include "support/kv_store_fixture.h"

namespace deepinfer {
namespace {

class DamagedStoreTest : public testing::Test, public KvStoreFixture {
 protected:
  void SetUp() override { Open(); }
};

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
  EXPECT_EQ(store->context().tenants.Bytes().at(7), 0);
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
