// Weight rows of the bf16dot family (docs/numerics.md §7, Lane16 pairs) as they lie in memory,
// block by block of 128 k, with what a row's last block lacks filled up. Internal linkage on
// purpose (kernel_table.h). Thread rule: pure functions on the data of one task.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/kernel_table.h"

namespace deepinfer {
namespace {

// Outputs whose sums of 16 lanes are added up together.
inline constexpr int kSumOutputs = 16;
// Outputs whose scales are asked for together: those of one scale block.
inline constexpr int64_t kScaleOutputs = 32;

struct NoScope {
  NoScope() {}
};

// One block of a weight row: Form::kBlockBytes bytes and the scale bytes of its four groups.
struct StoredBlock {
  const uint8_t* bytes;
  uint32_t scales;
};

// Whether n scales are 2^-40 to 2^40.
inline bool AreModerateScales(const uint8_t* scales, int64_t n) {
  const __m128i lowest = _mm_set1_epi8(87), most = _mm_set1_epi8(80);
  __m128i outside = _mm_setzero_si128();
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales + i));
    outside = _mm_or_si128(outside, _mm_subs_epu8(_mm_sub_epi8(v, lowest), most));
  }
  if (i < n) {
    uint32_t last[4] = {kUnitScales, kUnitScales, kUnitScales, kUnitScales};
    std::memcpy(last, scales + i, static_cast<size_t>(n - i));
    const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(last));
    outside = _mm_or_si128(outside, _mm_subs_epu8(_mm_sub_epi8(v, lowest), most));
  }
  return _mm_testz_si128(outside, outside) != 0;
}

// Asks for weights before their turn comes. Behind the last output of a task those of the thread's
// next task follow, so that it does not start with the latency of memory.
struct WeightsAhead {
  WeightsAhead(const uint8_t* first, int64_t size_bytes, const uint8_t* next)
      : end(first + size_bytes), jump(next == nullptr ? 0 : next - end) {}

  template <int64_t kBytes>
  void Ask(const uint8_t* p) const {
    p += p >= end ? jump : 0;
    for (int64_t line = 0; line < kBytes; line += 64) {
      // Into the second level: the first one has few buffers for what is on its way, and the values
      // need them.
      _mm_prefetch(reinterpret_cast<const char*>(p + line), _MM_HINT_T1);
    }
  }

  const uint8_t* end;
  int64_t jump;
};

template <class Form>
class StoredRows {
 public:
  // The last block of a row whose K ends inside it, with zeros behind the end.
  struct Tail {
    alignas(64) uint8_t bytes[Form::kBlockBytes];
  };

  explicit StoredRows(const WeightMatrix& w)
      : data_(static_cast<const uint8_t*>(w.data)),
        scales_(w.scales),
        groups_(w.in_features / 32),
        row_bytes_(w.in_features * Form::kBlockBytes / kDotBlock),
        full_blocks_(w.in_features / kDotBlock),
        blocks_((w.in_features + kDotBlock - 1) / kDotBlock) {}

  int64_t blocks() const { return blocks_; }
  int64_t row_bytes() const { return row_bytes_; }

  WeightsAhead DataAhead(const LinearTask& task) const {
    return WeightsAhead(data_ + task.first_output * row_bytes_, task.num_outputs * row_bytes_,
                        task.next.data);
  }
  // The scales of kScaleOutputs outputs, kScaleOutputs outputs behind n.
  void AskForScales(const LinearTask& task, int64_t n) const {
    if constexpr (Form::kIsScaled) {
      if (n % kScaleOutputs != 0) return;
      const uint8_t* first = RowScales(task.first_output);
      const uint8_t* last = RowScales(task.first_output + task.num_outputs - 1);
      const WeightsAhead ahead(first, last + groups_ - first, task.next.scales);
      const uint8_t* p = RowScales(n + kScaleOutputs);
      const int64_t size_bytes = kScaleOutputs / Form::kOutputsPerScale * groups_;
      for (int64_t byte = 0; byte < size_bytes; byte += 64) ahead.template Ask<64>(p + byte);
    }
  }

  // Of outputs [n, n + count).
  bool HaveModerateScales(int64_t n, int64_t count) const {
    if constexpr (Form::kIsScaled) {
      const uint8_t* first = RowScales(n);
      return AreModerateScales(first, RowScales(n + count - 1) + groups_ - first);
    }
    return true;
  }

  StoredBlock Block(int64_t n, int64_t b, Tail* tail) const {
    StoredBlock block{data_ + n * row_bytes_ + b * Form::kBlockBytes, kUnitScales};
    if (b < full_blocks_) [[likely]] {
      if constexpr (Form::kIsScaled) std::memcpy(&block.scales, RowScales(n) + 4 * b, 4);
      return block;
    }
    const int64_t left = row_bytes_ - b * Form::kBlockBytes;
    std::memset(tail->bytes, 0, sizeof tail->bytes);
    std::memcpy(tail->bytes, block.bytes, static_cast<size_t>(left));
    if constexpr (Form::kIsScaled) {
      std::memcpy(&block.scales, RowScales(n) + 4 * b, static_cast<size_t>(groups_ - 4 * b));
    }
    block.bytes = tail->bytes;
    return block;
  }

 private:
  const uint8_t* RowScales(int64_t n) const {
    return scales_ + n / Form::kOutputsPerScale * groups_;
  }

  const uint8_t* data_;
  const uint8_t* scales_;
  int64_t groups_;
  int64_t row_bytes_;
  int64_t full_blocks_;
  int64_t blocks_;
};

// All operands of one half of a block.
template <class Form>
void Decode(const uint8_t* block, int half, typename Form::Isa::Reg (&w)[Form::Isa::kSteps]) {
  const typename Form::Codes codes = Form::Load(block, half);
#pragma GCC unroll 8
  for (int s = 0; s < Form::Isa::kSteps; ++s) w[s] = Form::Operand(codes, s);
}

}  // namespace
}  // namespace deepinfer
