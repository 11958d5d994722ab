#include "server/api_keys.h"

#include <gtest/gtest.h>

#include "support/temp_dir.h"

namespace deepinfer {
namespace {

std::string WriteFile(std::string_view text) {
  static const TempDir folder;
  return folder.Write("keys", text);
}

TEST(ApiKeys, FindsKeysGivenAsFlags) {
  const auto keys = ApiKeys::Load("", {"one", "two"});
  ASSERT_TRUE(keys.ok());
  ASSERT_NE(keys->Find("two"), nullptr);
  EXPECT_EQ(keys->Find("two")->name, "flag-2");
  EXPECT_EQ(keys->Find("three"), nullptr);
  EXPECT_EQ(keys->Find(""), nullptr);
  EXPECT_EQ(keys->Find("on"), nullptr);
  EXPECT_EQ(keys->Find("one "), nullptr);
}

TEST(ApiKeys, ReadsJsonWithLimits) {
  const auto keys = ApiKeys::Load(
      WriteFile(R"({"keys":[{"name":"a","key":"secret-a","models":["m1"],"namespace":"ns",)"
                R"("max_concurrent_requests":3,"max_requests_per_minute":90,)"
                R"("max_tokens_per_minute":7000},{"name":"b","key":"secret-b","admin":true,)"
                R"("budget":"12.50","budget_from":"2026-12-01T00:00:00Z"}]})"),
      {});
  ASSERT_TRUE(keys.ok()) << keys.status().ToString();
  const ApiKey* a = keys->Find("secret-a");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->name, "a");
  EXPECT_EQ(a->cache_namespace, "ns");
  EXPECT_EQ(a->max_concurrent_requests, 3);
  EXPECT_EQ(a->request_rate.per_minute(), 90);
  EXPECT_EQ(a->token_rate.per_minute(), 7000);
  EXPECT_TRUE(a->AllowsModel("m1"));
  EXPECT_FALSE(a->AllowsModel("m2"));
  const ApiKey* b = keys->Find("secret-b");
  ASSERT_NE(b, nullptr);
  EXPECT_TRUE(b->admin);
  EXPECT_EQ(b->budget, Pico{12'500'000'000'000});
  EXPECT_EQ(b->budget_from_us, 1'796'083'200'000'000);
  EXPECT_FALSE(a->budget);
  EXPECT_TRUE(b->AllowsModel("anything"));
}

// The known answer of SHA-256 for "abc".
TEST(ApiKeys, ReadsHexDigests) {
  const auto keys =
      ApiKeys::Load(WriteFile(R"({"keys":[{"name":"a","sha256":")"
                              "BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD"
                              R"("}]})"),
                    {});
  ASSERT_TRUE(keys.ok()) << keys.status().ToString();
  EXPECT_NE(keys->Find("abc"), nullptr);
  EXPECT_EQ(keys->Find("abd"), nullptr);
}

TEST(ApiKeys, ReadsOneKeyALine) {
  const auto keys = ApiKeys::Load(WriteFile("# comment\n\n  first \r\nsecond"), {});
  ASSERT_TRUE(keys.ok());
  EXPECT_EQ(keys->Find("first")->name, "key-1");
  EXPECT_EQ(keys->Find("second")->name, "key-2");
  EXPECT_EQ(keys->Find("# comment"), nullptr);
}

TEST(ApiKeys, RefusesBadFilesWithoutNamingSecrets) {
  for (const char* text : {
           "",
           "# nothing\n",
           "{",
           R"({"keys":{}})",
           R"({"keys":[]})",
           R"({"keys":[1]})",
           R"({"keys":[{"name":"a"}]})",
           R"({"keys":[{"key":"hunter2"}]})",
           R"({"keys":[{"name":"a","sha256":"hunter2"}]})",
           R"({"keys":[{"name":"a","key":"hunter2","nmae":1}]})",
           R"({"keys":[{"name":"a","key":"hunter2","admin":"yes"}]})",
           R"({"keys":[{"name":"a","key":"hunter2","max_concurrent_requests":-1}]})",
           R"({"keys":[{"name":"a","key":"hunter2","budget":12.5}]})",
           R"({"keys":[{"name":"a","key":"hunter2","budget":"-1"}]})",
           R"({"keys":[{"name":"a","key":"hunter2","budget":"1","budget_from":"today"}]})",
           R"({"keys":[{"name":"a","key":"hunter2"},{"name":"a","key":"other"}]})",
       }) {
    const auto keys = ApiKeys::Load(WriteFile(text), {});
    ASSERT_FALSE(keys.ok()) << text;
    EXPECT_EQ(keys.status().message().find("hunter2"), std::string::npos);
  }
  EXPECT_EQ(ApiKeys::Load("/does/not/exist", {}).status().code(), StatusCode::kNotFound);
  EXPECT_FALSE(ApiKeys::Load("", {""}).ok());
}

}  // namespace
}  // namespace deepinfer
