// A second process on a store that another one owns: it reads, and changes nothing (kv_format.md
// §21).
#include <gtest/gtest.h>

#include "support/kv_store_fixture.h"

namespace deepinfer {
namespace {

class ReadOnlyStore : public testing::Test, public KvStoreFixture {
 protected:
  void SetUp() override {
    Open();
    PublishChain(1, 9);
    store->Flush(true);
    PublishChain(2, 4);
    store->Flush(false);
    reader = OpenReader();
    ASSERT_NE(reader, nullptr);
  }
  void TearDown() override { reader.reset(); }

  std::unique_ptr<KvStore> OpenReader() {
    KvStoreOptions second = options;
    second.read_only_when_in_use = true;
    auto opened = KvStore::Open(second, files.get(), &clock, &wall_clock);
    EXPECT_TRUE(opened.ok()) << opened.status().ToString();
    return opened.ok() ? *std::move(opened) : nullptr;
  }
  void Follow() {
    clock.Advance(options.peer_scan_us);
    reader->RunPeers();
  }
  // Blocks that the reader loads, each with the right bytes.
  int64_t ReaderLoads(uint32_t chain, uint32_t count) {
    std::swap(store, reader);
    const int64_t loaded = LoadChain(chain, count);
    std::swap(store, reader);
    return loaded;
  }

  std::unique_ptr<KvStore> reader;
};

TEST_F(ReadOnlyStore, FindsWhatIsThereAndWhatComes) {
  EXPECT_TRUE(reader->read_only());
  EXPECT_FALSE(store->read_only());
  EXPECT_EQ(ReaderLoads(1, 9), 9);
  EXPECT_EQ(ReaderLoads(2, 4), 4) << "of an open segment";
  EXPECT_TRUE(reader->IsPeers(reader->Lookup(NumberedKeys(1, 1), 0).blocks.front()));
  PublishChain(3, 5);
  store->Flush(false);
  Follow();
  EXPECT_EQ(ReaderLoads(3, 5), 5);
  ASSERT_TRUE(store->EraseKeys(NumberedKeys(1, 9)).ok());
  Follow();
  EXPECT_EQ(ReaderLoads(1, 9), 0);
}

TEST_F(ReadOnlyStore, ChangesNothing) {
  const std::vector<std::string> before = files->Paths();
  files->set_fault([](const std::string& operation, const std::string& path) {
    const bool reads =
        operation == "read" || operation == "list" || operation == "stat" || operation == "open";
    EXPECT_TRUE(reads) << operation << " of " << path;
    return OkStatus();
  });
  PublishRequest request;
  request.key = NumberedKey(7, 0);
  EXPECT_EQ(reader->Publish(request, PayloadOfKey(options.layout, request.key)),
            PublishResult::kDroppedOff);
  reader->Touch(NumberedKeys(1, 9), RetentionClass::kPinned);
  EXPECT_EQ(reader->EraseKeys(NumberedKeys(1, 9)).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(reader->EraseTenant(1).status().code(), StatusCode::kUnsupported);
  reader->Flush(true);
  reader->RunWriter();
  EXPECT_TRUE(reader->RunJanitor().empty());
  EXPECT_TRUE(reader->Drain(clock.NowUs()));
  // Long enough for a dead owner's folders to be adopted, were they shared.
  for (int look = 0; look < 100; ++look) Follow();
  EXPECT_EQ(reader->Stats().queued_bytes, 0);
  reader.reset();
  files->set_fault({});
  EXPECT_EQ(files->Paths(), before);
  EXPECT_EQ(LoadChain(1, 9), 9);
}

TEST_F(ReadOnlyStore, AnErasureHoldsForABlockThatOnlyTheReaderKnows) {
  // The owner reads it wrongly once, and forgets it.
  const std::string path = store->context().segments.List()[0].path;
  std::byte& byte = files->At(path, options.layout.RecordOffset(0) + 300);
  byte ^= std::byte{1};
  EXPECT_EQ(LoadChain(1, 1), 0);
  byte ^= std::byte{1};
  ASSERT_FALSE(store->context().index.Contains(NumberedKey(1, 0)));
  EXPECT_EQ(ReaderLoads(1, 1), 1);
  EXPECT_EQ(*store->EraseKeys(NumberedKeys(1, 1)), 0);
  Follow();
  EXPECT_EQ(ReaderLoads(1, 1), 0);
}

TEST_F(ReadOnlyStore, DamageIsNotServedAndTheFileStaysTheOwners) {
  const std::string path = store->context().segments.List()[0].path;
  for (const int64_t record : {2, 5}) {
    files->At(path, options.layout.RecordOffset(record) + 300) ^= std::byte{1};
  }
  EXPECT_EQ(ReaderLoads(1, 9), 2);
  EXPECT_EQ(reader->counters().corrupt_records, 2);
  EXPECT_EQ(reader->counters().quarantined_segments, 1);
  const std::vector<std::string> paths = files->Paths();
  EXPECT_TRUE(std::ranges::find(paths, path) != paths.end());
}

TEST_F(ReadOnlyStore, StaysReadOnlyWhenTheOwnerLeavesAndTheNextOneOwns) {
  store.reset();
  EXPECT_EQ(ReaderLoads(1, 9), 9);
  Open();
  EXPECT_FALSE(store->read_only());
  PublishChain(5, 3);
  store->Flush(false);
  Follow();
  EXPECT_EQ(ReaderLoads(5, 3), 3);
  EXPECT_EQ(ReaderLoads(1, 9), 9);
}

TEST_F(ReadOnlyStore, WithoutTheOptionASecondProcessIsRefused) {
  const auto refused = KvStore::Open(options, files.get(), &clock, &wall_clock);
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace deepinfer
