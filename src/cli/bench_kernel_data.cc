#include "cli/bench_kernel_data.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <random>

#include "base/memory_pages.h"
#include "kernels/backends.h"
#include "model/kv_layout.h"
#include "tensor/quantize.h"

namespace deepinfer {

namespace {

// Beyond the last-level cache of most machines.
constexpr double kRotationBytes = 160.0 * (1 << 20);
constexpr int64_t kArenaChunkBytes = int64_t{64} << 20;
// UE8M0 code of 2^-7: products of random codes stay near 1.
constexpr uint8_t kScaleCode = 120;

int64_t DataBytes(WeightFormat format, int64_t elements) {
  switch (format) {
    case WeightFormat::kF32:
      return 4 * elements;
    case WeightFormat::kBf16:
      return 2 * elements;
    case WeightFormat::kFp8Block32:
    case WeightFormat::kFp8Group32:
      return elements;
    case WeightFormat::kFp4Group32:
      return elements / 2;
  }
  return 0;
}

int64_t NumScales(WeightFormat format, int64_t out, int64_t in) {
  const int64_t groups = (in + 31) / 32;
  switch (format) {
    case WeightFormat::kFp8Block32:
      return (out + 31) / 32 * groups;
    case WeightFormat::kFp8Group32:
    case WeightFormat::kFp4Group32:
      return out * groups;
    case WeightFormat::kF32:
    case WeightFormat::kBf16:
      return 0;
  }
  return 0;
}

// Bits of eight bytes of codes that are random and bits that are set.
struct CodeBits {
  uint64_t random = 0;
  uint64_t fixed = 0;
};

// No infinity, NaN or denormal number; fp32 and bf16 between 0.5 and 2.
CodeBits RandomBits(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return {0x80FFFFFF80FFFFFFull, 0x3F0000003F000000ull};
    case WeightFormat::kBf16:
      return {0x80FF80FF80FF80FFull, 0x3F003F003F003F00ull};
    case WeightFormat::kFp8Block32:
    case WeightFormat::kFp8Group32:
      return {0xB7B7B7B7B7B7B7B7ull, 0x0808080808080808ull};
    case WeightFormat::kFp4Group32:
      return {~uint64_t{0}, 0};
  }
  return {};
}

}  // namespace

std::vector<float> BenchValues(int64_t count) {
  std::mt19937 random(2);
  std::vector<float> values(static_cast<size_t>(count));
  // Eight significant bits: the values are bf16, as the operators of the bf16 stream want them.
  for (float& v : values) v = static_cast<float>(random() >> 24) * 0x1p-7f - 1.0f;
  return values;
}

uint8_t* BenchArena::Take(int64_t size_bytes) {
  const int64_t size = (size_bytes + 63) / 64 * 64;
  if (size > left_bytes_) {
    left_bytes_ = std::max(size, kArenaChunkBytes);
    next_ = AllocateLargeMemory(left_bytes_);
    if (next_ == nullptr) throw std::bad_alloc();
    chunks_.emplace_back(next_);
  }
  std::byte* taken = next_;
  next_ += size;
  left_bytes_ -= size;
  return reinterpret_cast<uint8_t*>(taken);
}

BenchWeight MakeBenchWeight(WeightFormat format, int64_t out, int64_t in, BenchArena* arena) {
  BenchWeight w;
  w.data_bytes = DataBytes(format, out * in);
  w.scale_bytes = NumScales(format, out, in);
  uint8_t* data = arena->Take(w.data_bytes);
  const CodeBits range = RandomBits(format);
  std::mt19937_64 random(1);
  for (int64_t i = 0; i < w.data_bytes; i += 8) {
    const uint64_t bits = (random() & range.random) | range.fixed;
    std::memcpy(data + i, &bits, static_cast<size_t>(std::min<int64_t>(8, w.data_bytes - i)));
  }
  uint8_t* scales = nullptr;
  if (w.scale_bytes > 0) {
    scales = arena->Take(w.scale_bytes);
    std::fill_n(scales, w.scale_bytes, kScaleCode);
  }
  w.matrix = {format, out, in, data, scales};
  return w;
}

WeightRotation::WeightRotation(WeightFormat format, int64_t out, int64_t in) {
  weights_.push_back(MakeBenchWeight(format, out, in, &arena_));
  const BenchWeight first = weights_.front();
  const double copies = kRotationBytes / first.size_bytes();
  while (static_cast<double>(weights_.size()) < copies) {
    BenchWeight copy = first;
    uint8_t* data = arena_.Take(first.data_bytes);
    std::memcpy(data, first.matrix.data, static_cast<size_t>(first.data_bytes));
    copy.matrix.data = data;
    if (first.scale_bytes > 0) {
      uint8_t* scales = arena_.Take(first.scale_bytes);
      std::copy_n(first.matrix.scales, first.scale_bytes, scales);
      copy.matrix.scales = scales;
    }
    weights_.push_back(copy);
  }
}

BenchPages::BenchPages(const ModelConfig& config, int32_t num_entries) {
  constexpr KvFormat kFormat = KvFormat::kQuantized;
  const int64_t num_blocks = KvLayout::NumBlocks(num_entries);
  pages_.entries_per_block = kBlockTokens;
  pages_.main_row_bytes = CompressedRowBytes(kFormat, config.head_dim);
  pages_.index_code_bytes = IndexCodeBytes(kFormat, config.index_head_dim);
  pages_.index_scale_bytes = IndexScaleBytes(kFormat, config.index_head_dim);
  pages_.index_code_offset = kBlockTokens * pages_.main_row_bytes;
  pages_.index_scale_offset = pages_.index_code_offset + kBlockTokens * pages_.index_code_bytes;
  pages_.block_stride = pages_.index_scale_offset + kBlockTokens * pages_.index_scale_bytes;
  table_.resize(static_cast<size_t>(num_blocks));
  std::iota(table_.begin(), table_.end(), 0);
  memory_.resize(static_cast<size_t>(num_blocks * pages_.block_stride));
  pages_.block_table = table_.data();
  pages_.pool = memory_.data();
  const std::unique_ptr<Operators> ops = MakeReferenceOperators();
  const int64_t chunk = std::min<int64_t>(num_entries, 1024);
  const std::vector<float> rows =
      BenchValues(chunk * std::max(config.head_dim, config.index_head_dim));
  for (int64_t first = 0; first + chunk <= num_entries; first += chunk) {
    ops->StoreCompressed(chunk, rows.data(), config.head_dim, kFormat, false, first, pages_);
    ops->StoreIndexKeys(chunk, rows.data(), config.index_head_dim, kFormat, first, pages_);
  }
}

BenchActivations::BenchActivations(int64_t num_rows, int64_t width)
    : values(BenchValues(num_rows * width)), codes(values.size()), scales(values.size() / 32) {
  for (int64_t row = 0; row < num_rows; ++row) {
    QuantizeFp8Group32(values.data() + row * width, static_cast<int>(width),
                       codes.data() + row * width, scales.data() + row * width / 32);
  }
}

}  // namespace deepinfer
