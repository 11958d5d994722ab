// Blocks whose bytes follow from their keys: any mix-up shows.
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvcache/keys.h"
#include "kvcache/layout.h"

namespace deepinfer {

// Two sections of unlike rows; a record is one page, a segment of 16 pages holds 14.
inline KvBlockLayout SmallLayout() {
  KvBlockLayout layout;
  layout.format_id = kFirstTestFormat;
  layout.block_tokens = 8;
  layout.segment_pages = 16;
  layout.sections = {{2, 4, 36, 9}, {20, 8, 36, 9}};
  return layout;
}

inline BlockKey NumberedKey(uint32_t chain, uint32_t block) {
  return {Sha256(std::to_string(chain) + "/" + std::to_string(block))};
}

inline std::vector<BlockKey> NumberedKeys(uint32_t chain, uint32_t count) {
  std::vector<BlockKey> keys;
  for (uint32_t block = 0; block < count; ++block) keys.push_back(NumberedKey(chain, block));
  return keys;
}

inline std::vector<std::byte> PayloadOfKey(const KvBlockLayout& layout, const BlockKey& key) {
  std::vector<std::byte> payload(static_cast<size_t>(layout.payload_bytes()));
  for (size_t i = 0; i < payload.size(); ++i) {
    payload[i] = std::byte{static_cast<uint8_t>(key.bytes[i % 32] + i / 32)};
  }
  return payload;
}

}  // namespace deepinfer
