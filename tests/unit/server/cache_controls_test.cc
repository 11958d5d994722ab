// What the fields of a request and the operator's settings make of its stay in the cache.

#include "server/cache_controls.h"

#include <gtest/gtest.h>

#include <set>

#include "server/api_keys.h"
#include "server/chat_request.h"

namespace deepinfer {
namespace {

const std::array<uint8_t, 32> kSecret{1, 2, 3};

CacheRetention Retention(const RequestLabels& labels, const CacheControlOptions& options = {},
                         bool is_batch = false) {
  return MakeCacheRetention(options, kSecret, nullptr, labels, is_batch);
}

RequestLabels Lifetimes(const std::string& retention, const std::string& ttl) {
  RequestLabels labels;
  labels.prompt_cache_retention = retention;
  labels.prompt_cache_ttl = ttl;
  return labels;
}

TEST(CacheControls, TheClassComesFromKeyRouteOrShortestLifetime) {
  EXPECT_EQ(Retention({}).retention, RetentionClass::kChat);
  EXPECT_EQ(Retention({}, {.default_class = RetentionClass::kAgent}).retention,
            RetentionClass::kAgent);
  EXPECT_EQ(Retention({}, {}, true).retention, RetentionClass::kBatch);
  EXPECT_EQ(Retention(Lifetimes("", "1h")).retention, RetentionClass::kBatch);
  EXPECT_EQ(Retention(Lifetimes("", "6h")).retention, RetentionClass::kBatch);
  EXPECT_EQ(Retention(Lifetimes("", "7h")).retention, RetentionClass::kAgent);
  EXPECT_EQ(Retention(Lifetimes("", "3d")).retention, RetentionClass::kAgent);
  EXPECT_EQ(Retention(Lifetimes("", "4d"), {}, true).retention, RetentionClass::kChat);
  EXPECT_EQ(Retention(Lifetimes("", "30d")).retention, RetentionClass::kChat);
  EXPECT_EQ(Retention(Lifetimes("", "7d"), {.min_ttl_cap_s = 3600}).retention,
            RetentionClass::kBatch);
  ApiKey key;
  key.name = "agents";
  key.cache_class = RetentionClass::kAgent;
  EXPECT_EQ(MakeCacheRetention({}, kSecret, &key, Lifetimes("", "7d"), true).retention,
            RetentionClass::kAgent);
}

TEST(CacheControls, InMemoryNeverReachesTheDisk) {
  for (const char* text : {"in_memory", "in-memory", "30m", "1h"}) {
    EXPECT_FALSE(Retention(Lifetimes(text, "")).persist) << text;
  }
  EXPECT_TRUE(Retention({}).persist);
  EXPECT_FALSE(Retention({}, {.max_ttl_cap_s = 0}).persist);
}

TEST(CacheControls, ALongestLifetimeIsKeptToTheHour) {
  for (const auto& [text, hours] : std::vector<std::pair<std::string, int64_t>>{
           {"2h", 2}, {"6h", 6}, {"12h", 12}, {"24h", 24}, {"3d", 72}, {"5d", 120}}) {
    const CacheRetention r = Retention(Lifetimes(text, ""));
    ASSERT_TRUE(r.persist) << text;
    ASSERT_GT(r.max_lifetime_hours, 0) << text;
    // The bucket of the deadline ends at most one bucket later.
    const int64_t width = r.retention == RetentionClass::kBatch   ? 1
                          : r.retention == RetentionClass::kAgent ? 6
                                                                  : 12;
    EXPECT_LE(r.max_lifetime_hours + width, hours) << text;
  }
  EXPECT_EQ(Retention(Lifetimes("7d", "")).max_lifetime_hours, 0) << "the class is no longer";
  EXPECT_EQ(Retention(Lifetimes("30d", "")).max_lifetime_hours, 0);
  EXPECT_GT(Retention({}, {.max_ttl_cap_s = 24 * 3600}).max_lifetime_hours, 0);
}

TEST(CacheControls, ExplicitModeKeepsOnlyWhatIsMarked) {
  RequestLabels labels;
  labels.prompt_cache_mode = "explicit";
  EXPECT_FALSE(Retention(labels).persist);
  labels.num_cache_breakpoints = 1;
  EXPECT_TRUE(Retention(labels).persist);
}

TEST(CacheControls, ScopesDependOnSecretTenantAndLabels) {
  ApiKey a, b;
  a.name = "a";
  b.name = "b";
  RequestLabels user, salt;
  user.user = "x";
  salt.cache_salt = "x";
  const std::array<uint8_t, 32> other_secret{9};
  std::set<Sha256Digest> scopes;
  scopes.insert(CacheScope(kSecret, nullptr, {}).digest);
  scopes.insert(CacheScope(other_secret, nullptr, {}).digest);
  for (const ApiKey* key : {&a, &b}) {
    for (const RequestLabels& labels : {RequestLabels{}, user, salt}) {
      scopes.insert(CacheScope(kSecret, key, labels).digest);
    }
  }
  EXPECT_EQ(scopes.size(), 8u);
  b.cache_namespace = "a";
  EXPECT_EQ(CacheScope(kSecret, &a, user).digest, CacheScope(kSecret, &b, user).digest);
  EXPECT_EQ(MakeCacheRetention({}, kSecret, &a, {}, false).tenant_tag,
            MakeCacheRetention({}, kSecret, &b, user, true).tenant_tag)
      << "one tenant, one quota";
}

TEST(CacheControls, AKeyWithoutANameKeepsItsCacheWhereverItStandsInTheList) {
  const auto first = ApiKeys::Load("", {"secret-one", "secret-two"});
  const auto swapped = ApiKeys::Load("", {"secret-two", "secret-one"});
  ASSERT_TRUE(first.ok() && swapped.ok());
  for (const char* secret : {"secret-one", "secret-two"}) {
    EXPECT_EQ(CacheTenant(first->Find(secret)), CacheTenant(swapped->Find(secret)));
  }
  EXPECT_NE(CacheTenant(first->Find("secret-one")), CacheTenant(first->Find("secret-two")));
}

}  // namespace
}  // namespace deepinfer
