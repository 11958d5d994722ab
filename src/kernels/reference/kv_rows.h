// Stored cache rows as fp32.
// Thread rule: pure functions.
#pragma once

#include <cstring>

#include "kernels/kv_view.h"
#include "tensor/quantize.h"

namespace deepinfer {

// out f32 [n] of one window row.
inline void LoadWindowRow(KvFormat format, const std::byte* row, int64_t n, float* out) {
  if (format == KvFormat::kFloat32) {
    std::memcpy(out, row, static_cast<size_t>(4 * n));
    return;
  }
  const uint8_t* codes = reinterpret_cast<const uint8_t*>(row);
  DequantizeFp8Group32(codes, codes + n, static_cast<int>(n), out);
}

// out f32 [n] of one compressed entry.
inline void LoadCompressedRow(KvFormat format, const std::byte* row, int64_t n, float* out) {
  if (format == KvFormat::kFloat32) {
    std::memcpy(out, row, static_cast<size_t>(4 * n));
    return;
  }
  const uint8_t* codes = reinterpret_cast<const uint8_t*>(row);
  DequantizeFp4Group16(codes, codes + n / 2, static_cast<int>(n), out);
}

// out f32 [n] of index key j.
inline void LoadIndexKey(KvFormat format, const KvPages& pages, int64_t j, int64_t n, float* out) {
  if (format == KvFormat::kFloat32) {
    std::memcpy(out, pages.IndexCodes(j), static_cast<size_t>(4 * n));
    return;
  }
  DequantizeFp4Group32(reinterpret_cast<const uint8_t*>(pages.IndexCodes(j)),
                       reinterpret_cast<const uint8_t*>(pages.IndexScales(j)), static_cast<int>(n),
                       out);
}

}  // namespace deepinfer
