#include "model/tensor_reader.h"

#include <cstring>

#include "tensor/codecs.h"
#include "tensor/json_events.h"

namespace deepinfer {

const std::byte* TensorReader::Read(const std::string& name, std::initializer_list<DType> dtypes,
                                    const Shape& shape, size_t alignment) {
  if (!status_.ok()) return nullptr;
  Result<TensorView> view = checkpoint_->Require(name, dtypes, shape);
  if (!view.ok()) {
    status_ = view.status();
    return nullptr;
  }
  const std::byte* data = view->data;
  if (reinterpret_cast<uintptr_t>(data) % alignment == 0) return data;
  // The format packs tensors without padding, so an odd-sized one may shift its successors.
  auto copy = std::make_unique<std::byte[]>(view->size_bytes);
  std::memcpy(copy.get(), data, view->size_bytes);
  realigned_->push_back(std::move(copy));
  return realigned_->back().get();
}

const uint16_t* TensorReader::Bf16(const std::string& name, const Shape& shape) {
  return reinterpret_cast<const uint16_t*>(Read(name, {DType::kBF16}, shape, alignof(uint16_t)));
}

const float* TensorReader::F32(const std::string& name, const Shape& shape) {
  return reinterpret_cast<const float*>(Read(name, {DType::kF32}, shape, alignof(float)));
}

WeightMatrix TensorReader::Bf16Matrix(const std::string& name, int64_t out, int64_t in) {
  return {WeightFormat::kBf16, out, in, Bf16(name, {out, in}), nullptr};
}

bool TensorReader::IsDequantized(const std::string& name) const {
  const TensorView* view = checkpoint_->Find(name + ".weight");
  return view != nullptr && view->dtype == DType::kBF16;
}

std::string TensorReader::Where(const std::string& name) const {
  const int shard = checkpoint_->ShardOf(name);
  return checkpoint_->shard_path(static_cast<size_t>(shard)) + ": tensor " + QuoteForMessage(name);
}

const uint8_t* TensorReader::ReadScales(const std::string& name, const Shape& shape) {
  const auto* scales =
      reinterpret_cast<const uint8_t*>(Read(name, {DType::kF8E8M0, DType::kU8}, shape, 1));
  if (scales == nullptr) return nullptr;
  int64_t count = 1;
  for (int64_t d : shape.dims()) count *= d;
  const void* nan = std::memchr(scales, kE8m0Nan, static_cast<size_t>(count));
  if (nan != nullptr) {
    status_ = DataCorruption(Where(name) + " has a NaN scale (byte 255) at element " +
                             std::to_string(static_cast<const uint8_t*>(nan) - scales) +
                             ": the file is damaged, fetch it again");
  }
  return scales;
}

void TensorReader::ScanCodes(const std::string& name, const uint8_t* codes, int64_t count) {
  if (!options_.scan_codes || codes == nullptr) return;
  for (int64_t i = 0; i < count; ++i) {
    if ((codes[i] & 0x7F) == kE4m3Nan) {
      status_ = DataCorruption(Where(name) + " has a NaN code at element " + std::to_string(i) +
                               ": the file is damaged, fetch it again");
      return;
    }
  }
}

WeightMatrix TensorReader::Fp8(const std::string& name, int64_t out, int64_t in) {
  const std::string weight = name + ".weight";
  if (IsDequantized(name)) return Bf16Matrix(weight, out, in);
  const auto* codes =
      reinterpret_cast<const uint8_t*>(Read(weight, {DType::kF8E4M3}, {out, in}, 1));
  const uint8_t* scales = ReadScales(name + ".scale", {(out + 31) / 32, (in + 31) / 32});
  ScanCodes(weight, codes, out * in);
  return {WeightFormat::kFp8Block32, out, in, codes, scales};
}

WeightMatrix TensorReader::Fp8Rows(const std::string& name, int64_t rows, int64_t width) {
  const std::string weight = name + ".weight";
  if (IsDequantized(name)) return Bf16Matrix(weight, rows, width);
  const auto* codes =
      reinterpret_cast<const uint8_t*>(Read(weight, {DType::kF8E4M3}, {rows, width}, 1));
  const uint8_t* scales = ReadScales(name + ".scale", {rows, width / 32});
  // A row and its scale are read together, so a table is stored in one piece (model.md §14).
  if (ok() && checkpoint_->ShardOf(weight) != checkpoint_->ShardOf(name + ".scale")) {
    status_ = DataCorruption(Where(name + ".scale") + " must lie in the same shard as " +
                             QuoteForMessage(weight) +
                             ": the checkpoint was split wrongly, fetch it again");
  }
  ScanCodes(weight, codes, rows * width);
  return {WeightFormat::kFp8Group32, rows, width, codes, scales};
}

WeightMatrix TensorReader::Fp4(const std::string& name, int64_t out, int64_t in) {
  const std::string weight = name + ".weight";
  if (IsDequantized(name)) return Bf16Matrix(weight, out, in);
  const std::byte* codes = Read(weight, {DType::kI8, DType::kU8}, {out, in / 2}, 1);
  const uint8_t* scales = ReadScales(name + ".scale", {out, in / 32});
  return {WeightFormat::kFp4Group32, out, in, codes, scales};
}

}  // namespace deepinfer
