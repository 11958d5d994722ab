#include "tensor/tensor_view.h"

#include <fmt/format.h>

namespace deepinfer {

std::string Shape::ToString() const {
  std::string text = "[";
  for (const int64_t dim : dims()) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(dim);
  }
  return text + "]";
}

Result<uint64_t> TensorSizeBytes(DType dtype, const Shape& shape) {
  const Status overflow = DataCorruption(
      fmt::format("shape {} of {} overflows 64 bits", shape.ToString(), DTypeName(dtype)));
  uint64_t bits = static_cast<uint64_t>(DTypeBits(dtype));
  bool has_zero = false;
  for (const int64_t dim : shape.dims()) {
    if (dim == 0) {
      has_zero = true;
      continue;
    }
    if (__builtin_mul_overflow(bits, static_cast<uint64_t>(dim), &bits)) return overflow;
  }
  if (has_zero) return uint64_t{0};
  if (bits % 8 != 0) {
    return DataCorruption(fmt::format("shape {} of {} does not end on a whole byte",
                                      shape.ToString(), DTypeName(dtype)));
  }
  return bits / 8;
}

Status TensorView::WrongElementType(size_t element_bytes) const {
  return InvalidRequest(fmt::format("tensor of {} {} read as elements of {} bytes of another type",
                                    DTypeName(dtype), shape.ToString(), element_bytes));
}

Status TensorView::Misaligned(size_t alignment) const {
  return DataCorruption(fmt::format(
      "tensor of {} {} does not start at a multiple of {} bytes; save the file again with a writer "
      "that aligns its tensors",
      DTypeName(dtype), shape.ToString(), alignment));
}

}  // namespace deepinfer
