// Where the parts of blocks lie in the image of a state.

#include "engine/state_image.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace deepinfer {
namespace {

std::vector<std::byte> Block(int seed) {
  std::vector<std::byte> block(60);
  for (size_t i = 0; i < block.size(); ++i) {
    block[i] = static_cast<std::byte>(i * 3 + static_cast<size_t>(seed) * 71);
  }
  return block;
}

TEST(StateImage, HoldsTheSlotAndThenOneRunForEachSource) {
  const StateImageLayout layout(100, {10, 20, 30}, 4);
  EXPECT_EQ(layout.size_bytes(), 100 + 4 * 60);
  EXPECT_EQ(layout.ImageOffset(0, 0), 100);
  EXPECT_EQ(layout.ImageOffset(0, 3), 130);
  EXPECT_EQ(layout.ImageOffset(1, 0), 140);
  EXPECT_EQ(layout.ImageOffset(2, 3), 100 + 40 + 80 + 90);
  EXPECT_EQ(layout.BlockOffset(2), 30);
}

TEST(StateImage, GivesBlocksBackInAnyOrder) {
  const StateImageLayout layout(100, {10, 20, 30}, 4);
  std::vector<std::byte> image(static_cast<size_t>(layout.size_bytes()), std::byte{0xEE});
  for (const int i : {2, 0, 3, 1}) layout.PutBlock(i, Block(i).data(), image);
  for (int i = 0; i < 4; ++i) {
    std::vector<std::byte> block(60);
    layout.GetBlock(i, image, block.data());
    EXPECT_EQ(block, Block(i)) << i;
  }
  EXPECT_TRUE(std::all_of(image.begin(), image.begin() + 100,
                          [](std::byte b) { return b == std::byte{0xEE}; }));
}

TEST(StateImage, OfNoPositionsIsTheSlot) {
  EXPECT_EQ(StateImageLayout(100, {10, 20}, 0).size_bytes(), 100);
}

TEST(StateImage, SectionsOfABlockAddUpToIt) {
  KvLayout layout;
  layout.block_bytes = 256;
  for (const int64_t offset : {0, 64, 192}) {
    KvSection section;
    section.main_offset = offset;
    section.size_bytes = 50;
    layout.sections.push_back(section);
  }
  EXPECT_EQ(SectionBytes(layout), (std::vector<int64_t>{64, 128, 64}));
}

}  // namespace
}  // namespace deepinfer
