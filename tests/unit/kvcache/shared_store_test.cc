// Several stores on one root: what peers see, what happens to the folders of the dead, and what a
// revived owner may still do. One file system in memory, clocks that the test moves.
#include <gtest/gtest.h>

#include <random>

#include "kvcache/index_log.h"
#include "kvcache/store_folders.h"
#include "support/kv_store_fixture.h"

namespace deepinfer {
namespace {

constexpr int64_t kUsPerSecond = 1'000'000;

// One of the processes that share the root.
struct Node {
  Node(const KvStoreFixture& shared, const std::string& name) : options(shared.options) {
    options.shared = true;
    options.node = name;
    options.boot_id = "boot of " + name;
  }
  void Open(KvStoreFixture* fixture) {
    store.reset();
    // A process of this node that hangs counts as killed.
    fixture->files->BreakLocks();
    auto opened =
        KvStore::Open(options, fixture->files.get(), &fixture->clock, &fixture->wall_clock);
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    store = *std::move(opened);
  }
  // As if killed: nothing more is written. The object lives on like a process that hangs.
  std::unique_ptr<KvStore> Hang() { return std::move(store); }

  KvStoreOptions options;
  std::unique_ptr<KvStore> store;
};

class SharedStoreTest : public testing::Test, public KvStoreFixture {
 protected:
  void SetUp() override {
    a.Open(this);
    b.Open(this);
  }
  void TearDown() override {
    // Stores end before the file system and the clocks.
    a.store.reset();
    b.store.reset();
    c.store.reset();
  }

  void PublishOn(Node* node, uint32_t chain, uint32_t count, PublishRequest request = {}) {
    for (uint32_t block = 0; block < count; ++block) {
      request.key = NumberedKey(chain, block);
      if (block > 0) request.parent = NumberedKey(chain, block - 1);
      request.block_number = block;
      (void)node->store->Publish(request, PayloadOfKey(options.layout, request.key));
    }
    node->store->Flush(false);
  }
  int64_t LoadOn(Node* node, uint32_t chain, uint32_t count) {
    store.swap(node->store);
    const int64_t loaded = LoadChain(chain, count);
    store.swap(node->store);
    return loaded;
  }
  void PassSeconds(int64_t seconds) {
    clock.Advance(seconds * kUsPerSecond);
    files->AdvanceClock(seconds * 1'000'000'000);
  }
  // Of two chains of a, which live for a week, b uses the first after 100 hours.
  void UseByAPeerBeforeItsLifeEnds() {
    PublishOn(&a, 1, 4);
    PublishOn(&a, 2, 8);
    a.store->Flush(true);
    LetThemRun(1, {&b});
    PassHours(100);
    b.store->Touch(NumberedKeys(1, 4), RetentionClass::kChat);
    (void)b.store->RunJanitor();
  }
  // Every living node takes its turns while time passes.
  void LetThemRun(int64_t seconds, std::initializer_list<Node*> nodes) {
    for (int64_t second = 0; second < seconds; ++second) {
      PassSeconds(1);
      for (Node* node : nodes) node->store->RunPeers();
    }
  }
  std::vector<std::string> Folders() {
    std::vector<std::string> names;
    const auto listed = ListEpochFolders(files.get(), NamespaceFolder("/kv", options.namespace_id));
    for (const EpochFolder& folder : *listed) {
      names.push_back(folder.name);
    }
    return names;
  }

  Node a{*this, "a"};
  Node b{*this, "b"};
  Node c{*this, "c"};
};

TEST_F(SharedStoreTest, APeerServesWhatAnotherHasCommitted) {
  b.store->RunPeers();
  PublishOn(&a, 1, 20);  // a sealed segment and an open one
  EXPECT_EQ(LoadOn(&b, 1, 20), 0);
  clock.Advance(b.options.peer_poll_us);
  b.store->RunPeers();
  EXPECT_EQ(LoadOn(&b, 1, 20), 20);
  // It is not stored a second time.
  PublishRequest again;
  again.key = NumberedKey(1, 3);
  EXPECT_EQ(b.store->Publish(again, PayloadOfKey(options.layout, again.key)),
            PublishResult::kExists);
  EXPECT_EQ(b.store->Stats().disk_bytes, 0);
}

TEST_F(SharedStoreTest, APeerFollowsSealsAndRemovals) {
  b.store->RunPeers();
  PublishOn(&a, 1, 3);
  LetThemRun(1, {&b});
  a.store->Flush(true);  // the name changes before b hears of it
  EXPECT_EQ(LoadOn(&b, 1, 3), 3);
  LetThemRun(1, {&b});
  PassHours(200);
  (void)a.store->RunJanitor();
  EXPECT_EQ(a.store->counters().removed_segments, 1);
  LetThemRun(11, {&b});
  EXPECT_EQ(b.store->Stats().blocks, 0);
  EXPECT_EQ(b.store->counters().corrupt_records, 0);
}

TEST_F(SharedStoreTest, ASegmentRemovedUnderAReaderIsAMiss) {
  PublishOn(&a, 1, 3);
  a.store->Flush(true);
  LetThemRun(1, {&b});
  const auto found = b.store->Lookup(NumberedKeys(1, 3), 0).blocks;
  ASSERT_EQ(found.size(), 3u);
  ASSERT_TRUE(files->Remove(a.store->context().segments.List()[0].path).ok());
  const auto load = b.store->BeginLoad(found, clock.NowUs() + 1000);
  EXPECT_EQ(load->Poll(clock.NowUs()), 0);
  EXPECT_TRUE(load->done());
  LetThemRun(11, {&b});
  EXPECT_EQ(b.store->Stats().blocks, 0);
  EXPECT_EQ(b.store->counters().read_errors, 0);
}

TEST_F(SharedStoreTest, CopiesMadeByTheOwnerStayFound) {
  PublishOn(&a, 1, 4);
  PublishOn(&a, 2, 8);
  a.store->Flush(true);
  LetThemRun(1, {&b});
  PassHours(100);
  a.store->Touch(NumberedKeys(1, 4), RetentionClass::kChat);
  PassHours(81);
  RunJanitorToTheEnd(a.store.get());
  ASSERT_EQ(a.store->counters().copied_blocks, 4);
  LetThemRun(11, {&b});
  EXPECT_EQ(LoadOn(&b, 1, 4), 4);
  EXPECT_EQ(LoadOn(&b, 2, 8), 0);
}

TEST_F(SharedStoreTest, UsesByAPeerExtendTheLifeOfABlock) {
  UseByAPeerBeforeItsLifeEnds();
  PassHours(81);
  RunJanitorToTheEnd(a.store.get());
  EXPECT_EQ(LoadOn(&a, 1, 4), 4);
  EXPECT_EQ(LoadOn(&a, 2, 8), 0);
  EXPECT_EQ(a.store->context().index.Find(NumberedKey(1, 0))->touches, 1);
}

TEST_F(SharedStoreTest, TheFolderOfADeadOwnerIsAdoptedWithinTwoMinutes) {
  PublishOn(&a, 1, 20);
  LetThemRun(30, {&a, &b});
  const auto hung = a.Hang();
  LetThemRun(45, {&b});  // the lease is up to ten seconds older
  EXPECT_EQ(b.store->counters().adopted_folders, 0);
  EXPECT_EQ(LoadOn(&b, 1, 20), 20);  // served at once, dead or not
  LetThemRun(74, {&b});
  EXPECT_EQ(b.store->counters().adopted_folders, 1);
  EXPECT_EQ(LoadOn(&b, 1, 20), 20);
  for (const SegmentInfo& info : b.store->context().segments.List()) {
    EXPECT_TRUE(info.path.ends_with(".seg")) << info.path;
    EXPECT_NE(info.folder.find(".adopted-by-b-"), std::string::npos) << info.folder;
    EXPECT_FALSE(info.peer);
  }
  // A third node sees it all under the new name.
  c.Open(this);
  LetThemRun(1, {&c});
  EXPECT_EQ(LoadOn(&c, 1, 20), 20);
}

TEST_F(SharedStoreTest, OnlyOneAdopterWins) {
  PublishOn(&a, 1, 20);
  c.Open(this);
  LetThemRun(5, {&a, &b, &c});
  const auto hung = a.Hang();
  LetThemRun(120, {&b, &c});
  EXPECT_EQ(b.store->counters().adopted_folders + c.store->counters().adopted_folders, 1);
  EXPECT_EQ(LoadOn(&b, 1, 20), 20);
  EXPECT_EQ(LoadOn(&c, 1, 20), 20);
}

TEST_F(SharedStoreTest, ARevivedOwnerWritesUnderANewEpoch) {
  PublishOn(&a, 1, 5);
  LetThemRun(5, {&a, &b});
  a.store.swap(store);  // asleep
  LetThemRun(120, {&b});
  ASSERT_EQ(b.store->counters().adopted_folders, 1);
  a.store.swap(store);
  a.store->RunPeers();  // sees a folder of a peer before it knows that it was its own
  // What it writes in the folder that it lost goes nowhere; then it begins anew.
  PublishOn(&a, 2, 5);
  EXPECT_EQ(a.store->counters().fenced, 1);
  PublishOn(&a, 2, 5);
  LetThemRun(3, {&a, &b});
  EXPECT_EQ(LoadOn(&a, 2, 5), 5);
  EXPECT_EQ(LoadOn(&b, 2, 5), 5);
  EXPECT_EQ(LoadOn(&a, 1, 5), 5);  // now of a peer
  EXPECT_EQ(LoadOn(&b, 1, 5), 5);
  EXPECT_EQ(a.store->context().segments.num_own(), 1);
}

TEST_F(SharedStoreTest, AJumpOfTheServersClockAdoptsNobody) {
  LetThemRun(20, {&a, &b});
  files->AdvanceClock(int64_t{24} * 3600 * 1'000'000'000);
  LetThemRun(100, {&a, &b});
  wall_clock.AdvanceHours(24);
  LetThemRun(100, {&a, &b});
  wall_clock.AdvanceHours(-25);
  LetThemRun(100, {&a, &b});
  EXPECT_EQ(a.store->counters().adopted_folders, 0);
  EXPECT_EQ(b.store->counters().adopted_folders, 0);
}

TEST_F(SharedStoreTest, ARestartedNodeTakesItsOwnFoldersAtOnce) {
  PublishOn(&a, 1, 20);
  LetThemRun(1, {&a, &b});
  const auto killed = a.Hang();  // nothing sealed
  a.Open(this);
  EXPECT_EQ(LoadOn(&a, 1, 20), 20);
  LetThemRun(3, {&a, &b});
  EXPECT_EQ(LoadOn(&b, 1, 20), 20);
  // On another host the same name proves nothing: the lease decides.
  a.options.boot_id = "another boot";
  const auto hung = a.Hang();
  a.Open(this);
  EXPECT_EQ(a.store->counters().adopted_folders, 0);
  LetThemRun(3, {&a});
  EXPECT_EQ(LoadOn(&a, 1, 20), 20);
}

TEST_F(SharedStoreTest, AnAdoptersFoldersAreAdoptedAfterItsOwnDeath) {
  PublishOn(&a, 1, 5);
  LetThemRun(5, {&a, &b});
  const auto first = a.Hang();
  LetThemRun(120, {&b});
  c.Open(this);
  LetThemRun(5, {&b, &c});
  const auto second = b.Hang();
  LetThemRun(120, {&c});
  EXPECT_EQ(LoadOn(&c, 1, 5), 5);
  EXPECT_EQ(c.store->context().segments.num_own(), 1);
  for (const std::string& name : Folders()) {
    EXPECT_EQ(ParseEpochFolderName(name)->owner.substr(0, 2), "c-") << name;
  }
}

TEST_F(SharedStoreTest, ErasureReachesPeersAndOutlivesRestarts) {
  PublishRequest request;
  request.tenant_tag = 7;
  PublishOn(&a, 1, 6, request);
  PublishOn(&b, 2, 6, request);
  PublishOn(&b, 3, 6);
  LetThemRun(3, {&a, &b});
  EXPECT_EQ(*b.store->EraseTenant(7), 12);
  EXPECT_EQ(LoadOn(&b, 1, 6), 0);
  LetThemRun(1, {&a});
  EXPECT_EQ(LoadOn(&a, 1, 6), 0);
  EXPECT_EQ(LoadOn(&a, 2, 6), 0);
  EXPECT_EQ(LoadOn(&a, 3, 6), 6);
  // Written again, it is served again, on both sides.
  PublishOn(&a, 1, 2, request);
  LetThemRun(3, {&a, &b});
  EXPECT_EQ(LoadOn(&b, 1, 6), 2);
  for (Node* node : {&a, &b}) node->Open(this);
  LetThemRun(3, {&a, &b});
  for (Node* node : {&a, &b}) {
    EXPECT_EQ(LoadOn(node, 1, 6), 2);
    EXPECT_EQ(LoadOn(node, 2, 6), 0);
    EXPECT_EQ(LoadOn(node, 3, 6), 6);
  }
}

TEST_F(SharedStoreTest, AnErasureDuringTheDeathOfAnOwnerHitsItsFolder) {
  PublishRequest request;
  request.tenant_tag = 7;
  PublishOn(&a, 1, 6, request);
  LetThemRun(3, {&a, &b});
  const auto hung = a.Hang();
  ASSERT_EQ(*b.store->EraseKeys(NumberedKeys(1, 2)), 2);
  LetThemRun(120, {&b});
  EXPECT_EQ(LoadOn(&b, 1, 6), 0);
  // Somebody who has never met any of them.
  b.store.reset();
  c.Open(this);
  LetThemRun(130, {&c});
  EXPECT_FALSE(c.store->context().index.Contains(NumberedKey(1, 0)));
  EXPECT_FALSE(c.store->context().index.Contains(NumberedKey(1, 1)));
  EXPECT_TRUE(c.store->context().index.Contains(NumberedKey(1, 2)));
}

TEST_F(SharedStoreTest, ErasedWhileOnTheirWayBlocksAreNotServed) {
  PublishRequest request;
  request.key = NumberedKey(1, 0);
  request.tenant_tag = 7;
  (void)a.store->Publish(request, PayloadOfKey(options.layout, request.key));
  a.store->RunWriter();  // written, not committed
  request.key = NumberedKey(2, 0);
  (void)a.store->Publish(request, PayloadOfKey(options.layout, request.key));
  ASSERT_TRUE(a.store->EraseTenant(7).ok());
  a.store->Flush(true);
  EXPECT_EQ(LoadOn(&a, 1, 1), 0);
  EXPECT_EQ(LoadOn(&a, 2, 1), 0);
  a.Open(this);
  EXPECT_EQ(LoadOn(&a, 1, 1), 0);
  EXPECT_EQ(LoadOn(&a, 2, 1), 0);
}

TEST_F(SharedStoreTest, EntriesOfALaterVersionAreSkipped) {
  PublishOn(&a, 1, 2);
  LetThemRun(1, {&b});
  const std::string folder = a.store->context().segments.List()[0].folder;
  const auto hung = a.Hang();
  auto log = IndexLog::Open(files.get(), folder);
  ASSERT_TRUE(log.ok());
  IndexEntry later;
  later.op = 99;
  later.Seal();
  IndexEntry erase = EraseKeyEntry(NumberedKey(1, 0), wall_clock.UnixNs());
  ASSERT_TRUE((*log)->Append(std::array{later, erase}).ok());
  LetThemRun(1, {&b});
  EXPECT_FALSE(b.store->context().index.Contains(NumberedKey(1, 0)));
  EXPECT_TRUE(b.store->context().index.Contains(NumberedKey(1, 1)));
}

TEST_F(SharedStoreTest, APeerGoesOverADamagedEntryThatStaysSo) {
  b.store->RunPeers();
  PublishOn(&a, 1, 3);
  const std::string log = a.store->context().segments.List()[0].folder + "/index.log";
  files->At(log, 64 + 60) ^= std::byte{1};
  LetThemRun(5, {&b});
  EXPECT_EQ(b.store->Stats().blocks, 2);
  EXPECT_EQ(b.store->counters().damaged_log_entries, 1);
  // What comes after it is heard as ever.
  ASSERT_EQ(*a.store->EraseKeys(NumberedKeys(1, 1)), 1);
  LetThemRun(1, {&b});
  EXPECT_EQ(b.store->Stats().blocks, 1);
}

TEST_F(SharedStoreTest, APeerGoesOverALongHoleInALog) {
  b.store->RunPeers();
  PublishOn(&a, 1, 3);
  LetThemRun(1, {&b});
  // Appends that never reached the disk, longer than a read.
  const std::string log = a.store->context().segments.List()[0].folder + "/index.log";
  const std::vector<std::byte> hole(700'000);
  const auto file = files->Open(log, OpenMode::kReadWrite, false);
  ASSERT_TRUE((*file)->WriteAt(hole, 3 * 64).ok());
  IndexEntry erase = EraseKeyEntry(NumberedKey(1, 0), wall_clock.UnixNs());
  ASSERT_TRUE((*file)->WriteAt(AsBytes(erase), 3 * 64 + 700'032).ok());
  LetThemRun(5, {&b});
  EXPECT_FALSE(b.store->context().index.Contains(NumberedKey(1, 0)));
  EXPECT_EQ(b.store->Stats().blocks, 2);
}

TEST_F(SharedStoreTest, AnErasureBehindAnAppendThatFailedReachesPeers) {
  PublishOn(&a, 1, 3);
  LetThemRun(3, {&a, &b});
  const std::string log = a.store->context().segments.List()[0].folder + "/index.log";
  files->set_fault([&](const std::string& operation, const std::string& path) {
    return operation == "sync" && path == log ? Unavailable("EIO") : OkStatus();
  });
  PublishOn(&a, 2, 3);
  LetThemRun(1, {&b});
  EXPECT_EQ(LoadOn(&b, 2, 3), 3);  // has read what a gave up
  files->set_fault(nullptr);
  ASSERT_TRUE(a.store->EraseKeys(NumberedKeys(1, 3)).ok());
  LetThemRun(1, {&b});
  EXPECT_EQ(LoadOn(&b, 1, 3), 0);
}

TEST_F(SharedStoreTest, AnErasureByAnOwnerWhoseFolderWasAdoptedHolds) {
  PublishOn(&a, 1, 5);
  LetThemRun(5, {&a, &b});
  a.store.swap(store);  // asleep
  LetThemRun(120, {&b});
  ASSERT_EQ(b.store->counters().adopted_folders, 1);
  a.store.swap(store);
  // It does not know yet that the log it writes to is not the one that is read.
  ASSERT_EQ(*a.store->EraseKeys(NumberedKeys(1, 5)), 5);
  PublishOn(&a, 2, 1);
  ASSERT_EQ(a.store->counters().fenced, 1);
  PublishOn(&a, 2, 1);
  for (int second = 0; second < 5; ++second) {
    LetThemRun(1, {&a, &b});
    EXPECT_EQ(LoadOn(&a, 1, 5), 0);
  }
  EXPECT_EQ(LoadOn(&b, 1, 5), 0);
  EXPECT_EQ(LoadOn(&b, 2, 1), 1);
}

TEST_F(SharedStoreTest, ANewProcessBelievesAnErasureThatADeadOwnerNeverHeardOf) {
  PublishRequest request;
  request.tenant_tag = 7;
  PublishOn(&b, 1, 6, request);
  PublishOn(&b, 2, 6);
  LetThemRun(3, {&a, &b});
  const auto hung = b.Hang();
  ASSERT_EQ(*a.store->EraseTenant(7), 6);
  c.Open(this);
  for (int second = 0; second < 5; ++second) {
    LetThemRun(1, {&a, &c});
    EXPECT_EQ(LoadOn(&c, 1, 6), 0);
  }
  EXPECT_EQ(LoadOn(&c, 2, 6), 6);
  // What the tenant stores later is served.
  b.Open(this);
  LetThemRun(1, {&a, &b, &c});
  PublishOn(&b, 1, 6, request);
  LetThemRun(3, {&a, &b, &c});
  EXPECT_EQ(LoadOn(&c, 1, 6), 6);
}

TEST_F(SharedStoreTest, AnAdoptionThatMeetsABadMomentIsFinishedLater) {
  PublishOn(&a, 1, 20);
  LetThemRun(5, {&a, &b});
  const auto hung = a.Hang();
  files->set_fault([](const std::string& operation, const std::string& path) {
    const bool adopting = path.find(".adopted-by-") != std::string::npos;
    return adopting && operation == "read" && path.ends_with("index.log")
               ? Unavailable("a bad moment")
               : OkStatus();
  });
  LetThemRun(120, {&b});
  EXPECT_EQ(b.store->counters().adopted_folders, 1);
  EXPECT_EQ(b.store->context().segments.num_own(), 0);
  EXPECT_EQ(LoadOn(&b, 1, 20), 20);  // still as those of a peer
  files->set_fault(nullptr);
  LetThemRun(11, {&b});
  EXPECT_EQ(b.store->context().segments.num_own(), 2);
  EXPECT_EQ(LoadOn(&b, 1, 20), 20);
}

TEST_F(SharedStoreTest, APageOfTouchesThatIsHalfVisibleIsReadWhenItIsWhole) {
  UseByAPeerBeforeItsLifeEnds();
  std::string touches;
  for (const std::string& path : files->Paths()) {
    if (path.find("/touch-") != std::string::npos) touches = path;
  }
  files->At(touches, 40) ^= std::byte{1};
  (void)a.store->RunJanitor();  // looks too early
  files->At(touches, 40) ^= std::byte{1};
  PassHours(81);
  RunJanitorToTheEnd(a.store.get());
  EXPECT_EQ(LoadOn(&a, 1, 4), 4);
}

TEST_F(SharedStoreTest, ATornTailOfALogIsReadWhenItIsWhole) {
  b.store->RunPeers();
  PublishOn(&a, 1, 3);
  const std::string log = a.store->context().segments.List()[0].folder + "/index.log";
  files->At(log, 64 + 60) ^= std::byte{1};
  LetThemRun(1, {&b});
  EXPECT_EQ(b.store->Stats().blocks, 1);
  files->At(log, 64 + 60) ^= std::byte{1};
  LetThemRun(1, {&b});
  EXPECT_EQ(b.store->Stats().blocks, 3);
}

}  // namespace
}  // namespace deepinfer
