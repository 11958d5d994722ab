// Shape and TensorView: a typed, non-owning look at stored tensor bytes.
// Thread rule: values; the bytes are borrowed and must outlive the view.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>

#include "base/check.h"
#include "base/result.h"
#include "tensor/dtype.h"

namespace deepinfer {

// Dimensions stored inline, row-major, outermost first. Rank 0 is a scalar.
class Shape {
 public:
  // No tensor of the model has more than 4; the reader refuses files above this rank.
  static constexpr int kMaxRank = 8;

  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) : Shape(std::span(dims.begin(), dims.size())) {}
  // Precondition: at most kMaxRank dimensions, none negative.
  explicit Shape(std::span<const int64_t> dims) {
    DI_CHECK(dims.size() <= static_cast<size_t>(kMaxRank));
    for (const int64_t dim : dims) {
      DI_CHECK(dim >= 0);
      dims_[rank_++] = dim;
    }
  }

  int rank() const { return rank_; }
  int64_t operator[](int axis) const {
    DI_CHECK(axis >= 0 && axis < rank_);
    return dims_[static_cast<size_t>(axis)];
  }
  std::span<const int64_t> dims() const { return {dims_.data(), rank_}; }

  bool operator==(const Shape& other) const = default;

  // "[32, 128]"; "[]" for a scalar.
  std::string ToString() const;

 private:
  std::array<int64_t, kMaxRank> dims_{};  // beyond rank_: 0, so == may compare all
  uint8_t rank_ = 0;
};

// Bytes of a densely packed tensor; an error when the product overflows 64 bits or a
// sub-byte type does not end on a byte.
Result<uint64_t> TensorSizeBytes(DType dtype, const Shape& shape);

// True when C++ type T is the in-memory form of dtype: float for F32, uint16_t for the bits of
// BF16 and F16, uint8_t for any one-byte type and packed F4, ...
template <typename T>
constexpr bool HoldsDType(DType dtype);

struct TensorView {
  DType dtype = DType::kU8;
  Shape shape;
  const std::byte* data = nullptr;  // may be null when size_bytes is 0
  uint64_t size_bytes = 0;

  uint64_t num_elements() const { return size_bytes * 8 / static_cast<uint64_t>(DTypeBits(dtype)); }

  // The stored bytes, whatever the type.
  std::span<const uint8_t> bytes() const {
    return {reinterpret_cast<const uint8_t*>(data), static_cast<size_t>(size_bytes)};
  }

  // The elements as T. invalid_request when T is not the form of dtype, data_corruption when the
  // file places the data at an address T cannot be read from.
  template <typename T>
  Result<std::span<const T>> As() const {
    if (!HoldsDType<T>(dtype)) return WrongElementType(sizeof(T));
    if (reinterpret_cast<uintptr_t>(data) % alignof(T) != 0) return Misaligned(alignof(T));
    return std::span<const T>(reinterpret_cast<const T*>(data),
                              static_cast<size_t>(size_bytes / sizeof(T)));
  }

 private:
  Status WrongElementType(size_t element_bytes) const;
  Status Misaligned(size_t alignment) const;
};

template <typename T>
constexpr bool HoldsDType(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return std::is_same_v<T, float>;
    case DType::kF64:
      return std::is_same_v<T, double>;
    case DType::kI16:
      return std::is_same_v<T, int16_t>;
    case DType::kI32:
      return std::is_same_v<T, int32_t>;
    case DType::kI64:
      return std::is_same_v<T, int64_t>;
    case DType::kU32:
      return std::is_same_v<T, uint32_t>;
    case DType::kU64:
      return std::is_same_v<T, uint64_t>;
    case DType::kBF16:
    case DType::kF16:
    case DType::kU16:
      return std::is_same_v<T, uint16_t>;
    case DType::kI8:
      return std::is_same_v<T, int8_t> || std::is_same_v<T, uint8_t>;
    case DType::kBool:
    case DType::kF4:
    case DType::kU8:
    case DType::kF8E5M2:
    case DType::kF8E4M3:
    case DType::kF8E8M0:
    case DType::kF8E5M2Fnuz:
    case DType::kF8E4M3Fnuz:
      return std::is_same_v<T, uint8_t>;
    case DType::kF6E2M3:
    case DType::kF6E3M2:
    case DType::kC64:
      return false;
  }
  return false;
}

}  // namespace deepinfer
