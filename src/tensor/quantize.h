// Group quantisers of activations and cache rows (model.md §11.2-11.5), on one row of fp32.
//
// A group is 16 or 32 consecutive elements sharing one scale; n counts elements and must be a
// multiple of the group. Codes and scales are what caches, transfers and disks move: quantising a
// dequantised row again is not always the identity (model.md §11.8).
//
// Non-finite input: a group holding a NaN or an infinity gets the NaN scale (UE8M0 255 or E4M3
// 0x7F) and zero codes, so it dequantises to NaN throughout and the finite checks downstream see
// it. A finite group whose maximum is within rounding of FLT_MAX may dequantise to infinity.
//
// Thread rule: pure functions. Buffers must not overlap unless the name says InPlace.
#pragma once

#include <cstdint>

namespace deepinfer {

inline constexpr int kFp8GroupSize = 32;
inline constexpr int kFp4WideGroupSize = 32;
inline constexpr int kFp4NarrowGroupSize = 16;

// FP8 activation and sliding-window row (model.md §11.2).
// x [n] f32 -> codes [n] E4M3, scales [n/32] UE8M0.
void QuantizeFp8Group32(const float* x, int n, uint8_t* codes, uint8_t* scales);
void DequantizeFp8Group32(const uint8_t* codes, const uint8_t* scales, int n, float* out);
void Fp8Group32QdqInPlace(float* x, int n);

// FP4 index queries and keys (model.md §11.3).
// x [n] f32 -> packed [n/2] E2M1, even element in the low nibble, scales [n/32] UE8M0.
void QuantizeFp4Group32(const float* x, int n, uint8_t* packed, uint8_t* scales);
void DequantizeFp4Group32(const uint8_t* packed, const uint8_t* scales, int n, float* out);
void Fp4Group32QdqInPlace(float* x, int n);

// FP4 compressed KV (model.md §11.4).
// x [n] f32 -> packed [n/2] E2M1, even element in the low nibble, scales [n/16] E4M3.
// by_reciprocal: elements are x * fp32(1/scale) (`prod`), else x / scale (`ref`, `ref_actq`).
void QuantizeFp4Group16(const float* x, int n, bool by_reciprocal, uint8_t* packed,
                        uint8_t* scales);
void DequantizeFp4Group16(const uint8_t* packed, const uint8_t* scales, int n, float* out);
void Fp4Group16QdqInPlace(float* x, int n, bool by_reciprocal);

}  // namespace deepinfer
