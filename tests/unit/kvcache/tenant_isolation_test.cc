// No tenant finds what another one stored, however alike their prompts, names and scopes are.
//
// DEEPINFER_KV_ISOLATION_TRIALS sets how many lookups are tried: 10,000,000 by hand, less than a
// minute.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <set>
#include <tuple>

#include "support/kv_store_fixture.h"

namespace deepinfer {
namespace {

constexpr int64_t kTrialsByDefault = 50'000;
constexpr uint32_t kPrompts = 16;
constexpr size_t kPromptTokens = 24;

int64_t NumTrials() {
  const char* text = std::getenv("DEEPINFER_KV_ISOLATION_TRIALS");
  return text == nullptr ? kTrialsByDefault : std::atoll(text);
}

class TenantIsolationTest : public testing::Test, public KvStoreFixture {
 protected:
  // Who asks: names that differ in a byte, or only in where the tenant ends and the scope begins.
  struct Caller {
    std::string tenant;
    std::string scope;
    uint8_t space = 0;  // another namespace: a model with other weights
    auto operator<=>(const Caller&) const = default;
  };

  Caller AnyCaller() {
    const std::string text = "team-" + std::to_string(dice_() % 7) + std::to_string(dice_() % 3);
    const size_t cut = text.size() - dice_() % 3;
    return {text.substr(0, cut), text.substr(cut), static_cast<uint8_t>(dice_() % 2)};
  }

  std::vector<BlockKey> KeysOf(const Caller& caller, uint32_t prompt) const {
    KeyOrigin origin;
    origin.namespace_id = options.namespace_id;
    origin.namespace_id[31] ^= caller.space;
    origin.scope = KvScope::Tenant(kSecret, caller.tenant, caller.scope);
    origin.block_tokens = static_cast<int32_t>(options.layout.block_tokens);
    std::vector<int32_t> tokens;
    for (size_t i = 0; i < kPromptTokens; ++i) {
      // Prompts share their first block.
      tokens.push_back(static_cast<int32_t>(i < 8 ? i : i * 31 + prompt));
    }
    return ComputeBlockKeys(origin, tokens, {});
  }

  static constexpr std::array<uint8_t, 32> kSecret = {9, 8, 7};
  std::mt19937 dice_{1};
};

TEST_F(TenantIsolationTest, NobodyHitsWhatAnotherTenantStored) {
  Open();
  std::set<std::pair<Caller, uint32_t>> stored;
  for (int i = 0; i < 200; ++i) {
    const Caller caller = AnyCaller();
    const uint32_t prompt = static_cast<uint32_t>(dice_() % kPrompts);
    if (!stored.emplace(caller, prompt).second) continue;
    const auto keys = KeysOf(caller, prompt);
    for (size_t block = 0; block < keys.size(); ++block) {
      PublishRequest request;
      request.key = keys[block];
      if (block > 0) request.parent = keys[block - 1];
      request.block_number = static_cast<uint32_t>(block);
      request.tenant_tag = TenantTag(kSecret, caller.tenant);
      (void)store->Publish(request, PayloadOfKey(options.layout, keys[block]));
    }
  }
  store->Flush(true);
  // Whoever stored any prompt has the block that all of them begin with.
  std::set<Caller> known;
  for (const auto& [caller, prompt] : stored) known.insert(caller);

  int64_t own_hits = 0;
  int64_t foreign_hits = 0;
  const int64_t trials = NumTrials();
  for (int64_t trial = 0; trial < trials; ++trial) {
    const Caller caller = AnyCaller();
    const uint32_t prompt = static_cast<uint32_t>(dice_() % kPrompts);
    const size_t own = stored.contains({caller, prompt}) ? kPromptTokens / 8
                       : known.contains(caller)          ? 1
                                                         : 0;
    const size_t hit = store->Lookup(KeysOf(caller, prompt), 65535).blocks.size();
    own_hits += static_cast<int64_t>(own);
    if (hit != own) ++foreign_hits;
  }
  EXPECT_EQ(foreign_hits, 0) << "hits that are not the caller's own, or own ones missed";
  EXPECT_GT(own_hits, trials / 100) << "a store that nobody hits proves nothing";
  EXPECT_LT(known.size(), 7u * 3 * 3 * 2) << "and so does one where everybody stored everything";
  std::printf("%ld lookups, %ld blocks of the callers' own, %ld of others\n", trials, own_hits,
              foreign_hits);
}

}  // namespace
}  // namespace deepinfer
