#include "model/draft_markov_rows.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

TEST(DraftMarkovRows, KeepsTheRowsThatWereAskedForLast) {
  constexpr int64_t kVocab = 8;
  DraftMarkovRows rows(kVocab, 3 * kVocab * 4);
  ASSERT_EQ(rows.max_rows(), 3u);
  for (const int32_t id : {10, 11, 12}) {
    EXPECT_EQ(rows.Find(id), nullptr);
    rows.Add(id)[0] = static_cast<float>(id);
  }
  EXPECT_EQ(rows.Find(10)[0], 10.0f);
  // 11 was not asked for the longest.
  rows.Add(13)[0] = 13.0f;
  EXPECT_EQ(rows.Find(11), nullptr);
  for (const int32_t id : {10, 12, 13}) {
    ASSERT_NE(rows.Find(id), nullptr) << id;
    EXPECT_EQ(rows.Find(id)[0], static_cast<float>(id));
  }
}

TEST(DraftMarkovRows, HoldsAtLeastOneRow) {
  DraftMarkovRows rows(1000, 10);
  EXPECT_EQ(rows.max_rows(), 1u);
  rows.Add(1)[999] = 1.0f;
  rows.Add(2)[999] = 2.0f;
  EXPECT_EQ(rows.Find(1), nullptr);
  EXPECT_EQ(rows.Find(2)[999], 2.0f);
}

}  // namespace
}  // namespace deepinfer
