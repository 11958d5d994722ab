// Reads tensors by exact name in either checkpoint form: FP8/FP4 codes with scales, or the
// dequantised BF16 form without them. The first failure sticks; later reads return empty values.
// Thread rule: one loading thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/weights.h"

namespace deepinfer {

class TensorReader {
 public:
  TensorReader(Checkpoint* checkpoint, const WeightCheckOptions& options,
               std::vector<std::unique_ptr<std::byte[]>>* realigned)
      : checkpoint_(checkpoint), options_(options), realigned_(realigned) {}

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }

  const uint16_t* Bf16(const std::string& name, const Shape& shape);
  const float* F32(const std::string& name, const Shape& shape);
  WeightMatrix Bf16Matrix(const std::string& name, int64_t out, int64_t in);

  // name + ".weight" E4M3 [out, in] with name + ".scale" UE8M0 per 32x32 tile, or BF16.
  WeightMatrix Fp8(const std::string& name, int64_t out, int64_t in);
  // Same with one scale per row and 32 columns: Engram tables.
  WeightMatrix Fp8Rows(const std::string& name, int64_t rows, int64_t width);
  // name + ".weight" packed E2M1 [out, in/2] with scales [out, in/32], or BF16.
  WeightMatrix Fp4(const std::string& name, int64_t out, int64_t in);

 private:
  // Start of the tensor's data, at an address that `alignment` divides; nullptr after a failure.
  const std::byte* Read(const std::string& name, std::initializer_list<DType> dtypes,
                        const Shape& shape, size_t alignment);
  const uint8_t* ReadScales(const std::string& name, const Shape& shape);
  // FILE: tensor "NAME", of a tensor that was found.
  std::string Where(const std::string& name) const;
  bool IsDequantized(const std::string& name) const;
  void ScanCodes(const std::string& name, const uint8_t* codes, int64_t count);

  Checkpoint* checkpoint_;
  WeightCheckOptions options_;
  std::vector<std::unique_ptr<std::byte[]>>* realigned_;
  Status status_;
};

}  // namespace deepinfer
