// Byte sizes of the released cache (model.md §12, kv_format.md) and the addresses inside it.

#include "model/kv_layout.h"

#include <gtest/gtest.h>

#include <set>

#include "unit/model/model_test_data.h"

namespace deepinfer {
namespace {

TEST(KvLayoutTest, ReleasedSizes) {
  const KvLayout k = KvLayout::Create(ReleasedConfig(), KvFormat::kQuantized);
  EXPECT_EQ(k.window_row_bytes, 528);
  EXPECT_EQ(k.main_row_bytes, 288);
  EXPECT_EQ(k.index_code_bytes + k.index_scale_bytes, 68);
  ASSERT_EQ(k.sections.size(), 4u);
  const int32_t layers[] = {2, 8, 14, 20};
  for (size_t s = 0; s < 4; ++s) {
    EXPECT_EQ(k.sections[s].layer, layers[s]);
    EXPECT_EQ(k.sections[s].entries_per_block, s < 3 ? 64 : 128);
    EXPECT_EQ(k.sections[s].size_bytes, s < 3 ? 22784 : 45568);
  }
  EXPECT_EQ(k.block_bytes, 113920);
  EXPECT_EQ(k.block_bytes, 890 * kBlockTokens);
  EXPECT_EQ(KvLayout::NumBlocks(int64_t{1} << 20) * k.block_bytes, 933232640);

  EXPECT_EQ(k.ring_rows, 134);
  EXPECT_EQ(k.num_rings, 43);
  EXPECT_EQ(20 * k.ring_bytes, 1415040);
  EXPECT_EQ(40 * k.ring_bytes, 2830080);
  EXPECT_EQ(k.compressor_ring_rows, 7);
  EXPECT_EQ(k.compressor_row_bytes, 4096);
  EXPECT_EQ(k.compressor_ring_offset + 3 * 7 * 4096, 3128352);
  EXPECT_EQ(k.slot_bytes, 3128928);
}

TEST(KvLayoutTest, BlocksCoverEveryToken) {
  EXPECT_EQ(KvLayout::NumBlocks(0), 0);
  EXPECT_EQ(KvLayout::NumBlocks(1), 1);
  EXPECT_EQ(KvLayout::NumBlocks(128), 1);
  EXPECT_EQ(KvLayout::NumBlocks(129), 2);
}

// Claims every byte of a range once; false when one was taken or lies outside [0, size).
bool Claim(const std::byte* base, const std::byte* at, int64_t bytes, std::vector<bool>* taken) {
  const int64_t begin = at - base;
  if (begin < 0 || begin + bytes > static_cast<int64_t>(taken->size())) return false;
  for (int64_t i = begin; i < begin + bytes; ++i) {
    if ((*taken)[static_cast<size_t>(i)]) return false;
    (*taken)[static_cast<size_t>(i)] = true;
  }
  return true;
}

TEST(KvLayoutTest, RowsOfPagesAndSlotsNeverOverlap) {
  for (const ModelConfig& c : {ReleasedConfig(), TinyConfig()}) {
    for (const KvFormat format : {KvFormat::kQuantized, KvFormat::kFloat32}) {
      const KvLayout k = KvLayout::Create(c, format);
      std::vector<std::byte> pool(static_cast<size_t>(2 * k.block_bytes));
      std::vector<bool> taken(pool.size(), false);
      const int32_t table[] = {1, 0};
      for (size_t s = 0; s < k.sections.size(); ++s) {
        const KvPages pages = k.Pages(static_cast<int32_t>(s), pool.data(), table);
        for (int64_t j = 0; j < 2 * k.sections[s].entries_per_block; ++j) {
          ASSERT_TRUE(Claim(pool.data(), pages.MainRow(j), k.main_row_bytes, &taken)) << s;
          ASSERT_TRUE(Claim(pool.data(), pages.IndexCodes(j), k.index_code_bytes, &taken)) << s;
          ASSERT_TRUE(Claim(pool.data(), pages.IndexScales(j), k.index_scale_bytes, &taken)) << s;
        }
        // The first entries of a sequence lie in the page its table names first.
        EXPECT_GE(pages.MainRow(0) - pool.data(), k.block_bytes);
      }
      std::vector<std::byte> slot(static_cast<size_t>(k.slot_bytes));
      taken.assign(slot.size(), false);
      for (int32_t l = 0; l < k.num_rings; ++l) {
        ASSERT_TRUE(Claim(slot.data(), k.Ring(slot.data(), l), k.ring_bytes, &taken)) << l;
      }
      for (size_t s = 0; s < k.sections.size(); ++s) {
        if (k.sections[s].ratio != 2) continue;
        std::byte* ring = k.CompressorRing(slot.data(), static_cast<int32_t>(s));
        ASSERT_TRUE(
            Claim(slot.data(), ring, k.compressor_ring_rows * k.compressor_row_bytes, &taken));
        EXPECT_EQ((ring - slot.data()) % 4, 0);
      }
    }
  }
}

}  // namespace
}  // namespace deepinfer
