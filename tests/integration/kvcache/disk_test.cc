// The store on a real folder: every way of reading, several processes, and processes that are
// killed in the middle of an operation.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <random>
#include <set>
#include <thread>

#include "support/kv_store_fixture.h"
#include "support/temp_dir.h"
#include "support/wait_until.h"

namespace deepinfer {
namespace {

constexpr uint32_t kChainLength = 9;

KvStoreOptions DiskOptions(const TempDir& dir) {
  KvStoreOptions options;
  options.dir = dir.File("kv");
  options.namespace_id = Sha256("a namespace");
  options.layout = SmallLayout();
  options.layout.sections = {{2, 32, 200, 50}};  // three pages a record
  options.layout.segment_pages = 64;
  options.space_bytes = int64_t{1} << 40;
  options.io_threads = 0;
  options.background_threads = false;
  return options;
}

void PublishChain(KvStore* store, uint32_t chain) {
  for (uint32_t block = 0; block < kChainLength; ++block) {
    PublishRequest request;
    request.key = NumberedKey(chain, block);
    if (block > 0) request.parent = NumberedKey(chain, block - 1);
    request.block_number = block;
    (void)store->Publish(request, PayloadOfKey(store->context().options.layout, request.key));
  }
}

// Blocks of the chain that arrive; a wrong byte fails the test.
int64_t LoadChain(KvStore* store, uint32_t chain) {
  const SteadyClock clock;
  const auto keys = NumberedKeys(chain, kChainLength);
  const auto load = store->BeginLoad(store->Lookup(keys, 65535).blocks, INT64_MAX);
  while (!load->done()) {
    (void)load->Poll(clock.NowUs());
    std::this_thread::yield();
  }
  const int64_t loaded = load->Poll(clock.NowUs());
  for (int64_t block = 0; block < loaded; ++block) {
    EXPECT_TRUE(std::ranges::equal(
        load->Payload(block),
        PayloadOfKey(store->context().options.layout, keys[static_cast<size_t>(block)])))
        << "wrong bytes for chain " << chain << " block " << block;
  }
  return loaded;
}

class EveryBackend : public testing::TestWithParam<std::tuple<int32_t, bool, bool>> {};

TEST_P(EveryBackend, ReadsBackWhatWasWritten) {
  const TempDir dir;
  const auto files = MakePosixFileSystem();
  const SteadyClock clock;
  const SystemWallClock wall_clock;
  KvStoreOptions options = DiskOptions(dir);
  std::tie(options.io_threads, options.io_uring, options.direct_io) = GetParam();
  options.background_threads = true;
  options.group_commit_us = 1000;
  for (int start = 0; start < 2; ++start) {
    auto store = KvStore::Open(options, files.get(), &clock, &wall_clock);
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    if (start == 0) {
      for (uint32_t chain = 0; chain < 12; ++chain) PublishChain(store->get(), chain);
      ASSERT_TRUE((*store)->Drain(clock.NowUs() + 60'000'000));
    }
    SpinUntil("the blocks", [&] { return (*store)->Stats().blocks >= 12 * kChainLength; });
    for (uint32_t chain = 0; chain < 12; ++chain) {
      EXPECT_EQ(LoadChain(store->get(), chain), int64_t{kChainLength});
    }
    EXPECT_EQ((*store)->Stats().reads_in_flight, 0);
    EXPECT_EQ((*store)->counters().corrupt_records, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, EveryBackend,
                         testing::Values(std::tuple(0, false, false), std::tuple(3, false, true),
                                         std::tuple(2, true, true), std::tuple(2, true, false)));

TEST(KvStoreProcesses, OnlyOneProcessOwnsANode) {
  const TempDir dir;
  const auto files = MakePosixFileSystem();
  const SteadyClock clock;
  const SystemWallClock wall_clock;
  KvStoreOptions options = DiskOptions(dir);
  auto first = KvStore::Open(options, files.get(), &clock, &wall_clock);
  ASSERT_TRUE(first.ok());
  const pid_t child = fork();
  if (child == 0) {
    const auto second = KvStore::Open(options, files.get(), &clock, &wall_clock);
    _exit(second.status().code() == StatusCode::kResourceExhausted ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  options.node = "other";
  EXPECT_TRUE(KvStore::Open(options, files.get(), &clock, &wall_clock).ok());
}

// Ends the process without warning at one of its operations; a write may be half done by then.
class KillingFile final : public File {
 public:
  KillingFile(std::unique_ptr<File> file, int64_t* countdown)
      : file_(std::move(file)), countdown_(countdown) {}
  Result<size_t> ReadAt(std::span<std::byte> into, int64_t offset) override {
    return file_->ReadAt(into, offset);
  }
  Status WriteAt(std::span<const std::byte> bytes, int64_t offset) override {
    if (--*countdown_ <= 0) {
      const size_t half = bytes.size() / 2 / kPageBytes * kPageBytes;
      if (half > 0) (void)file_->WriteAt(bytes.first(half), offset);
      kill(getpid(), SIGKILL);
    }
    return file_->WriteAt(bytes, offset);
  }
  // What was written outlives the process without a sync; only the power could take it.
  Status SyncData() override {
    if (--*countdown_ <= 0) kill(getpid(), SIGKILL);
    return OkStatus();
  }
  Result<int64_t> Size() override { return file_->Size(); }
  Status Allocate(int64_t size_bytes) override { return file_->Allocate(size_bytes); }

 private:
  std::unique_ptr<File> file_;
  int64_t* countdown_;
};

class KillingFileSystem final : public FileSystem {
 public:
  explicit KillingFileSystem(int64_t countdown) : countdown_(countdown) {}
  Result<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode, bool direct) override {
    Count();
    DI_ASSIGN_OR_RETURN(auto file, files_->Open(path, mode, direct));
    return std::unique_ptr<File>(std::make_unique<KillingFile>(std::move(file), &countdown_));
  }
  Result<bool> MakeDirectory(const std::string& path) override {
    Count();
    return files_->MakeDirectory(path);
  }
  Status Rename(const std::string& from, const std::string& to) override {
    Count();
    return files_->Rename(from, to);
  }
  Status Remove(const std::string& path) override {
    Count();
    return files_->Remove(path);
  }
  Status RemoveDirectory(const std::string& path) override { return files_->RemoveDirectory(path); }
  Result<std::vector<std::string>> List(const std::string& folder) override {
    return files_->List(folder);
  }
  Status SyncDirectory(const std::string&) override {
    Count();
    return OkStatus();
  }
  Result<FileInfo> Stat(const std::string& path) override { return files_->Stat(path); }
  Result<std::unique_ptr<FileLock>> Lock(const std::string& path) override {
    return files_->Lock(path);
  }

 private:
  void Count() {
    if (--countdown_ <= 0) kill(getpid(), SIGKILL);
  }
  std::unique_ptr<FileSystem> files_ = MakePosixFileSystem();
  int64_t countdown_;
};

// Writes chains from `first` on until it is killed; reports each committed one.
[[noreturn]] void WriteUntilKilled(const KvStoreOptions& options, uint32_t first, int64_t countdown,
                                   int report) {
  KillingFileSystem files(countdown);
  const SteadyClock clock;
  const SystemWallClock wall_clock;
  const auto store = KvStore::Open(options, &files, &clock, &wall_clock);
  if (!store.ok()) _exit(1);
  for (uint32_t chain = first;; ++chain) {
    PublishChain(store->get(), chain);
    (*store)->Flush(chain % 4 == 3);
    if (write(report, &chain, sizeof(chain)) != sizeof(chain)) _exit(1);
  }
}

TEST(KvStoreProcesses, CommittedBlocksSurviveAKillAtAnyOperation) {
  // DEEPINFER_KILL_RUNS repeats it more often.
  const char* more = std::getenv("DEEPINFER_KILL_RUNS");
  const int runs = more != nullptr ? std::atoi(more) : 200;
  std::random_device device;
  const uint32_t seed = device();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  auto dir = std::make_unique<TempDir>();
  std::set<uint32_t> committed;
  uint32_t next_chain = 0;
  for (int run = 0; run < runs; ++run) {
    if (run % 10 == 0) {  // an ever larger folder would only test the patience
      dir = std::make_unique<TempDir>();
      committed.clear();
    }
    const KvStoreOptions options = DiskOptions(*dir);
    int report[2];
    ASSERT_EQ(pipe(report), 0);
    const int64_t countdown = 1 + static_cast<int64_t>(random() % 120);
    const pid_t child = fork();
    if (child == 0) {
      close(report[0]);
      WriteUntilKilled(options, next_chain, countdown, report[1]);
    }
    close(report[1]);
    uint32_t chain = 0;
    while (read(report[0], &chain, sizeof(chain)) == sizeof(chain)) committed.insert(chain);
    close(report[0]);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself, run " << run;

    KillingFileSystem files(INT64_MAX);
    const SteadyClock clock;
    const SystemWallClock wall_clock;
    auto store = KvStore::Open(options, &files, &clock, &wall_clock);
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    for (const uint32_t known : committed) {
      ASSERT_EQ(LoadChain(store->get(), known), int64_t{kChainLength})
          << "chain " << known << " run " << run << " countdown " << countdown;
    }
    // What was not reported may be there in part; whatever is there is right.
    if (!committed.empty()) next_chain = *committed.rbegin() + 1;
    (void)LoadChain(store->get(), next_chain);
    next_chain += 2;
  }
}

}  // namespace
}  // namespace deepinfer
