#include "kvcache/pinning.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace deepinfer {
namespace {

// Blocks of one commit: far fewer bytes than the write queue may hold.
constexpr size_t kBatchBlocks = 256;

// The stored record of a block as a write into another class; none when it is not stored, not
// readable, or not to be kept longer than it is.
std::optional<BlockWrite> CopyInto(KvStore* store, const ChainBlock& block, RetentionClass target) {
  const auto indexed = store->context().index.Find(block.key);
  if (!indexed) return std::nullopt;
  const bool is_pinned = indexed->retention == RetentionClass::kPinned;
  if (is_pinned == (target == RetentionClass::kPinned)) return std::nullopt;
  BlockWrite write;
  if (!store->loader()->ReadNow({block.key, block.number, *indexed}, &write.record).ok()) {
    return std::nullopt;
  }
  write.header = FromBytes<RecordHeader>(write.record.bytes());
  if ((write.header.flags & kRecordAbsoluteDeadline) != 0) return std::nullopt;
  const int64_t now_ns = store->context().wall_clock->UnixNs();
  write.header.retention = static_cast<uint8_t>(target);
  write.header.created_ns = static_cast<uint64_t>(now_ns);
  write.deadline_ns = store->context().Policy(target).DeadlineNs(now_ns);
  write.copy_of = indexed->location;
  return write;
}

template <typename Batch>
Status InBatches(std::span<const ChainBlock> blocks, Batch batch) {
  for (size_t begin = 0; begin < blocks.size(); begin += kBatchBlocks) {
    DI_RETURN_IF_ERROR(batch(blocks.subspan(begin, std::min(kBatchBlocks, blocks.size() - begin))));
  }
  return OkStatus();
}

}  // namespace

Result<int64_t> PinBlocks(KvStore* store, std::span<const ChainBlock> blocks) {
  int64_t pinned = 0;
  const Status status = InBatches(blocks, [&](std::span<const ChainBlock> batch) -> Status {
    for (const ChainBlock& block : batch) {
      auto write = CopyInto(store, block, RetentionClass::kPinned);
      if (!write) continue;
      // The index has to know the class before the old segment expires.
      store->Touch({&block.key, 1}, RetentionClass::kPinned);
      if (store->PublishCopy(*std::move(write)) == PublishResult::kQueued) ++pinned;
    }
    store->Flush(false);
    return OkStatus();
  });
  store->Flush(true);
  DI_RETURN_IF_ERROR(status);
  return pinned;
}

// An erasure ends the pinned copies, also those of peers, which nobody else may rewrite; then the
// blocks are stored again.
Result<int64_t> UnpinBlocks(KvStore* store, std::span<const ChainBlock> blocks) {
  int64_t unpinned = 0;
  const Status status = InBatches(blocks, [&](std::span<const ChainBlock> batch) -> Status {
    std::vector<BlockWrite> writes;
    std::vector<BlockKey> keys;
    for (const ChainBlock& block : batch) {
      auto write = CopyInto(store, block, RetentionClass::kChat);
      if (!write) continue;
      write->copy_of = std::nullopt;
      keys.push_back(block.key);
      writes.push_back(*std::move(write));
    }
    DI_RETURN_IF_ERROR(store->EraseKeys(keys).status());
    for (BlockWrite& write : writes) {
      if (store->PublishCopy(std::move(write)) == PublishResult::kQueued) ++unpinned;
    }
    store->Flush(false);
    return OkStatus();
  });
  store->Flush(true);
  DI_RETURN_IF_ERROR(status);
  return unpinned;
}

}  // namespace deepinfer
