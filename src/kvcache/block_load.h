// Reading blocks of a prefix from disk: asynchronous, with a deadline, verified, and useful in part
// (kv_format.md §17).
//
// A load owns its buffers together with the reads in flight: a read that ends after the load was
// given up writes into memory that still belongs to it.
// Thread rule: a KvLoad belongs to one thread and ends before its store; a BlockLoader takes calls
// from any.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvcache/breaker.h"
#include "kvcache/miss_reason.h"
#include "kvcache/page_buffer.h"
#include "kvcache/read_backend.h"
#include "kvcache/record.h"
#include "kvcache/store_context.h"

namespace deepinfer {

// A block to load: where the index says it lies, and what it must be.
struct BlockRequest {
  BlockKey key;
  uint32_t block_number = 0;
  IndexedBlock indexed;
};

class KvLoad {
 public:
  // Gives outstanding reads up.
  ~KvLoad();
  KvLoad(const KvLoad&) = delete;
  KvLoad& operator=(const KvLoad&) = delete;

  // Leading blocks that are verified so far; never falls. After done() it is final.
  int64_t Poll(int64_t now_us);
  // Every block has arrived or failed, the deadline has passed, or Cancel was called.
  bool done() const { return done_; }
  // Gives up what has not arrived; may be called at any time and again.
  void Cancel();

  int64_t num_blocks() const;
  // Of a block below the last Poll: payload [layout.payload_bytes()], valid while the load lives.
  std::span<const std::byte> Payload(int64_t block) const;
  uint16_t replay_gen(int64_t block) const;
  // Of a load that is done: why the first block behind the last Poll is missing; kNone when none
  // is, kDeadline also after Cancel.
  MissReason failure() const;
  // Monotonic time of the last read that ended so far.
  int64_t last_arrival_us() const;

 private:
  friend class BlockLoader;
  struct State;
  struct Run;  // neighbouring records: one read and its buffer
  explicit KvLoad(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::shared_ptr<State> state_;
  int64_t ready_ = 0;
  bool done_ = false;
};

class BlockLoader {
 public:
  BlockLoader(StoreContext* context, std::unique_ptr<ReadBackend> backend)
      : context_(context), backend_(std::move(backend)) {}

  // Starts reading in ascending order of blocks. Blocks that cannot be read fail; nothing throws.
  std::unique_ptr<KvLoad> Begin(std::vector<BlockRequest> blocks, int64_t deadline_us);

  // One record, read and verified now, on the caller's thread.
  Status ReadNow(const BlockRequest& block, PageBuffer* record);

  // No read would be sent now: a lookup need not promise anything.
  bool IsOff() const { return breaker_.IsOff(context_->clock->NowUs()); }
  std::string TierState() const { return breaker_.StateText(context_->clock->NowUs()); }
  const char* backend_name() const { return backend_->name(); }
  // Reads submitted and not done; 0 when idle.
  int64_t reads_in_flight() const { return reads_in_flight_.load(); }

 private:
  void Submit(const std::shared_ptr<KvLoad::State>& state, KvLoad::Run* run);
  void Arrived(KvLoad::State* state, KvLoad::Run* arrived, const Result<size_t>& read);
  // Verifies a record and decrypts it in place when it is encrypted; kNone, or the fault,
  // which was counted.
  RecordFault Accept(const BlockRequest& block, std::span<std::byte> record);
  // The file of the block is gone: an ordinary miss.
  void Missing(const BlockRequest& block);
  // Counts a record that failed its check; two in one segment put it into quarantine.
  void Reject(const BlockRequest& block, RecordFault fault);

  StoreContext* context_;
  CircuitBreaker breaker_;
  std::atomic<int64_t> reads_in_flight_{0};
  std::unique_ptr<ReadBackend> backend_;  // last: its threads use the rest
};

}  // namespace deepinfer
