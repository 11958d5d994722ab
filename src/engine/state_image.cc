#include "engine/state_image.h"

#include <cstring>
#include <utility>

namespace deepinfer {

StateImageLayout::StateImageLayout(int64_t slot_bytes, std::vector<int64_t> section_bytes,
                                   int32_t num_blocks)
    : slot_bytes_(slot_bytes), num_blocks_(num_blocks), size_bytes_(slot_bytes) {
  int64_t block_offset = 0;
  for (const int64_t part_bytes : section_bytes) {
    sections_.push_back({part_bytes, size_bytes_, block_offset});
    size_bytes_ += part_bytes * num_blocks;
    block_offset += part_bytes;
  }
}

void StateImageLayout::PutBlock(int32_t block, const std::byte* from,
                                std::span<std::byte> image) const {
  for (size_t s = 0; s < sections_.size(); ++s) {
    std::memcpy(image.data() + ImageOffset(s, block), from + BlockOffset(s),
                static_cast<size_t>(section_bytes(s)));
  }
}

void StateImageLayout::GetBlock(int32_t block, std::span<const std::byte> image,
                                std::byte* to) const {
  for (size_t s = 0; s < sections_.size(); ++s) {
    std::memcpy(to + BlockOffset(s), image.data() + ImageOffset(s, block),
                static_cast<size_t>(section_bytes(s)));
  }
}

std::vector<int64_t> SectionBytes(const KvLayout& layout) {
  std::vector<int64_t> bytes;
  for (size_t s = 0; s < layout.sections.size(); ++s) {
    const bool last = s + 1 == layout.sections.size();
    const int64_t end = last ? layout.block_bytes : layout.sections[s + 1].main_offset;
    bytes.push_back(end - layout.sections[s].main_offset);
  }
  return bytes;
}

StateImageLayout LayoutOfImage(const KvLayout& layout, int32_t num_positions) {
  return {layout.slot_bytes, SectionBytes(layout),
          static_cast<int32_t>(KvLayout::NumBlocks(num_positions))};
}

}  // namespace deepinfer
