// Logs that are read wrongly, or damaged: entries that a later read finds stay, and an erased block
// never comes back.
#include <gtest/gtest.h>

#include "kvcache/index_log.h"
#include "support/changed_reads.h"
#include "support/kv_store_fixture.h"

namespace deepinfer {
namespace {

constexpr char kFolder[] = "/kv";
constexpr int64_t kEntryBytes = sizeof(IndexEntry);

class IndexLogTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(files.MakeDirectory(kFolder).ok());
    auto log = IndexLog::Open(&files, kFolder);
    ASSERT_TRUE(log.ok());
    for (uint32_t i = 0; i < 10; ++i) ASSERT_TRUE((*log)->Append({{AddOf(i)}}).ok());
  }

  static IndexEntry AddOf(uint32_t number) {
    IndexEntry entry;
    entry.key = NumberedKey(1, number);
    entry.op = static_cast<uint8_t>(IndexOp::kAdd);
    entry.segment_number = 1;
    entry.page = 1 + number;
    entry.Seal();
    return entry;
  }

  // What the log tells a reader whose disk is sound.
  std::vector<uint32_t> PagesRead() {
    std::vector<uint32_t> pages;
    const auto log = ReadIndexLog(&files, kFolder);
    for (const IndexEntry& entry : log->entries) pages.push_back(entry.page);
    return pages;
  }

  MemoryFileSystem files;
  ChangedReads changed{&files};
};

TEST_F(IndexLogTest, AppendsGoBehindWhatABadReadHides) {
  changed.FlipAt("index.log", 3 * kEntryBytes + 5, 1000);
  auto log = IndexLog::Open(&changed, kFolder);
  ASSERT_TRUE(log.ok());
  ASSERT_TRUE((*log)->Append({{AddOf(10)}}).ok());
  EXPECT_EQ(PagesRead(), (std::vector<uint32_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
}

TEST_F(IndexLogTest, ABadMomentIsReadAgain) {
  changed.FlipAt("index.log", 3 * kEntryBytes + 5, 1);
  const auto log = ReadIndexLog(&changed, kFolder);
  ASSERT_TRUE(log.ok());
  EXPECT_EQ(log->entries.size(), 10u);
  EXPECT_EQ(log->extent.num_damaged, 0);
}

TEST_F(IndexLogTest, EntriesBehindADamagedOneAreRead) {
  files.At("/kv/index.log", 3 * kEntryBytes + 5) ^= std::byte{1};
  const auto log = ReadIndexLog(&files, kFolder);
  ASSERT_TRUE(log.ok());
  EXPECT_EQ(log->entries.size(), 9u);
  EXPECT_EQ(log->extent.num_damaged, 1);
  EXPECT_EQ(log->extent.end_bytes, 10 * kEntryBytes);
}

TEST_F(IndexLogTest, AReadThatEndsEarlyIsNoEndOfTheLog) {
  int reads = 0;
  changed.set_change([&](const std::string&, int64_t, std::span<std::byte> bytes) {
    return ++reads == 1 ? bytes.size() / 2 + 7 : bytes.size();
  });
  EXPECT_EQ(ReadIndexLog(&changed, kFolder)->entries.size(), 10u);
  // One that always does says nothing about the log, and nothing is written to it.
  changed.set_change([](const std::string&, int64_t, std::span<std::byte>) { return size_t{0}; });
  EXPECT_EQ(IndexLog::Open(&changed, kFolder).status().code(), StatusCode::kUnavailable);
  EXPECT_FALSE(ReplaceIndexLog(&changed, kFolder).ok());
  EXPECT_EQ(PagesRead().size(), 10u);
}

TEST_F(IndexLogTest, ACopyHoldsWhatABadMomentHid) {
  changed.FlipAt("index.log", 3 * kEntryBytes + 5, 1);
  ASSERT_TRUE(ReplaceIndexLog(&changed, kFolder).ok());
  EXPECT_EQ(PagesRead().size(), 10u);
}

TEST_F(IndexLogTest, NothingIsWrittenOverAnAppendThatFailed) {
  auto log = IndexLog::Open(&files, kFolder);
  ASSERT_TRUE(log.ok());
  files.set_fault([](const std::string& operation, const std::string&) {
    return operation == "sync" ? Unavailable("EIO") : OkStatus();
  });
  EXPECT_FALSE((*log)->Append({{AddOf(10)}}).ok());
  files.set_fault(nullptr);
  // Somebody may have read it.
  ASSERT_TRUE((*log)->Append({{AddOf(11)}}).ok());
  EXPECT_EQ(PagesRead(), (std::vector<uint32_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}));
}

TEST_F(IndexLogTest, AnErasureMeansWhatTheLogListsBeforeIt) {
  IndexEntry erase = EraseKeyEntry(NumberedKey(1, 2), 0);
  IndexEntry again = AddOf(2);
  again.page = 77;
  again.Seal();
  const std::vector<IndexEntry> log = {AddOf(1), AddOf(2), erase, again};
  const LogErasures erasures(log);
  EXPECT_FALSE(erasures.Mean(log[0]));
  EXPECT_TRUE(erasures.Mean(log[1]));
  EXPECT_FALSE(erasures.Mean(again));
  // A record that is not listed may be older than the erasure.
  IndexEntry unlisted = AddOf(2);
  unlisted.page = 99;
  EXPECT_TRUE(erasures.Mean(unlisted));
  EXPECT_FALSE(erasures.Mean(AddOf(50)));
}

class LogDamageTest : public testing::Test, public KvStoreFixture {
 protected:
  void SetUp() override {
    Open();
    request.tenant_tag = 7;
  }
  std::string LogPath() const {
    return store->context().segments.List().at(0).folder + "/index.log";
  }
  // As if killed: nothing more is written.
  void Kill() {
    killed.push_back(std::move(store));
    files->BreakLocks();
    Open();
  }
  void TearDown() override {
    store.reset();
    // What they still hold goes to a disk that nobody reads.
    files->set_fault([](const std::string&, const std::string&) { return Unavailable("gone"); });
    killed.clear();
  }

  PublishRequest request;
  std::vector<std::unique_ptr<KvStore>> killed;
};

TEST_F(LogDamageTest, AnErasureBehindADamagedEntryHolds) {
  PublishChain(1, 6, request);
  store->Flush(false);
  ASSERT_EQ(*store->EraseKeys(NumberedKeys(1, 1)), 1);
  files->At(LogPath(), 2 * kEntryBytes + 3) ^= std::byte{1};
  Kill();
  EXPECT_FALSE(store->context().index.Contains(NumberedKey(1, 0)));
  for (uint32_t block = 1; block < 6; ++block) {
    EXPECT_TRUE(store->context().index.Contains(NumberedKey(1, block))) << block;
  }
  EXPECT_EQ(store->counters().damaged_log_entries, 1);
}

TEST_F(LogDamageTest, NoDamagedEntryBringsAnErasedBlockBack) {
  for (int64_t entry = 0; entry < 8; ++entry) {
    SCOPED_TRACE(entry);
    const auto chain = static_cast<uint32_t>(10 + entry);
    PublishChain(chain, 6, request);
    store->Flush(false);
    const std::string log = LogPath();
    ASSERT_EQ(*store->EraseTenant(7), 6);
    // Six blocks, and the erasure twice.
    files->At(log, entry * kEntryBytes + 33) ^= std::byte{1};
    Kill();
    EXPECT_EQ(LoadChain(chain, 6), 0);
    for (uint32_t block = 0; block < 6; ++block) {
      EXPECT_FALSE(store->context().index.Contains(NumberedKey(chain, block))) << block;
    }
    RunJanitorToTheEnd();
    store.reset();
    killed.clear();
    files = std::make_unique<MemoryFileSystem>();
    Open();
  }
}

TEST_F(LogDamageTest, ABlockErasedOnItsWayDoesNotComeBackAfterAKill) {
  PublishChain(1, 3, request);
  store->RunWriter();  // written, not committed
  ASSERT_TRUE(store->EraseTenant(7).ok());
  Kill();
  EXPECT_EQ(LoadChain(1, 3), 0);
  Kill();
  EXPECT_EQ(LoadChain(1, 3), 0);
}

TEST_F(LogDamageTest, ABlockErasedAfterItsGroupWasGivenUpDoesNotComeBack) {
  PublishChain(1, 3, request);
  files->set_fault([](const std::string& operation, const std::string& path) {
    return operation == "write" && path.ends_with("index.log") ? Unavailable("EIO") : OkStatus();
  });
  store->Flush(false);
  ASSERT_EQ(store->counters().dropped_writes, 3);
  files->set_fault(nullptr);
  ASSERT_TRUE(store->EraseKeys(NumberedKeys(1, 2)).ok());
  Kill();
  EXPECT_FALSE(store->context().index.Contains(NumberedKey(1, 0)));
  EXPECT_FALSE(store->context().index.Contains(NumberedKey(1, 1)));
  EXPECT_TRUE(store->context().index.Contains(NumberedKey(1, 2)));
}

TEST_F(LogDamageTest, AFolderThatCannotBeReadAtTheStartIsReadLater) {
  PublishChain(1, 6);
  store->Flush(true);
  store.reset();
  int reads_to_fail = 2 * kReadTries;  // at the start, and in its second chance
  files->set_fault([&](const std::string& operation, const std::string& path) {
    if (operation != "read" || !path.ends_with("index.log")) return OkStatus();
    return reads_to_fail-- > 0 ? Unavailable("a bad moment") : OkStatus();
  });
  Open();
  EXPECT_EQ(LoadChain(1, 6), 0);
  while (store->LoadNextSegment()) {
  }
  EXPECT_EQ(LoadChain(1, 6), 6);
}

TEST_F(LogDamageTest, AFolderWithoutASegmentToLoadIsReadLaterToo) {
  PublishChain(1, 6);
  store->Flush(true);
  const std::string path = SegmentPaths().at(0);
  store.reset();
  ASSERT_TRUE(files->Rename(path, path.substr(0, path.rfind('.')) + ".bad").ok());
  int reads_to_fail = kReadTries;
  files->set_fault([&](const std::string& operation, const std::string& log) {
    if (operation != "read" || !log.ends_with("index.log")) return OkStatus();
    return reads_to_fail-- > 0 ? Unavailable("a bad moment") : OkStatus();
  });
  Open();
  EXPECT_EQ(store->Stats().blocks, 0);
}

}  // namespace
}  // namespace deepinfer
