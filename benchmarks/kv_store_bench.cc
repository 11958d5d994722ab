// What the persistent store costs: filling the index at a start, reading beside the same reads
// without checks and from memory, the checks alone, and bytes written per byte of blocks over two
// weeks of virtual time.
//
// usage: kv_store_bench restart FOLDER [SEGMENTS] | reads FOLDER [SEGMENTS] | checks | weeks
// FOLDER must not exist; it is left behind. restart and reads write SEGMENTS of them first.
#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "kvcache/kv_store.h"
#include "kvcache/segment_file.h"
#include "kvcache/store_folders.h"
#include "support/fake_clock.h"
#include "support/kv_blocks.h"
#include "support/memory_file_system.h"

namespace deepinfer {
namespace {

constexpr double kTerabyte = 1e12;
constexpr uint32_t kChainBlocks = 512;  // 64 Ki tokens

// The FP4 layout of the released model.
KvBlockLayout ReleasedLayout() {
  KvBlockLayout layout;
  layout.format_id = kFormatFp4;
  layout.block_tokens = 128;
  layout.sections = {{2, 64, 288, 68}, {8, 64, 288, 68}, {14, 64, 288, 68}, {20, 128, 288, 68}};
  return layout;
}

KvStoreOptions Options(const std::string& dir, const KvBlockLayout& layout) {
  KvStoreOptions options;
  options.dir = dir;
  options.namespace_id = Sha256("a namespace");
  options.layout = layout;
  options.space_bytes = int64_t{1} << 50;
  options.write_queue_bytes = int64_t{1} << 40;
  options.background_threads = false;
  return options;
}

double Seconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

int Fail(const Status& status) {
  fmt::print(stderr, "kv_store_bench: {}\n", status.ToString());
  return 1;
}

// A sealed segment of which only the superblock and the footer exist.
Result<std::vector<IndexEntry>> WriteFooterOnly(FileSystem* files, const std::string& folder,
                                                const KvStoreOptions& options, uint64_t number) {
  const KvBlockLayout& layout = options.layout;
  const SystemWallClock wall_clock;
  Superblock superblock = MakeSuperblock(layout, options.namespace_id, RetentionClass::kChat);
  superblock.writer_id = 1;
  superblock.segment_number = number;
  superblock.created_ns = static_cast<uint64_t>(wall_clock.UnixNs());
  superblock.bucket_hour = superblock.created_ns / static_cast<uint64_t>(kNsPerHour) + 168;
  superblock.Seal();
  std::vector<IndexEntry> entries(superblock.capacity);
  std::mt19937_64 dice(number);
  for (uint32_t i = 0; i < superblock.capacity; ++i) {
    for (size_t word = 0; word < 4; ++word) {
      const uint64_t value = dice();
      std::memcpy(entries[i].key.bytes.data() + 8 * word, &value, sizeof(value));
    }
    entries[i].segment_number = static_cast<uint32_t>(number);
    entries[i].page = 1 + i * superblock.record_pages;
    entries[i].retention = superblock.retention;
    entries[i].op = static_cast<uint8_t>(IndexOp::kAdd);
    entries[i].Seal();
  }
  const std::string path = folder + "/" + SegmentFileName(number, "seg");
  DI_ASSIGN_OR_RETURN(const auto file, files->Open(path, OpenMode::kCreate, false));
  DI_RETURN_IF_ERROR(file->WriteAt(AsBytes(superblock), 0));
  DI_RETURN_IF_ERROR(file->WriteAt(BuildFooter(layout, superblock, entries, superblock.created_ns),
                                   layout.footer_offset()));
  return entries;
}

// What its writer would have logged of it.
Status LogSegment(IndexLog* log, const std::vector<IndexEntry>& entries, uint64_t number) {
  DI_RETURN_IF_ERROR(log->Append(entries));
  return log->AppendSegmentOp(IndexOp::kSegmentSealed, static_cast<uint32_t>(number));
}

Status WriteFooters(FileSystem* files, const KvStoreOptions& options, int64_t num_segments) {
  DI_RETURN_IF_ERROR(PrepareNamespace(files, options.dir, options.namespace_id, ""));
  const std::string folder =
      NamespaceFolder(options.dir, options.namespace_id) + "/" + EpochFolderName(options.node, 1);
  DI_RETURN_IF_ERROR(files->MakeDirectory(folder).status());
  DI_ASSIGN_OR_RETURN(const auto log, IndexLog::Open(files, folder));
  for (int64_t i = 0; i < num_segments; ++i) {
    const auto number = static_cast<uint64_t>(i + 1);
    DI_ASSIGN_OR_RETURN(const auto entries, WriteFooterOnly(files, folder, options, number));
    DI_RETURN_IF_ERROR(LogSegment(log.get(), entries, number));
  }
  return OkStatus();
}

int BenchRestart(const std::string& dir, int64_t num_segments) {
  const auto files = MakePosixFileSystem();
  const SteadyClock clock;
  const SystemWallClock wall_clock;
  KvStoreOptions options = Options(dir, ReleasedLayout());
  if (const Status status = WriteFooters(files.get(), options, num_segments); !status.ok()) {
    return Fail(status);
  }
  options.background_threads = true;
  const auto begin = std::chrono::steady_clock::now();
  const auto store = KvStore::Open(options, files.get(), &clock, &wall_clock);
  if (!store.ok()) return Fail(store.status());
  const double opened_seconds = Seconds(begin);
  while ((*store)->counters().recovery_us == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const double seconds = Seconds(begin);
  const KvStoreStats stats = (*store)->Stats();
  const double terabytes =
      static_cast<double>(num_segments * options.layout.segment_bytes()) / kTerabyte;
  fmt::print(
      "{} segments, {} blocks: open after {:.3f} s, index full after {:.3f} s, {:.2f} s per TB, "
      "{:.1f} bytes a block\n",
      num_segments, stats.blocks, opened_seconds, seconds, seconds / terabytes,
      static_cast<double>(stats.index_bytes) / static_cast<double>(stats.blocks));
  return 0;
}

// Every record in chains of 512 blocks (64 Ki tokens) through the loader; bytes per second, and
// the times of the loads.
double ReadChecked(KvStore* store, int64_t num_chains, std::vector<double>* load_ms) {
  const SteadyClock clock;
  const auto begin = std::chrono::steady_clock::now();
  int64_t bytes = 0;
  for (int64_t chain = 0; chain < num_chains; ++chain) {
    const auto load_begin = std::chrono::steady_clock::now();
    const auto load = store->BeginLoad(
        store->Lookup(NumberedKeys(static_cast<uint32_t>(chain), kChainBlocks), 65535).blocks,
        INT64_MAX);
    while (!load->done()) {
      (void)load->Poll(clock.NowUs());
      std::this_thread::yield();
    }
    bytes += load->Poll(clock.NowUs()) * store->context().options.layout.record_bytes();
    load_ms->push_back(1000 * Seconds(load_begin));
  }
  return static_cast<double>(bytes) / Seconds(begin);
}

// The same bytes in reads of as many records, without a look at them.
Result<double> ReadRaw(FileSystem* files, const KvStore& store) {
  const KvStoreOptions& options = store.context().options;
  DI_ASSIGN_OR_RETURN(auto backend, MakeUringReads(options.io_depth));
  const int64_t run = (int64_t{1} << 20) / options.layout.record_bytes();
  const int64_t run_bytes = run * options.layout.record_bytes();
  std::vector<PageBuffer> buffers;
  for (int32_t i = 0; i < options.io_depth; ++i) buffers.emplace_back(run_bytes);
  std::atomic<int64_t> bytes{0};
  std::atomic<int64_t> in_flight{0};
  size_t next = 0;
  const auto begin = std::chrono::steady_clock::now();
  for (const SegmentInfo& info : store.context().segments.List()) {
    DI_ASSIGN_OR_RETURN(std::shared_ptr<File> file,
                        files->Open(info.path, OpenMode::kRead, options.direct_io));
    for (int64_t record = 0; record + run <= info.num_records; record += run) {
      while (in_flight >= options.io_depth) std::this_thread::yield();
      ++in_flight;
      ReadRequest request;
      request.file = file;
      request.into = buffers[next++ % buffers.size()].bytes();
      request.offset = options.layout.RecordOffset(record);
      request.done = [&](const Result<size_t>& read) {
        bytes += read.ok() ? static_cast<int64_t>(*read) : 0;
        --in_flight;
      };
      backend->Submit(std::move(request));
    }
  }
  while (in_flight > 0) std::this_thread::yield();
  return static_cast<double>(bytes) / Seconds(begin);
}

// Bytes of records in memory, more than any cache holds, that the checks of a read pass over in a
// second on one core.
double CheckRate(const KvBlockLayout& layout) {
  constexpr int64_t kNumRecords = 4096;
  constexpr int kRounds = 3;
  PageBuffer records(kNumRecords * layout.record_bytes());
  const auto record_bytes = static_cast<size_t>(layout.record_bytes());
  for (uint32_t i = 0; i < kNumRecords; ++i) {
    RecordHeader header;
    header.key = NumberedKey(1, i);
    header.block_number = i;
    SealRecord(layout, header, records.bytes().subspan(i * record_bytes, record_bytes));
  }
  const auto begin = std::chrono::steady_clock::now();
  for (int round = 0; round < kRounds; ++round) {
    for (uint32_t i = 0; i < kNumRecords; ++i) {
      const auto record = records.bytes().subspan(i * record_bytes, record_bytes);
      DI_CHECK(VerifyRecord(layout, record, HeaderOf(record).key, i) == RecordFault::kNone);
    }
  }
  return kRounds * static_cast<double>(records.bytes().size()) / Seconds(begin);
}

int BenchChecks() {
  for (int round = 0; round < 3; ++round) {
    fmt::print("checks of records in memory: {:.1f} GB/s a core\n",
               CheckRate(ReleasedLayout()) * 1e-9);
  }
  return 0;
}

void PublishChains(KvStore* store, int64_t num_chains) {
  std::vector<std::byte> payload(
      static_cast<size_t>(store->context().options.layout.payload_bytes()));
  for (int64_t chain = 0; chain < num_chains; ++chain) {
    for (uint32_t block = 0; block < kChainBlocks; ++block) {
      PublishRequest request;
      request.key = NumberedKey(static_cast<uint32_t>(chain), block);
      request.block_number = block;
      (void)store->Publish(request, payload);
    }
    store->Flush(false);
  }
  store->Flush(true);
}

// The same loads by one thread from files in the page cache.
Status ReadFromMemory(FileSystem* files, KvStoreOptions options, int64_t num_chains,
                      double checks_per_second) {
  const SteadyClock clock;
  const SystemWallClock wall_clock;
  options.direct_io = false;
  options.io_threads = 0;
  DI_ASSIGN_OR_RETURN(const auto store, KvStore::Open(options, files, &clock, &wall_clock));
  std::vector<double> load_ms;
  (void)ReadChecked(store.get(), num_chains, &load_ms);  // into the cache
  for (int round = 0; round < 3; ++round) {
    const double rate = ReadChecked(store.get(), num_chains, &load_ms);
    fmt::print("from the page cache, one core: {:.1f} GB/s, checks {:.0f} % of the time\n",
               rate * 1e-9, 100 * rate / checks_per_second);
  }
  return OkStatus();
}

int BenchReads(const std::string& dir, int64_t num_segments) {
  const auto files = MakePosixFileSystem();
  const SteadyClock clock;
  const SystemWallClock wall_clock;
  const KvStoreOptions options = Options(dir, ReleasedLayout());
  auto store = KvStore::Open(options, files.get(), &clock, &wall_clock);
  if (!store.ok()) return Fail(store.status());
  const int64_t num_chains = num_segments * options.layout.segment_capacity() / kChainBlocks;
  PublishChains(store->get(), num_chains);
  const double checks_per_second = CheckRate(options.layout);
  std::vector<double> load_ms;
  for (int round = 0; round < 3; ++round) {
    const auto raw = ReadRaw(files.get(), **store);
    if (!raw.ok()) return Fail(raw.status());
    const double checked = ReadChecked(store->get(), num_chains, &load_ms);
    fmt::print("{}: {:.0f} MB/s checked, {:.0f} MB/s raw: {:.2f}; checks {:.1f} % of the time\n",
               (*store)->Stats().read_backend, checked * 1e-6, *raw * 1e-6, checked / *raw,
               100 * checked / checks_per_second);
  }
  std::ranges::sort(load_ms);
  fmt::print("{} loads of 64 Ki tokens: median {:.1f} ms, largest {:.1f} ms\n", load_ms.size(),
             load_ms[load_ms.size() / 2], load_ms.back());
  store->reset();
  const Status status = ReadFromMemory(files.get(), options, num_chains, checks_per_second);
  return status.ok() ? 0 : Fail(status);
}

struct Calendar final : WallClock {
  int64_t UnixNs() const override { return unix_ns; }
  int64_t unix_ns = int64_t{1'767'225'600} * 1'000'000'000;  // 2026-01-01
};

// Sessions of turns: agents return after 5 to 60 s, people after 2 to 10 minutes, and a tail of
// either after a log-normal time with a median of a day. The tail is assumed; public traces last an
// hour.
class Weeks {
 public:
  Weeks() : options_(Options("/kv", SmallLayout())) {
    options_.layout.segment_pages = 1024;
    options_.io_threads = 0;
  }

  int Run() {
    auto opened = KvStore::Open(options_, &files_, &clock_, &wall_clock_);
    if (!opened.ok()) return Fail(opened.status());
    store_ = *std::move(opened);
    fmt::print("day  written  copied  moved  removed  bytes written per byte of blocks\n");
    for (int64_t minute = 0; minute < kDays * 24 * 60; ++minute) {
      for (int i = 0; i < kSessionsPerMinute; ++i) Begin(minute);
      while (!due_.empty() && due_.begin()->first <= minute) {
        const Session session = due_.begin()->second;
        due_.erase(due_.begin());
        Turn(session, minute);
      }
      clock_.Advance(60'000'000);
      wall_clock_.unix_ns += kNsPerHour / 60;
      if (minute % 10 == 0) {
        store_->RunWriter();
        (void)store_->RunJanitor();
      }
      if (minute % (24 * 60) == 24 * 60 - 1) Report(minute / (24 * 60) + 1);
    }
    return 0;
  }

 private:
  static constexpr int64_t kDays = 14;
  static constexpr int kSessionsPerMinute = 2;
  static constexpr double kReturns = 0.4;      // after any turn
  static constexpr double kLateReturns = 0.2;  // of those
  static constexpr uint32_t kBlocksPerTurn = 2;

  struct Session {
    uint32_t id = 0;
    uint32_t blocks = 0;
    bool agent = false;
  };

  double Uniform(double from, double to) {
    return std::uniform_real_distribution<double>(from, to)(dice_);
  }

  void Begin(int64_t minute) { Turn({next_id_++, 0, Uniform(0, 1) < 0.5}, minute); }

  void Turn(Session session, int64_t minute) {
    const RetentionClass retention = session.agent ? RetentionClass::kAgent : RetentionClass::kChat;
    const auto keys = NumberedKeys(session.id, session.blocks + kBlocksPerTurn);
    const auto hit = store_->Lookup(keys, 65535).blocks.size();
    store_->Touch(std::span(keys).first(hit), retention);
    for (size_t block = hit; block < keys.size(); ++block) {
      PublishRequest request;
      request.key = keys[block];
      request.block_number = static_cast<uint32_t>(block);
      request.retention = retention;
      (void)store_->Publish(request, PayloadOfKey(options_.layout, request.key));
    }
    session.blocks += kBlocksPerTurn;
    if (Uniform(0, 1) >= kReturns) return;
    double wait_minutes = session.agent ? Uniform(5, 60) / 60 : Uniform(2, 10);
    if (Uniform(0, 1) < kLateReturns) {
      wait_minutes = 24 * 60 * std::lognormal_distribution<double>(0, 1)(dice_);
    }
    due_.emplace(minute + 1 + static_cast<int64_t>(wait_minutes), session);
  }

  void Report(int64_t day) {
    const StoreCounters& counters = store_->counters();
    const int64_t written = counters.written_blocks - last_written_;
    const int64_t copied = counters.copied_blocks - last_copied_;
    last_written_ += written;
    last_copied_ += copied;
    fmt::print("{:>3}  {:>7}  {:>6}  {:>5}  {:>7}  {:.3f}\n", day, written, copied,
               counters.moved_buckets.load(), counters.removed_segments.load(),
               static_cast<double>(written + copied) / static_cast<double>(written));
  }

  KvStoreOptions options_;
  MemoryFileSystem files_;
  FakeClock clock_;
  Calendar wall_clock_;
  std::unique_ptr<KvStore> store_;
  std::mt19937 dice_{1};
  std::multimap<int64_t, Session> due_;
  uint32_t next_id_ = 1;
  int64_t last_written_ = 0;
  int64_t last_copied_ = 0;
};

int Main(int count, char** arguments) {
  InitLogging(LogLevel::kWarning, LogFormat::kText);
  const std::string mode = count > 1 ? arguments[1] : "";
  const int64_t segments = count > 3 ? std::atoll(arguments[3]) : 0;
  if (mode == "restart" && count > 2) return BenchRestart(arguments[2], segments ? segments : 400);
  if (mode == "reads" && count > 2) return BenchReads(arguments[2], segments ? segments : 8);
  if (mode == "checks") return BenchChecks();
  if (mode == "weeks") return Weeks().Run();
  fmt::print(stderr, "usage: kv_store_bench restart|reads FOLDER [SEGMENTS] | checks | weeks\n");
  return 2;
}

}  // namespace
}  // namespace deepinfer

int main(int count, char** arguments) { return deepinfer::Main(count, arguments); }
