#include "base/det_math.h"

#include "base/det_exp_terms.h"

namespace deepinfer {

namespace {

using namespace det_internal;

// pi/2 in three parts of at most 53 bits each.
constexpr double kPio2Hi = 0x1.921fb54442d18p0;
constexpr double kPio2Mid = 0x1.1a62633145c07p-54;
constexpr double kPio2Lo = -0x1.f1976b7ed8fbcp-110;
constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;

// Taylor coefficients of sin(r)/r - 1 over r² and of cos(r), highest power of r² first.
constexpr double kSinTerms[] = {
    1.0 / 355687428096000.0, -1.0 / 1307674368000.0, 1.0 / 6227020800.0, -1.0 / 39916800.0,
    1.0 / 362880.0,          -1.0 / 5040.0,          1.0 / 120.0,        -1.0 / 6.0};
constexpr double kCosTerms[] = {1.0 / 20922789888000.0,
                                -1.0 / 87178291200.0,
                                1.0 / 479001600.0,
                                -1.0 / 3628800.0,
                                1.0 / 40320.0,
                                -1.0 / 720.0,
                                1.0 / 24.0,
                                -0.5,
                                1.0};

template <size_t kNum>
double Horner(const double (&coefficients)[kNum], double z) {
  double p = coefficients[0];
  for (size_t i = 1; i < kNum; ++i) p = std::fma(p, z, coefficients[i]);
  return p;
}

}  // namespace

double DetExp(double x) {
  using namespace det_internal;
  if (!(x >= -745.2)) return x < -745.2 ? 0.0 : x;
  if (x > 709.78) return INFINITY;
  const double n = std::fma(x, kLog2e, kRoundMagic) - kRoundMagic;
  double r = std::fma(n, -kLn2Hi, x);
  r = std::fma(n, -kLn2Lo, r);
  double p = kInverseFactorial[kExpTerms - 1];
  for (int i = kExpTerms - 2; i >= 0; --i) p = std::fma(p, r, kInverseFactorial[i]);
  const int64_t ni = static_cast<int64_t>(n);
  const int64_t n1 = ni >> 1;
  return p * Pow2(n1) * Pow2(ni - n1);
}

double DetLn(double x) {
  using namespace det_internal;
  if (x == 0.0) return -INFINITY;
  if (!(x > 0.0)) return NAN;
  if (std::isinf(x)) return x;
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  int64_t e = 0;
  if ((bits >> 52) == 0) {  // denormal
    x *= 0x1p54;
    e = -54;
    std::memcpy(&bits, &x, sizeof bits);
  }
  e += static_cast<int64_t>(bits >> 52) - 1023;
  double m = BitsToDouble((bits & 0xfffffffffffffULL) | (1023ULL << 52));
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++e;
  }
  // ln m = 2·artanh(s), |s| <= 0.1716; the series is cut below 2^-58 of its first term.
  const double f = m - 1.0;
  const double s = f / (m + 1.0);
  const double z = s * s;
  double p = 2.0 / 23.0;
  for (int k = 21; k >= 3; k -= 2) p = std::fma(p, z, 2.0 / k);
  // 2s = f - s·f, which keeps the leading term exact for m near 1.
  const double tail = std::fma(p * z, s, -(s * f));
  const double en = static_cast<double>(e);
  return std::fma(en, kLn2Hi, f + (tail + en * kLn2Lo));
}

float DetSoftplus(float x) {
  if (x > 20.0f) return x;
  const double e = DetExp(static_cast<double>(x));
  const double u = 1.0 + e;
  if (u == 1.0) return static_cast<float>(e);
  // e / (u - 1) undoes the rounding of 1 + e, which matters for small e.
  return static_cast<float>(DetLn(u) * (e / (u - 1.0)));
}

void DetSinCos(double x, double* sin_out, double* cos_out) {
  const double k = std::fma(x, kTwoOverPi, det_internal::kRoundMagic) - det_internal::kRoundMagic;
  double r = std::fma(k, -kPio2Hi, x);
  r = std::fma(k, -kPio2Mid, r);
  r = std::fma(k, -kPio2Lo, r);
  const double z = r * r;
  const double s = std::fma(Horner(kSinTerms, z) * z, r, r);
  const double c = Horner(kCosTerms, z);
  switch (static_cast<int64_t>(k) & 3) {
    case 0:
      *sin_out = s;
      *cos_out = c;
      break;
    case 1:
      *sin_out = c;
      *cos_out = -s;
      break;
    case 2:
      *sin_out = -s;
      *cos_out = -c;
      break;
    default:
      *sin_out = -c;
      *cos_out = s;
      break;
  }
}

}  // namespace deepinfer
