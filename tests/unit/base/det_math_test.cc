#include "base/det_math.h"

#include <gtest/gtest.h>

#include <random>

namespace deepinfer {
namespace {

// Distance in units of the last place of the correctly rounded fp32 value.
double UlpError(float got, double want) {
  const float rounded = static_cast<float>(want);
  const double ulp = static_cast<double>(std::nextafter(std::fabs(rounded), INFINITY)) -
                     static_cast<double>(std::fabs(rounded));
  return std::fabs(static_cast<double>(got) - want) / ulp;
}

TEST(DetMath, ExpIsWithinTwoUlp) {
  double worst = 0;
  for (double x = -87.0; x < 88.0; x += 0.000731) {
    const float xf = static_cast<float>(x);
    worst = std::max(worst, UlpError(DetExp(xf), std::exp(static_cast<double>(xf))));
  }
  EXPECT_LE(worst, 2.0);
}

TEST(DetMath, Exp2IsWithinTwoUlpAndExactAtIntegers) {
  double worst = 0;
  for (double x = -125.0; x < 127.9; x += 0.000917) {
    const float xf = static_cast<float>(x);
    worst = std::max(worst, UlpError(DetExp2(xf), std::exp2(static_cast<double>(xf))));
  }
  EXPECT_LE(worst, 2.0);
  for (int n = -149; n < 128; ++n) EXPECT_EQ(DetExp2(static_cast<float>(n)), std::ldexp(1.0f, n));
}

TEST(DetMath, ExpAtTheEdges) {
  EXPECT_EQ(DetExp(0.0f), 1.0f);
  EXPECT_EQ(DetExp(-INFINITY), 0.0f);
  EXPECT_EQ(DetExp(INFINITY), INFINITY);
  EXPECT_TRUE(std::isnan(DetExp(NAN)));
  EXPECT_EQ(DetExp2(-INFINITY), 0.0f);
  EXPECT_EQ(DetExp2(129.0f), INFINITY);
  EXPECT_TRUE(std::isnan(DetExp2(NAN)));
  EXPECT_EQ(DetExp(-103.0f), std::exp(-103.0f));
}

TEST(DetMath, DoubleExpAndLogMatchTheLibrary) {
  std::mt19937_64 rng(7);
  std::uniform_real_distribution<double> exponent(-700, 700);
  for (int i = 0; i < 200000; ++i) {
    const double x = exponent(rng);
    const double e = std::exp(x);
    ASSERT_NEAR(DetExp(x) / e, 1.0, 4.5e-16) << x;
    const double want = std::log(e);
    ASSERT_NEAR(DetLn(e), want, 4.5e-16 * std::fabs(want)) << e;
    const double near_one = 1.0 + x * 1e-5;
    const double w = std::log(near_one);
    ASSERT_NEAR(DetLn(near_one), w, 4.5e-16 * std::fabs(w)) << near_one;
  }
  EXPECT_EQ(DetLn(1.0), 0.0);
  EXPECT_EQ(DetLn(0.0), -INFINITY);
  EXPECT_TRUE(std::isnan(DetLn(-1.0)));
  EXPECT_NEAR(DetLn(5e-324), std::log(5e-324), 1e-12);
}

TEST(DetMath, SinCosReduceLargeAnglesAccurately) {
  std::mt19937_64 rng(11);
  std::uniform_real_distribution<double> angle(0, 1.1e6);
  for (int i = 0; i < 200000; ++i) {
    const double x = static_cast<double>(static_cast<float>(angle(rng)));
    double s, c;
    DetSinCos(x, &s, &c);
    ASSERT_NEAR(s, std::sin(x), 1e-15) << x;
    ASSERT_NEAR(c, std::cos(x), 1e-15) << x;
  }
}

TEST(DetMath, SoftplusIsLinearAboveTwenty) {
  EXPECT_EQ(DetSoftplus(20.5f), 20.5f);
  EXPECT_NEAR(DetSoftplus(0.0f), std::log(2.0), 1e-7);
  EXPECT_NEAR(DetSoftplus(-30.0f), std::exp(-30.0), 1e-18);
}

}  // namespace
}  // namespace deepinfer
