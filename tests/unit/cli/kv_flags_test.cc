#include "cli/kv_flags.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

constexpr std::array<uint8_t, 32> kSecret = {1, 2, 3};
constexpr auto kAgent = static_cast<size_t>(RetentionClass::kAgent);
constexpr int64_t kMib = int64_t{1} << 20;

TEST(KvFlags, QuotasNameATenantOrEachAndAClassOrAll) {
  const auto quotas =
      ParseQuotas({"*=100", "*:agent=40", "team:a=7", "acme=500", "acme:agent=60"}, kSecret);
  ASSERT_FALSE(quotas.ok()) << "a is no class";
  const auto good = ParseQuotas({"*=100", "*:agent=40", "acme=500"}, kSecret);
  ASSERT_TRUE(good.ok()) << good.status().ToString();
  const TenantQuota acme = good->Of(TenantTag(kSecret, "acme"));
  EXPECT_EQ(acme.all_bytes, 500 * kMib);
  EXPECT_EQ(acme.class_bytes[kAgent], 40 * kMib) << "what it says nothing about is that of each";
  EXPECT_EQ(good->Of(TenantTag(kSecret, "other")).all_bytes, 100 * kMib);
  EXPECT_FALSE(ParseQuotas({}, kSecret)->any());
}

TEST(KvFlags, FaultyQuotasNameTheTextAndTheFix) {
  for (const char* text : {"acme", "=5", ":chat=5", "acme=", "acme=-1", "acme=0", "acme=5x",
                           "acme:pinned=5", "acme:chit=5", "acme=99999999999999999999"}) {
    const auto parsed = ParseQuotas({text}, kSecret);
    ASSERT_EQ(parsed.status().code(), StatusCode::kInvalidRequest) << text;
    EXPECT_NE(parsed.status().message().find(std::string("--kv-quota ") + text), std::string::npos)
        << parsed.status().message();
  }
}

}  // namespace
}  // namespace deepinfer
