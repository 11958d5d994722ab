// Engram row ids: constants of a configuration and the n-gram hash (model.md §10).
// Thread rule: immutable after Create.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "model/config.h"

namespace deepinfer {

// Odd multipliers of one Engram layer, one per look-back: numpy's
// default_rng(10007·layer).integers(0, B, max_ngram_size)·2 + 1, B = (2^63-1) / classes / 2.
std::vector<int64_t> EngramMultipliers(int32_t layer, int32_t num_classes, int32_t count);

// Primes [layer][n-gram size - 2][head] of all Engram layers: one walk, each prime used once,
// from vocab_size upwards for every (layer, n).
std::vector<std::vector<std::vector<int64_t>>> EngramPrimes(const EngramConfig& config);

class EngramHasher {
 public:
  // token_map: class of every token id; ids beyond it count as pad. data_corruption when the
  // map does not have engram_compressed_vocab_size classes or the primes of a layer do not sum to
  // its table rows.
  static Result<EngramHasher> Create(const ModelConfig& config, std::vector<int32_t> token_map);

  // Row ids of Engram layer number `index` for positions [start, start + num_rows), i64
  // [num_rows, columns], from tokens and image flags by absolute position (is_image may be null).
  void RowIds(int32_t index, const int32_t* tokens, const uint8_t* is_image, int64_t start,
              int64_t num_rows, int64_t* out) const;

  int32_t num_columns() const { return num_columns_; }

 private:
  struct Layer {
    std::vector<int64_t> multipliers;  // per look-back
    std::vector<int64_t> primes;       // per column, n-major, then head
    std::vector<int64_t> offsets;      // exclusive prefix sums of primes
  };

  int64_t ClassOf(int32_t id) const {
    return id >= 0 && static_cast<size_t>(id) < token_map_.size()
               ? token_map_[static_cast<size_t>(id)]
               : pad_class_;
  }

  int32_t max_ngram_ = 0;
  int32_t num_heads_ = 0;
  int32_t num_columns_ = 0;
  int64_t pad_class_ = 0;
  std::vector<int32_t> token_map_;
  std::vector<Layer> layers_;
};

}  // namespace deepinfer
