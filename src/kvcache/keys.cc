#include "kvcache/keys.h"

#include <algorithm>
#include <bit>
#include <type_traits>

#include "base/check.h"

namespace deepinfer {
namespace {

// What is hashed: a tag and fields, each behind its length, so that no two lists of fields give
// the same bytes. Integers are little-endian.
class TaggedMessage {
 public:
  explicit TaggedMessage(std::string_view tag) { Text(tag); }

  TaggedMessage& Text(std::string_view text) {
    return Bytes({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  }
  TaggedMessage& Bytes(std::span<const uint8_t> field) {
    Length(field.size());
    bytes_.insert(bytes_.end(), field.begin(), field.end());
    return *this;
  }
  TaggedMessage& Number(uint32_t value) {
    Length(sizeof(value));
    Append(value);
    return *this;
  }

  // A field of several parts: its length first, then the parts.
  void Length(size_t size) { Append(static_cast<uint32_t>(size)); }
  template <typename T>
  void Append(const T& value) {
    static_assert(std::is_integral_v<T>);
    AppendArray(&value, 1);
  }
  template <typename T>
  void AppendArray(const T* values, size_t count) {
    const auto* first = reinterpret_cast<const uint8_t*>(values);
    bytes_.insert(bytes_.end(), first, first + count * sizeof(T));
  }
  // Back to the first `size` bytes, to change the last fields only.
  void Truncate(size_t size) { bytes_.resize(size); }

  std::span<const uint8_t> bytes() const { return bytes_; }

 private:
  std::vector<uint8_t> bytes_;
};

static_assert(std::endian::native == std::endian::little, "hashed integers are little-endian");

constexpr uint32_t kImageKind = 1;

Sha256Digest Hash(const TaggedMessage& message) {
  return Sha256({reinterpret_cast<const char*>(message.bytes().data()), message.bytes().size()});
}

// The list of image spans that intersect the block [begin, end).
void AppendMediaField(std::span<const MediaSpan> media, int64_t begin, int64_t end,
                      TaggedMessage* message) {
  auto first = std::partition_point(media.begin(), media.end(),
                                    [&](const MediaSpan& span) { return span.end <= begin; });
  const auto last = std::partition_point(first, media.end(),
                                         [&](const MediaSpan& span) { return span.begin < end; });
  const auto count = static_cast<size_t>(last - first);
  message->Length(sizeof(uint32_t) + count * (3 * sizeof(uint32_t) + sizeof(Sha256Digest)));
  message->Append(static_cast<uint32_t>(count));
  for (; first != last; ++first) {
    const int64_t from = std::max(first->begin, begin);
    message->Append(kImageKind);
    message->Append(static_cast<uint32_t>(from - begin));
    message->Append(static_cast<uint32_t>(from - first->begin));
    message->AppendArray(first->digest.data(), first->digest.size());
  }
}

BlockKey RootKey(const Sha256Digest& namespace_id, const KvScope& scope) {
  return {Hash(TaggedMessage("deepinfer-kv-root-v1").Bytes(namespace_id).Bytes(scope.digest))};
}

}  // namespace

std::string BlockKey::Hex() const {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const uint8_t byte : bytes) {
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

Sha256Digest KvNamespace::Id() const {
  return Hash(TaggedMessage("deepinfer-kv-ns-v1")
                  .Bytes(weights_fingerprint)
                  .Bytes(tokenizer_hash)
                  .Text(prompt_codec_version)
                  .Number(format_id)
                  .Number(block_tokens)
                  .Text(rope_and_context)
                  .Text(numerics_id)
                  .Text(adapter_digest)
                  .Text(vision_version));
}

KvScope KvScope::Tenant(std::span<const uint8_t> server_secret, std::string_view tenant_id,
                        std::string_view scope) {
  return {HmacSha256(server_secret,
                     TaggedMessage("deepinfer-kv-scope-v1").Text(tenant_id).Text(scope).bytes())};
}

KvScope KvScope::Public(std::span<const uint8_t> server_secret) {
  return {HmacSha256(server_secret, TaggedMessage("deepinfer-kv-public-v1").bytes())};
}

uint64_t TenantTag(std::span<const uint8_t> server_secret, std::string_view tenant_id) {
  const Sha256Digest digest =
      HmacSha256(server_secret, TaggedMessage("deepinfer-kv-tenant-v1").Text(tenant_id).bytes());
  return BlockKey{digest}.Prefix64();
}

KeyChain::KeyChain(const KeyOrigin& origin) : origin_(origin) {
  DI_CHECK(origin.block_tokens > 0 && origin.public_tokens >= 0);
  num_public_blocks_ = static_cast<size_t>(origin.public_tokens / origin.block_tokens);
  root_ = RootKey(origin.namespace_id, num_public_blocks_ > 0 ? origin.public_scope : origin.scope);
}

BlockKey KeyChain::ParentOf(size_t block) const {
  if (block == 0) return root_;
  const BlockKey& before = keys_[block - 1];
  if (block != num_public_blocks_) return before;
  return {
      Hash(TaggedMessage("deepinfer-kv-join-v1").Bytes(before.bytes).Bytes(origin_.scope.digest))};
}

void KeyChain::Extend(std::span<const int32_t> tokens, std::span<const MediaSpan> media) {
  const auto block_tokens = static_cast<size_t>(origin_.block_tokens);
  const size_t num_blocks = tokens.size() / block_tokens;
  if (num_blocks <= keys_.size()) return;
  keys_.reserve(num_blocks);
  Sha256Hasher hasher;
  TaggedMessage message("deepinfer-kv-block-v1");
  const size_t tag_size = message.bytes().size();
  for (size_t block = keys_.size(); block < num_blocks; ++block) {
    message.Truncate(tag_size);
    message.Bytes(ParentOf(block).bytes);
    message.Length(sizeof(uint32_t) * (1 + block_tokens));
    message.Append(static_cast<uint32_t>(block_tokens));
    message.AppendArray(tokens.data() + block * block_tokens, block_tokens);
    const auto begin = static_cast<int64_t>(block * block_tokens);
    AppendMediaField(media, begin, begin + origin_.block_tokens, &message);
    keys_.push_back({hasher.Digest(message.bytes())});
  }
}

std::vector<BlockKey> ComputeBlockKeys(const KeyOrigin& origin, std::span<const int32_t> tokens,
                                       std::span<const MediaSpan> media) {
  KeyChain chain(origin);
  chain.Extend(tokens, media);
  return chain.keys();
}

}  // namespace deepinfer
