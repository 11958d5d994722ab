#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include "tensor/tensor_view.h"

namespace deepinfer {
namespace {

TEST(DTypeTest, NamesRoundTrip) {
  for (int i = 0; i < kNumDTypes; ++i) {
    const DType dtype = static_cast<DType>(i);
    EXPECT_EQ(DTypeFromName(DTypeName(dtype)), dtype) << DTypeName(dtype);
  }
}

TEST(DTypeTest, NamesAndSizesAreThoseOfTheFormat) {
  EXPECT_EQ(DTypeName(DType::kF8E4M3), "F8_E4M3");
  EXPECT_EQ(DTypeName(DType::kF8E8M0), "F8_E8M0");
  EXPECT_EQ(DTypeName(DType::kBF16), "BF16");
  EXPECT_EQ(DTypeName(DType::kBool), "BOOL");
  EXPECT_EQ(DTypeBits(DType::kF4), 4);
  EXPECT_EQ(DTypeBits(DType::kF6E3M2), 6);
  EXPECT_EQ(DTypeBits(DType::kF8E8M0), 8);
  EXPECT_EQ(DTypeBits(DType::kBF16), 16);
  EXPECT_EQ(DTypeBits(DType::kF32), 32);
  EXPECT_EQ(DTypeBits(DType::kI64), 64);
  EXPECT_EQ(DTypeBits(DType::kC64), 64);
}

TEST(DTypeTest, NamesMatchExactly) {
  EXPECT_FALSE(DTypeFromName("bf16"));
  EXPECT_FALSE(DTypeFromName("F8_E4M3FN"));
  EXPECT_FALSE(DTypeFromName("F32 "));
  EXPECT_FALSE(DTypeFromName(""));
}

TEST(ShapeTest, ComparesAndPrints) {
  EXPECT_EQ(Shape({2, 3}), Shape({2, 3}));
  EXPECT_FALSE(Shape({2, 3}) == Shape({3, 2}));
  EXPECT_FALSE(Shape({2}) == Shape({2, 0}));
  EXPECT_EQ(Shape({129280, 5120}).ToString(), "[129280, 5120]");
  EXPECT_EQ(Shape().ToString(), "[]");
  EXPECT_EQ(Shape({4, 5})[1], 5);
  EXPECT_EQ(Shape({4, 5}).rank(), 2);
}

TEST(TensorSizeTest, MultipliesShapeAndItemSize) {
  EXPECT_EQ(*TensorSizeBytes(DType::kF32, {3, 5}), 60u);
  EXPECT_EQ(*TensorSizeBytes(DType::kBF16, {}), 2u);
  EXPECT_EQ(*TensorSizeBytes(DType::kI8, {7, 0}), 0u);
  EXPECT_EQ(*TensorSizeBytes(DType::kF4, {3, 2}), 3u);
}

TEST(TensorSizeTest, RefusesOverflowAndPartialBytes) {
  const int64_t big = int64_t{1} << 32;
  EXPECT_FALSE(TensorSizeBytes(DType::kU8, {big, big}).ok());
  EXPECT_FALSE(TensorSizeBytes(DType::kU8, {0, big, big}).ok());
  EXPECT_FALSE(TensorSizeBytes(DType::kF64, {INT64_MAX}).ok());
  EXPECT_FALSE(TensorSizeBytes(DType::kF4, {3}).ok());
}

TEST(TensorViewTest, TypedAccessChecksTypeAndAlignment) {
  alignas(8) const std::byte storage[16] = {};
  const TensorView floats{DType::kF32, {3}, storage, 12};
  ASSERT_TRUE(floats.As<float>().ok());
  EXPECT_EQ(floats.As<float>()->size(), 3u);
  EXPECT_EQ(floats.num_elements(), 3u);
  EXPECT_EQ(floats.As<int32_t>().status().code(), StatusCode::kInvalidRequest);
  EXPECT_EQ(floats.bytes().size(), 12u);

  const TensorView shifted{DType::kF32, {3}, storage + 2, 12};
  EXPECT_EQ(shifted.As<float>().status().code(), StatusCode::kDataCorruption);

  const TensorView packed{DType::kF4, {4, 2}, storage, 4};
  EXPECT_EQ(packed.num_elements(), 8u);
  EXPECT_EQ(packed.As<uint8_t>()->size(), 4u);

  const TensorView empty{DType::kF32, {0}, nullptr, 0};
  EXPECT_TRUE(empty.As<float>()->empty());
}

}  // namespace
}  // namespace deepinfer
