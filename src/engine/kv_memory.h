// The cache memory of one engine: block pool with prefix index, state slots, host pool of window
// state, and the bytes behind them.
// Thread rule: engine thread; steps read and write blocks and slots they were given. Owner: Engine.
#pragma once

#include <memory>

#include "base/result.h"
#include "engine/options.h"
#include "kvcache/block_pool.h"
#include "kvcache/slot_pool.h"
#include "kvcache/swa_pool.h"
#include "model/model.h"

namespace deepinfer {

class KvMemory {
 public:
  // model is borrowed. invalid_request when kv_cache_tokens cannot hold max_model_len in 80 % of
  // it, resource_exhausted when memory is not to be had; both say the numbers.
  static Result<std::unique_ptr<KvMemory>> Create(Model* model, const EngineOptions& options);
  ~KvMemory();

  BlockPool& blocks() { return blocks_; }
  const BlockPool& blocks() const { return blocks_; }
  SlotPool& slots() { return slots_; }
  const SlotPool& slots() const { return slots_; }
  SwaPool& swa() { return swa_; }

  // A free slot without a trace of its last owner; -1 when all are lent.
  int32_t AcquireCleanSlot();

  std::byte* pool() { return pool_; }
  std::byte* Block(int32_t block) { return pool_ + block * layout().block_bytes; }
  std::byte* Slot(int32_t slot) { return slot_memory_ + slot * slot_stride_; }

  const KvLayout& layout() const { return model_->layout(); }
  // What a replay needs to know about the model.
  const ReplayGeometry& geometry() const { return geometry_; }
  // Leading bytes of a slot that are the encoder rings: what a snapshot keeps.
  int64_t encoder_ring_bytes() const { return geometry_.encoder_layers * layout().ring_bytes; }
  int64_t capacity_tokens() const { return blocks_.stats().capacity * kBlockTokens; }

 private:
  KvMemory(Model* model, int64_t num_blocks, int32_t num_slots, int64_t swa_bytes);

  Model* model_;
  BlockPool blocks_;
  SlotPool slots_;
  SwaPool swa_;
  ReplayGeometry geometry_;
  int64_t slot_stride_ = 0;  // slot_bytes, rounded up so that every slot is aligned alike
  std::byte* pool_ = nullptr;
  std::byte* slot_memory_ = nullptr;
};

}  // namespace deepinfer
