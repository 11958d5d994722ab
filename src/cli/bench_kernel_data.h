// Random operands of operators: weights in every stored form, activation rows, cache pages.
// Thread rule: values; made by one thread, then only read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "kernels/ops.h"
#include "model/config.h"

namespace deepinfer {

// Uniform bf16 values in [-1, 1), the same in every run.
std::vector<float> BenchValues(int64_t count);

// Memory of weights, in huge pages as those of a checkpoint. Freed with the arena.
class BenchArena {
 public:
  // 64-byte aligned. Throws std::bad_alloc.
  uint8_t* Take(int64_t size_bytes);

 private:
  struct Release {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::vector<std::unique_ptr<std::byte, Release>> chunks_;
  int64_t left_bytes_ = 0;  // at the end of the last chunk
  std::byte* next_ = nullptr;
};

// A weight matrix in the memory of an arena.
struct BenchWeight {
  WeightMatrix matrix;
  int64_t data_bytes = 0;
  int64_t scale_bytes = 0;

  double size_bytes() const { return static_cast<double>(data_bytes + scale_bytes); }
};
BenchWeight MakeBenchWeight(WeightFormat format, int64_t out, int64_t in, BenchArena* arena);

// Equal matrices in memory of their own, enough of them that a walk over all exceeds every cache:
// the next one is never cached.
class WeightRotation {
 public:
  WeightRotation(WeightFormat format, int64_t out, int64_t in);

  const WeightMatrix& Next() {
    next_ = (next_ + 1) % weights_.size();
    return weights_[next_].matrix;
  }
  double size_bytes() const { return weights_.front().size_bytes(); }

 private:
  BenchArena arena_;
  std::vector<BenchWeight> weights_;
  size_t next_ = 0;
};

// Pages of one KV source with an entry for every token, in ascending order.
class BenchPages {
 public:
  // Entries of config.head_dim channels with index keys of
  // config.index_head_dim, random.
  BenchPages(const ModelConfig& config, int32_t num_entries);

  const KvPages& view() const { return pages_; }

 private:
  KvPages pages_;
  std::vector<int32_t> table_;
  std::vector<std::byte> memory_;
};

// Activation rows, plain and quantised.
struct BenchActivations {
  BenchActivations(int64_t num_rows, int64_t width);
  Fp8Rows fp8() const { return {codes.data(), scales.data()}; }

  std::vector<float> values;
  std::vector<uint8_t> codes, scales;
};

}  // namespace deepinfer
