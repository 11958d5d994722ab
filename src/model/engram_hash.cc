#include "model/engram_hash.h"

#include <algorithm>
#include <string>
#include <unordered_set>

#include "model/numpy_random.h"

namespace deepinfer {

namespace {

constexpr int32_t kMaxNgram = 4;
constexpr uint64_t kSeedPerLayer = 10007;

bool IsPrime(int64_t n) {
  if (n < 2) return false;
  if (n % 2 == 0) return n == 2;
  for (int64_t d = 3; d * d <= n; d += 2) {
    if (n % d == 0) return false;
  }
  return true;
}

}  // namespace

std::vector<int64_t> EngramMultipliers(int32_t layer, int32_t num_classes, int32_t count) {
  const int64_t bound = std::max<int64_t>(1, INT64_MAX / num_classes / 2);
  NumpyRandom rng(kSeedPerLayer * static_cast<uint64_t>(layer));
  std::vector<int64_t> out;
  for (int32_t i = 0; i < count; ++i) {
    out.push_back(static_cast<int64_t>(rng.Below(static_cast<uint64_t>(bound))) * 2 + 1);
  }
  return out;
}

std::vector<std::vector<std::vector<int64_t>>> EngramPrimes(const EngramConfig& config) {
  std::unordered_set<int64_t> used;
  std::vector<std::vector<std::vector<int64_t>>> all;
  for (size_t layer = 0; layer < config.layer_ids.size(); ++layer) {
    auto& sizes = all.emplace_back();
    for (int32_t n = 2; n <= config.max_ngram_size; ++n) {
      auto& row = sizes.emplace_back();
      for (int64_t p = config.vocab_size; static_cast<int32_t>(row.size()) < config.num_heads;
           ++p) {
        if (!used.contains(p) && IsPrime(p)) {
          used.insert(p);
          row.push_back(p);
        }
      }
    }
  }
  return all;
}

Result<EngramHasher> EngramHasher::Create(const ModelConfig& config,
                                          std::vector<int32_t> token_map) {
  const EngramConfig& e = config.engram;
  EngramHasher h;
  h.max_ngram_ = e.max_ngram_size;
  h.num_heads_ = e.num_heads;
  h.num_columns_ = e.num_columns();
  if (e.layer_ids.empty()) return h;
  const auto [least, largest] = std::minmax_element(token_map.begin(), token_map.end());
  const int64_t classes = largest == token_map.end() ? 0 : int64_t{*largest} + 1;
  if (classes > 0 && *least < 0) {
    return DataCorruption("the Engram token map holds the negative class " +
                          std::to_string(*least));
  }
  if (classes != e.compressed_vocab_size) {
    return DataCorruption("the tokenizer yields " + std::to_string(classes) +
                          " Engram token classes, config key 'engram_compressed_vocab_size' is " +
                          std::to_string(e.compressed_vocab_size) +
                          ": tokenizer.json does not belong to this model");
  }
  if (static_cast<size_t>(e.pad_token_id) >= token_map.size()) {
    return DataCorruption("config key 'engram_pad_token_id' = " + std::to_string(e.pad_token_id) +
                          " is no token of the tokenizer, which has " +
                          std::to_string(token_map.size()));
  }
  h.token_map_ = std::move(token_map);
  h.pad_class_ = h.token_map_[static_cast<size_t>(e.pad_token_id)];
  const auto primes = EngramPrimes(e);
  for (size_t i = 0; i < e.layer_ids.size(); ++i) {
    Layer layer;
    layer.multipliers =
        EngramMultipliers(e.layer_ids[i], e.compressed_vocab_size, e.max_ngram_size);
    int64_t offset = 0;
    for (const auto& row : primes[i]) {
      for (int64_t p : row) {
        layer.primes.push_back(p);
        layer.offsets.push_back(offset);
        offset += p;
      }
    }
    if (offset != e.num_embeddings[i]) {
      return DataCorruption("config: the hash primes of Engram layer " +
                            std::to_string(e.layer_ids[i]) + " sum to " + std::to_string(offset) +
                            ", engram_num_embeddings says " + std::to_string(e.num_embeddings[i]));
    }
    h.layers_.push_back(std::move(layer));
  }
  return h;
}

void EngramHasher::RowIds(int32_t index, const int32_t* tokens, const uint8_t* is_image,
                          int64_t start, int64_t num_rows, int64_t* out) const {
  const Layer& layer = layers_[static_cast<size_t>(index)];
  for (int64_t p = start; p < start + num_rows; ++p) {
    // An image token or the start of the sequence blocks itself and everything before it.
    int64_t classes[kMaxNgram];
    bool blocked = false;
    for (int32_t s = 0; s < max_ngram_; ++s) {
      blocked = blocked || p < s || (is_image != nullptr && is_image[p - s] != 0);
      classes[s] = blocked ? pad_class_ : ClassOf(tokens[p - s]);
    }
    int64_t hash = classes[0] * layer.multipliers[0];
    int64_t* row = out + (p - start) * num_columns_;
    for (int32_t n = 2; n <= max_ngram_; ++n) {
      hash ^= classes[n - 1] * layer.multipliers[static_cast<size_t>(n - 1)];
      for (int32_t head = 0; head < num_heads_; ++head) {
        const size_t column = static_cast<size_t>(n - 2) * static_cast<size_t>(num_heads_) +
                              static_cast<size_t>(head);
        row[column] = hash % layer.primes[column] + layer.offsets[column];
      }
    }
  }
}

}  // namespace deepinfer
