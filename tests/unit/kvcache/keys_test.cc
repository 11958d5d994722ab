#include "kvcache/keys.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <numeric>
#include <set>

namespace deepinfer {
namespace {

#include "unit/kvcache/key_vectors.inc"

template <size_t n>
void ExpectHex(const std::vector<BlockKey>& keys, const char* const (&expected)[n]) {
  ASSERT_EQ(keys.size(), n);
  for (size_t i = 0; i < n; ++i) EXPECT_EQ(keys[i].Hex(), expected[i]) << "block " << i;
}

std::string Hex(const Sha256Digest& digest) { return BlockKey{digest}.Hex(); }

Sha256Digest Filled(uint8_t byte) {
  Sha256Digest digest;
  digest.fill(byte);
  return digest;
}

std::vector<uint8_t> Secret() {
  std::vector<uint8_t> secret(32);
  std::iota(secret.begin(), secret.end(), uint8_t{0});
  return secret;
}

KvNamespace Namespace() {
  KvNamespace ns;
  ns.weights_fingerprint = Filled(0x11);
  ns.tokenizer_hash = Filled(0x22);
  ns.prompt_codec_version = "v4.1";
  ns.format_id = 1;
  ns.block_tokens = 128;
  ns.rope_and_context = "theta=10000";
  ns.numerics_id = "v41-prod-bf16dot-r1";
  ns.vision_version = "vision-1";
  return ns;
}

KeyOrigin Origin() {
  KeyOrigin origin;
  origin.namespace_id = Namespace().Id();
  origin.scope = KvScope::Tenant(Secret(), "tenant-a", "");
  origin.public_scope = KvScope::Public(Secret());
  return origin;
}

std::vector<int32_t> Tokens() {
  std::vector<int32_t> tokens;
  for (uint64_t i = 0; i < 5 * 128 + 77; ++i) {
    tokens.push_back(static_cast<int32_t>(i * 2654435761 % 129280));
  }
  return tokens;
}

std::vector<MediaSpan> Media() {
  return {{5, 20, Filled(0xA1)}, {130, 400, Filled(0xA2)}, {500, 512, Filled(0xA3)}};
}

TEST(Keys, NamespaceScopesAndTenantTagMatchTheVectors) {
  EXPECT_EQ(Hex(Namespace().Id()), kNamespaceId[0]);
  KvNamespace other = Namespace();
  other.format_id = 2;
  EXPECT_EQ(Hex(other.Id()), kOtherFormatNamespaceId[0]);
  EXPECT_EQ(Hex(KvScope::Tenant(Secret(), "tenant-a", "").digest), kTenantScope[0]);
  EXPECT_EQ(Hex(KvScope::Tenant(Secret(), "tenant-a", "user 7").digest), kNarrowedScope[0]);
  EXPECT_EQ(Hex(KvScope::Public(Secret()).digest), kPublicScope[0]);
  const uint64_t tag = TenantTag(Secret(), "tenant-a");
  BlockKey tag_bytes;
  std::memcpy(tag_bytes.bytes.data(), &tag, sizeof(tag));
  EXPECT_EQ(tag_bytes.Hex().substr(0, 16), kTenantTag[0]);
}

TEST(Keys, ChainsMatchTheVectors) {
  ExpectHex(ComputeBlockKeys(Origin(), Tokens(), {}), kPlainKeys);
  ExpectHex(ComputeBlockKeys(Origin(), Tokens(), Media()), kMediaKeys);
}

TEST(Keys, PublicPrefixesMatchTheVectors) {
  KeyOrigin origin = Origin();
  origin.public_tokens = 300;  // two whole blocks are public
  ExpectHex(ComputeBlockKeys(origin, Tokens(), {}), kPublicKeys);
  origin.public_tokens = 5 * 128;
  ExpectHex(ComputeBlockKeys(origin, Tokens(), {}), kAllPublicKeys);
}

TEST(Keys, OtherBlockLengthsMatchTheVectors) {
  KeyOrigin origin = Origin();
  origin.block_tokens = 8;
  origin.scope = KvScope::Tenant(Secret(), "tenant-a", "user 7");
  const std::vector<int32_t> tokens = Tokens();
  ExpectHex(ComputeBlockKeys(origin, std::span(tokens).first(20), std::vector{Media()[0]}),
            kSmallBlockKeys);
}

TEST(Keys, TenantsShareThePublicBlocksAndNothingElse) {
  KeyOrigin a = Origin();
  a.public_tokens = 256;
  KeyOrigin b = a;
  b.scope = KvScope::Tenant(Secret(), "tenant-b", "");
  const auto keys_a = ComputeBlockKeys(a, Tokens(), {});
  const auto keys_b = ComputeBlockKeys(b, Tokens(), {});
  for (size_t i = 0; i < keys_a.size(); ++i) EXPECT_EQ(keys_a[i] == keys_b[i], i < 2) << i;
}

TEST(Keys, ParentOfABlockIsWhatItWasHashedFrom) {
  KeyOrigin origin = Origin();
  origin.public_tokens = 128;
  KeyChain chain(origin);
  chain.Extend(Tokens(), {});
  EXPECT_EQ(chain.ParentOf(2), chain.keys()[1]);
  EXPECT_NE(chain.ParentOf(1), chain.keys()[0]);  // joined with the tenant's scope
  EXPECT_NE(chain.ParentOf(0), BlockKey());
}

RC_GTEST_PROP(KeysProperty, GrowingInAnyStepsGivesTheSameKeys, ()) {
  const std::vector<int32_t> tokens = Tokens();
  KeyOrigin origin = Origin();
  origin.block_tokens = *rc::gen::inRange(1, 140);
  origin.public_tokens = *rc::gen::inRange<int64_t>(0, 400);
  const std::vector<MediaSpan> media = *rc::gen::element(Media(), std::vector<MediaSpan>{});
  const auto whole = ComputeBlockKeys(origin, tokens, media);
  KeyChain chain(origin);
  for (size_t size = 0; size < tokens.size();) {
    size = std::min(tokens.size(), size + *rc::gen::inRange<size_t>(1, 200));
    // Only spans that have begun are known while a prompt grows.
    std::vector<MediaSpan> known;
    for (const MediaSpan& span : media) {
      if (span.begin < static_cast<int64_t>(size)) known.push_back(span);
    }
    chain.Extend(std::span(tokens).first(size), known);
  }
  RC_ASSERT(chain.keys() == whole);
}

// Two inputs that differ in one field share no key from the first block on that the field reaches.
RC_GTEST_PROP(KeysProperty, AnyChangeOfIdentityChangesEveryKeyBehindIt, ()) {
  KvNamespace ns = Namespace();
  std::string tenant = "t" + *rc::gen::arbitrary<std::string>();
  std::string scope = *rc::gen::arbitrary<std::string>();
  std::vector<int32_t> tokens = Tokens();
  std::vector<MediaSpan> media = Media();
  const auto keys = [&] {
    KeyOrigin origin;
    origin.namespace_id = ns.Id();
    origin.scope = KvScope::Tenant(Secret(), tenant, scope);
    return ComputeBlockKeys(origin, tokens, media);
  };
  const auto before = keys();
  size_t first_changed = 0;
  switch (*rc::gen::inRange(0, 14)) {
    case 0:
      ns.weights_fingerprint[*rc::gen::inRange<size_t>(0, 32)] ^= 1;
      break;
    case 1:
      ns.tokenizer_hash[*rc::gen::inRange<size_t>(0, 32)] ^= 128;
      break;
    case 2:
      ns.prompt_codec_version += "x";
      break;
    case 3:
      ns.format_id ^= *rc::gen::nonZero<uint32_t>();
      break;
    case 4:
      ns.block_tokens ^= *rc::gen::nonZero<uint32_t>();
      break;
    case 5:
      ns.rope_and_context += " ";
      break;
    case 6:
      ns.numerics_id.pop_back();
      break;
    case 7:
      ns.adapter_digest = ns.vision_version;
      break;
    case 8:
      std::swap(ns.adapter_digest, ns.vision_version);
      break;
    case 9:
      tenant += "x";
      break;
    case 10:  // a byte moves from the tenant to the scope: frames keep them apart
      scope = tenant.substr(tenant.size() - 1) + scope;
      tenant.pop_back();
      break;
    case 11: {
      const auto position = *rc::gen::inRange<size_t>(0, 5 * 128);
      tokens[position] ^= 1;
      first_changed = position / 128;
      break;
    }
    case 12: {
      const auto span = *rc::gen::inRange<size_t>(0, media.size());
      media[span].digest[*rc::gen::inRange<size_t>(0, 32)] ^= 4;
      first_changed = static_cast<size_t>(media[span].begin) / 128;
      break;
    }
    case 13:
      media[1].begin -= 1;
      first_changed = 1;
      break;
  }
  const auto after = keys();
  for (size_t i = 0; i < before.size(); ++i)
    RC_ASSERT((before[i] == after[i]) == (i < first_changed));
}

}  // namespace
}  // namespace deepinfer
