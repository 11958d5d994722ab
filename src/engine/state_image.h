// The bytes of a sequence's state outside of the cache memory: parked, or on the way to another
// engine. First the state slot, then for each KV source its part of every block of the positions
// that are covered, then what a profile adds.
//
// Parts of one source lie together, so that those of a prompt chunk are one run of bytes for each
// source.
// Thread rule: values and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "model/kv_layout.h"

namespace deepinfer {

class StateImageLayout {
 public:
  // section_bytes: of each KV source's part of a block, in the order they have in it.
  StateImageLayout(int64_t slot_bytes, std::vector<int64_t> section_bytes, int32_t num_blocks);

  int64_t size_bytes() const { return size_bytes_; }
  int64_t slot_bytes() const { return slot_bytes_; }
  int32_t num_blocks() const { return num_blocks_; }
  size_t num_sections() const { return sections_.size(); }
  int64_t section_bytes(size_t section) const { return sections_[section].part_bytes; }
  // Where the part of a source of block i lies, in the image and in the block.
  int64_t ImageOffset(size_t section, int32_t block) const {
    return sections_[section].image_offset + block * sections_[section].part_bytes;
  }
  int64_t BlockOffset(size_t section) const { return sections_[section].block_offset; }

  // All parts of one block [KvLayout::block_bytes].
  void PutBlock(int32_t block, const std::byte* from, std::span<std::byte> image) const;
  void GetBlock(int32_t block, std::span<const std::byte> image, std::byte* to) const;

 private:
  struct Section {
    int64_t part_bytes = 0;
    int64_t image_offset = 0;
    int64_t block_offset = 0;
  };

  int64_t slot_bytes_;
  int32_t num_blocks_;
  int64_t size_bytes_;
  std::vector<Section> sections_;
};

// Parts of a block with the padding behind each; they add up to KvLayout::block_bytes.
std::vector<int64_t> SectionBytes(const KvLayout& layout);

StateImageLayout LayoutOfImage(const KvLayout& layout, int32_t num_positions);

}  // namespace deepinfer
