#include "kvcache/block_load.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "kvcache/record_cipher.h"

namespace deepinfer {
namespace {

// Larger reads gain nothing on a fast disk and delay the first block on a slow one.
constexpr int64_t kMaxReadBytes = int64_t{1} << 20;
constexpr int32_t kFaultsToQuarantine = 2;

enum class BlockStatus : uint8_t { kWaiting, kVerified, kFailed };

}  // namespace

struct KvLoad::Run {
  PageBuffer buffer;
  std::vector<size_t> blocks;  // indices in the load, one record each, in order
  int64_t submitted_us = 0;
  ReadPermit permit = ReadPermit::kRefused;
  std::atomic<bool> arrived{true};
};

struct KvLoad::State {
  std::vector<BlockRequest> blocks;
  std::vector<std::atomic<BlockStatus>> status;
  std::vector<MissReason> failure;                  // each set before its block has failed
  std::vector<std::span<const std::byte>> records;  // each set before its block is verified
  std::vector<std::unique_ptr<Run>> runs;
  int64_t payload_bytes = 0;
  int64_t deadline_us = 0;
  std::atomic<int64_t> last_arrival_us{0};
  std::atomic<bool> given_up{false};
  std::atomic<int64_t>* late_blocks = nullptr;
  CircuitBreaker* breaker = nullptr;
};

KvLoad::~KvLoad() { Cancel(); }

void KvLoad::Cancel() {
  done_ = true;
  state_->given_up.store(true, std::memory_order_relaxed);
}

int64_t KvLoad::num_blocks() const { return static_cast<int64_t>(state_->blocks.size()); }

int64_t KvLoad::Poll(int64_t now_us) {
  if (done_) return ready_;
  const auto status = [&](int64_t block) {
    return state_->status[static_cast<size_t>(block)].load(std::memory_order_acquire);
  };
  while (ready_ < num_blocks() && status(ready_) == BlockStatus::kVerified) ++ready_;
  // Blocks behind a failed one are of no use.
  if (ready_ == num_blocks() || status(ready_) == BlockStatus::kFailed) {
    Cancel();
  } else if (now_us >= state_->deadline_us) {
    *state_->late_blocks += num_blocks() - ready_;
    for (const auto& run : state_->runs) {
      if (run->arrived.load(std::memory_order_relaxed)) continue;
      state_->breaker->RecordLate(run->permit, now_us - run->submitted_us, now_us);
    }
    Cancel();
  }
  return ready_;
}

std::span<const std::byte> KvLoad::Payload(int64_t block) const {
  DI_CHECK(block >= 0 && block < ready_);
  return state_->records[static_cast<size_t>(block)].subspan(
      kRecordHeaderBytes, static_cast<size_t>(state_->payload_bytes));
}

uint16_t KvLoad::replay_gen(int64_t block) const {
  DI_CHECK(block >= 0 && block < ready_);
  return HeaderOf(state_->records[static_cast<size_t>(block)]).replay_gen;
}

MissReason KvLoad::failure() const {
  if (ready_ == num_blocks()) return MissReason::kNone;
  const auto block = static_cast<size_t>(ready_);
  return state_->status[block].load(std::memory_order_acquire) == BlockStatus::kFailed
             ? state_->failure[block]
             : MissReason::kDeadline;
}

int64_t KvLoad::last_arrival_us() const {
  return state_->last_arrival_us.load(std::memory_order_relaxed);
}

std::unique_ptr<KvLoad> BlockLoader::Begin(std::vector<BlockRequest> blocks, int64_t deadline_us) {
  const KvBlockLayout& layout = context_->options.layout;
  auto state = std::make_shared<KvLoad::State>();
  state->status = std::vector<std::atomic<BlockStatus>>(blocks.size());
  state->failure.resize(blocks.size());
  state->records.resize(blocks.size());
  state->payload_bytes = layout.payload_bytes();
  state->deadline_us = deadline_us;
  state->late_blocks = &context_->counters.late_blocks;
  state->breaker = &breaker_;
  state->blocks = std::move(blocks);

  // Neighbours on disk that are also neighbours in the prefix share a read.
  const int64_t max_records = std::max<int64_t>(1, kMaxReadBytes / layout.record_bytes());
  for (size_t i = 0; i < state->blocks.size(); ++i) {
    const BlockLocation& location = state->blocks[i].indexed.location;
    KvLoad::Run* last = state->runs.empty() ? nullptr : state->runs.back().get();
    if (last != nullptr && static_cast<int64_t>(last->blocks.size()) < max_records) {
      const BlockLocation& before = state->blocks[last->blocks.back()].indexed.location;
      if (before.segment == location.segment && before.record + 1 == location.record) {
        last->blocks.push_back(i);
        continue;
      }
    }
    state->runs.push_back(std::make_unique<KvLoad::Run>());
    state->runs.back()->blocks.push_back(i);
  }
  for (const auto& run : state->runs) Submit(state, run.get());
  return std::unique_ptr<KvLoad>(new KvLoad(std::move(state)));
}

void BlockLoader::Submit(const std::shared_ptr<KvLoad::State>& state, KvLoad::Run* run) {
  const KvBlockLayout& layout = context_->options.layout;
  const BlockLocation& first = state->blocks[run->blocks.front()].indexed.location;
  const int64_t now_us = context_->clock->NowUs();
  run->permit = breaker_.Allow(now_us);
  if (run->permit != ReadPermit::kRefused) {
    run->buffer = PageBuffer(static_cast<int64_t>(run->blocks.size()) * layout.record_bytes());
  }
  if (!run->buffer.ok()) {
    const bool is_off = run->permit == ReadPermit::kRefused;
    for (const size_t block : run->blocks) {
      state->failure[block] = is_off ? MissReason::kBreaker : MissReason::kIoError;
      state->status[block].store(BlockStatus::kFailed, std::memory_order_release);
    }
    return;
  }
  run->submitted_us = now_us;
  run->arrived.store(false, std::memory_order_relaxed);
  ++reads_in_flight_;
  ReadRequest request;
  request.file = context_->segments.OpenedFile(first.segment);
  request.open = [segments = &context_->segments, segment = first.segment] {
    return segments->OpenForRead(segment);
  };
  request.into = run->buffer.bytes();
  request.offset = layout.RecordOffset(first.record);
  // The read keeps the load's state, and so its buffer, alive until it is done.
  request.done = [this, state, run](const Result<size_t>& read) {
    Arrived(state.get(), run, read);
    --reads_in_flight_;
  };
  backend_->Submit(std::move(request));
}

void BlockLoader::Missing(const BlockRequest& block) {
  // What a peer's log says, it says: its folder may only have been renamed.
  const uint32_t segment = block.indexed.location.segment;
  if (context_->segments.ResidenceOf(segment) == Residence::kPeer) {
    context_->segments.NoteMissing(segment);
  } else {
    context_->Forget(block.key, block.indexed);
  }
}

void BlockLoader::Arrived(KvLoad::State* state, KvLoad::Run* arrived, const Result<size_t>& read) {
  const KvLoad::Run& run = *arrived;
  const int64_t now_us = context_->clock->NowUs();
  const bool gone = read.status().code() == StatusCode::kNotFound;
  breaker_.Record(run.permit, read.ok() || gone, now_us - run.submitted_us, now_us);
  arrived->arrived.store(true, std::memory_order_relaxed);
  if (!read.ok() && !gone) ++context_->counters.read_errors;
  if (gone) {
    for (const size_t block : run.blocks) Missing(state->blocks[block]);
  }
  if (state->given_up.load(std::memory_order_relaxed)) return;
  state->last_arrival_us.store(now_us, std::memory_order_relaxed);
  const auto record_bytes = static_cast<size_t>(context_->options.layout.record_bytes());
  for (size_t i = 0; i < run.blocks.size(); ++i) {
    const size_t block = run.blocks[i];
    const BlockRequest& wanted = state->blocks[block];
    bool ok = read.ok() && *read >= (i + 1) * record_bytes;
    bool keyless = false;
    const auto record = arrived->buffer.bytes().subspan(i * record_bytes, record_bytes);
    if (ok) {
      const RecordFault fault = Accept(wanted, record);
      ok = fault == RecordFault::kNone;
      // Nobody here can read it: room for one that can be read.
      keyless = fault == RecordFault::kNoKey;
      if (keyless) context_->Forget(wanted.key, wanted.indexed);
    } else if (read.ok()) {
      Reject(wanted, RecordFault::kHeader);  // the file ends too early
    }
    if (ok) {
      state->records[block] = record;
      ++context_->counters.loaded_blocks;
    } else {
      state->failure[block] = gone || keyless ? MissReason::kAbsent
                              : read.ok()     ? MissReason::kCorrupt
                                              : MissReason::kIoError;
    }
    state->status[block].store(ok ? BlockStatus::kVerified : BlockStatus::kFailed,
                               std::memory_order_release);
  }
}

RecordFault BlockLoader::Accept(const BlockRequest& block, std::span<std::byte> record) {
  const KvBlockLayout& layout = context_->options.layout;
  const RecordFault fault = VerifyRecord(layout, record, block.key, block.block_number);
  if (fault != RecordFault::kNone) {
    Reject(block, fault);
    return fault;
  }
  const RecordHeader header = HeaderOf(record);
  if ((header.flags & kRecordEncrypted) == 0) return RecordFault::kNone;
  const auto key = context_->keys->Find(header.tenant_tag);
  if (key && DecryptRecord(layout, *key, record)) return RecordFault::kNone;
  // The checksums of what is stored agree: it is the key that is not the one it was written with.
  // With the right one the block can be read again, so nothing on disk is touched.
  if (context_->counters.keyless_blocks++ == 0) {
    Log(LogLevel::kWarning, "kv.no_key_for_block",
        {{"tenant_tag", fmt::format("{:016x}", header.tenant_tag)},
         {"key", key ? "another one" : "none"}});
  }
  return RecordFault::kNoKey;
}

void BlockLoader::Reject(const BlockRequest& block, RecordFault fault) {
  ++context_->counters.corrupt_records;
  const uint32_t segment = block.indexed.location.segment;
  context_->Forget(block.key, block.indexed);
  std::string path;
  context_->segments.Update(segment, [&](SegmentInfo* info) {
    if (++info->faults < kFaultsToQuarantine || info->state == SegmentState::kQuarantined) return;
    // An open segment keeps its name for its writer, a peer's for its owner; it is only read no
    // more.
    if (info->state == SegmentState::kSealed && !info->peer) path = info->path;
    info->state = SegmentState::kQuarantined;
    ++context_->counters.quarantined_segments;
  });
  Log(LogLevel::kWarning, "kv.corrupt_record",
      {{"key", block.key.Hex()}, {"fault", RecordFaultName(fault)}, {"quarantined", path}});
  if (path.empty()) return;
  const std::string bad = path.substr(0, path.rfind('.')) + ".bad";
  if (context_->files->Rename(path, bad).ok()) {
    context_->segments.Update(segment, [&](SegmentInfo* info) { info->path = bad; });
  }
}

Status BlockLoader::ReadNow(const BlockRequest& block, PageBuffer* record) {
  const KvBlockLayout& layout = context_->options.layout;
  DI_ASSIGN_OR_RETURN(const auto file,
                      context_->segments.OpenForRead(block.indexed.location.segment));
  *record = PageBuffer(layout.record_bytes());
  if (!record->ok()) return ResourceExhausted("no memory for a record");
  DI_ASSIGN_OR_RETURN(
      const size_t read,
      file->ReadAt(record->bytes(), layout.RecordOffset(block.indexed.location.record)));
  if (read < record->bytes().size()) {
    Reject(block, RecordFault::kHeader);
    return DataCorruption("the file ends inside a record");
  }
  const RecordFault fault = Accept(block, record->bytes());
  if (fault == RecordFault::kNone) return OkStatus();
  return DataCorruption(std::string("record: ") + std::string(RecordFaultName(fault)));
}

}  // namespace deepinfer
