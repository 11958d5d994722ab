#include "engine/kv_memory.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace deepinfer {

namespace {

// Share of the machine's memory that an unconfigured block pool, or pool of window state, takes at
// most: the model's weights, the page cache and other processes need the rest.
constexpr int64_t kPoolShare = 4;
constexpr int64_t kSwaShare = 10;
// Slots beyond max_num_seqs serve forks and the step in which a sequence ends (architecture.md §8).
constexpr int32_t kSpareSlotsPercent = 20;
// Of the rows of fp32 inside a slot.
constexpr int64_t kSlotAlignment = 64;

int64_t PhysicalBytes() {
  return std::max<int64_t>(1, sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

// Blocks so that max_model_len fits in 80 % of the pool.
int64_t LeastBlocks(const EngineOptions& o) {
  return (KvLayout::NumBlocks(o.max_model_len) * 5 + 3) / 4;
}

int64_t AutomaticBlocks(const EngineOptions& o, const KvLayout& layout) {
  const int64_t wanted = int64_t{o.max_num_seqs} * KvLayout::NumBlocks(o.max_model_len);
  const int64_t affordable = PhysicalBytes() / kPoolShare / layout.block_bytes;
  return std::max(LeastBlocks(o), std::min(wanted, affordable));
}

}  // namespace

KvMemory::KvMemory(Model* model, int64_t num_blocks, int32_t num_slots, int64_t swa_bytes)
    : model_(model),
      blocks_(static_cast<int32_t>(num_blocks) + 1),
      slots_(num_slots),
      swa_(SwaPoolOptions{.capacity_bytes = swa_bytes}) {
  const ModelConfig& config = model->config();
  slot_stride_ =
      (model->layout().slot_bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
  geometry_.window = config.window;
  geometry_.keep_rows = config.decoder_keep_rows();
  geometry_.encoder_layers = config.decoder_start();
}

Result<std::unique_ptr<KvMemory>> KvMemory::Create(Model* model, const EngineOptions& o) {
  const KvLayout& layout = model->layout();
  int64_t num_blocks = AutomaticBlocks(o, layout);
  if (o.kv_cache_tokens > 0) {
    num_blocks = o.kv_cache_tokens / kBlockTokens;
    if (num_blocks < LeastBlocks(o)) {
      return InvalidRequest(
          "kv_cache_tokens " + std::to_string(o.kv_cache_tokens) + " makes " +
          std::to_string(num_blocks) + " blocks of " + std::to_string(kBlockTokens) +
          " tokens; max_model_len " + std::to_string(o.max_model_len) +
          " must fit in 80 % of them and needs " + std::to_string(LeastBlocks(o)));
    }
  }
  const int32_t num_slots = o.max_num_seqs + o.max_num_seqs * kSpareSlotsPercent / 100 + 1;
  const int64_t swa_bytes = o.swa_pool_bytes >= 0 ? o.swa_pool_bytes : PhysicalBytes() / kSwaShare;
  std::unique_ptr<KvMemory> memory(new KvMemory(model, num_blocks, num_slots, swa_bytes));
  const int64_t pool_bytes = (num_blocks + 1) * layout.block_bytes;
  memory->pool_ = model->ops()->Allocate(pool_bytes);
  memory->slot_memory_ = model->ops()->Allocate(num_slots * memory->slot_stride_);
  if (memory->pool_ == nullptr || memory->slot_memory_ == nullptr) {
    return ResourceExhausted("no memory for " + std::to_string(pool_bytes) +
                             " bytes of KV cache: lower --max-model-len");
  }
  return memory;
}

int32_t KvMemory::AcquireCleanSlot() {
  const int32_t slot = slots_.Acquire();
  if (slot >= 0) std::memset(Slot(slot), 0, static_cast<size_t>(layout().slot_bytes));
  return slot;
}

KvMemory::~KvMemory() {
  model_->ops()->Free(pool_);
  model_->ops()->Free(slot_memory_);
}

}  // namespace deepinfer
