// Elementary functions with the same bits on every CPU, compiler and ISA: only IEEE add, multiply,
// fma, divide and integer operations, in one fixed order (numerics.md §5.5). SIMD kernels repeat
// the same operations lane by lane, so scalar and vector results are equal.
// Thread rule: pure functions.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace deepinfer {

namespace det_internal {

inline float BitsToFloat(uint32_t u) {
  float f;
  std::memcpy(&f, &u, sizeof f);
  return f;
}

inline double BitsToDouble(uint64_t u) {
  double d;
  std::memcpy(&d, &u, sizeof d);
  return d;
}

// 2^n for n in [-126, 127].
inline float Pow2f(int32_t n) { return BitsToFloat(static_cast<uint32_t>(n + 127) << 23); }
inline double Pow2(int64_t n) { return BitsToDouble(static_cast<uint64_t>(n + 1023) << 52); }

// Adding and subtracting 1.5·2^23 (2^52) rounds to the nearest integer, ties to even.
inline constexpr float kRoundMagicF = 12582912.0f;
inline constexpr double kRoundMagic = 6755399441055744.0;

// Coefficients of 2^f on |f| <= 1/2, relative error below 2^-26: Taylor terms ln2^k / k!.
inline constexpr float kExp2Poly[8] = {1.0f,
                                       6.931471806e-01f,
                                       2.402265070e-01f,
                                       5.550410866e-02f,
                                       9.618129108e-03f,
                                       1.333355815e-03f,
                                       1.540353039e-04f,
                                       1.525273380e-05f};
// Coefficients of e^r on |r| <= ln2/2.
inline constexpr float kExpPoly[8] = {1.0f,
                                      1.0f,
                                      0.5f,
                                      1.666666667e-01f,
                                      4.166666667e-02f,
                                      8.333333333e-03f,
                                      1.388888889e-03f,
                                      1.984126984e-04f};
inline constexpr float kLog2eF = 1.44269504f;
inline constexpr float kLn2HiF = 0.693145751953125f;       // 16 leading bits: n·hi is exact
inline constexpr float kLn2LoF = 1.42860682030941723e-6f;  // ln2 - hi
// Outside these the result is 0 or infinity in fp32.
inline constexpr float kExpMinF = -104.0f;
inline constexpr float kExpMaxF = 88.8f;
inline constexpr float kExp2MinF = -150.0f;
inline constexpr float kExp2MaxF = 128.0f;

inline float HornerF(const float (&c)[8], float r) {
  float p = c[7];
  for (int i = 6; i >= 0; --i) p = std::fma(p, r, c[i]);
  return p;
}

// p · 2^n in two exact-power steps, so that results down to the smallest denormal are reached.
inline float ScaleF(float p, float n) {
  const int32_t ni = static_cast<int32_t>(n);
  const int32_t n1 = ni >> 1;
  return p * Pow2f(n1) * Pow2f(ni - n1);
}

}  // namespace det_internal

// e^x, at most 2 ulp for normal results; exactly 0 below -104, +inf above 88.8. NaN gives NaN.
inline float DetExp(float x) {
  using namespace det_internal;
  if (!(x >= kExpMinF)) return x < kExpMinF ? 0.0f : x;
  if (x > kExpMaxF) return INFINITY;
  const float n = std::fma(x, kLog2eF, kRoundMagicF) - kRoundMagicF;
  float r = std::fma(n, -kLn2HiF, x);
  r = std::fma(n, -kLn2LoF, r);
  return ScaleF(HornerF(kExpPoly, r), n);
}

// 2^x, at most 2 ulp for normal results; exactly 0 below -150, +inf from 128. NaN gives NaN.
inline float DetExp2(float x) {
  using namespace det_internal;
  if (!(x >= kExp2MinF)) return x < kExp2MinF ? 0.0f : x;
  if (x >= kExp2MaxF) return INFINITY;
  const float n = (x + kRoundMagicF) - kRoundMagicF;
  return ScaleF(HornerF(kExp2Poly, x - n), n);
}

// 1 / (1 + e^-x).
inline float DetSigmoid(float x) { return 1.0f / (1.0f + DetExp(-x)); }

// x · sigmoid(x).
inline float DetSilu(float x) { return x / (1.0f + DetExp(-x)); }

// e^x in fp64, at most 2 ulp for normal results; 0 below -745.2, +inf above 709.78.
double DetExp(double x);

// Natural logarithm in fp64, at most 2 ulp; ln(0) = -inf, negative or NaN gives NaN.
double DetLn(double x);

// softplus as the router uses it: x above 20, else ln(1 + e^x); evaluated in fp64, one rounding.
float DetSoftplus(float x);

// Sine and cosine of an fp64 angle, |x| < 2^20·pi/2, absolute error below 2^-50.
void DetSinCos(double x, double* sin_out, double* cos_out);

}  // namespace deepinfer
