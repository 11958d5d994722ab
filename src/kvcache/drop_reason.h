// Why a block that was offered to the store is not stored: the label of dropped writes in metrics.
// Thread rule: values.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deepinfer {

enum class DropReason : uint8_t {
  kQueueFull,
  kTenantQuota,
  kClassQuota,
  kKeyDestroyed,
  kError,    // of the disk, or no memory
  kNoSpace,  // the files take all that they may, until the janitor has made room
};
inline constexpr size_t kNumDropReasons = 6;

}  // namespace deepinfer
