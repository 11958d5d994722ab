// Identity of cached blocks: what a block's bytes depend on, hashed so that equal keys mean equal
// model, owner, tokens and images (kv_format.md §5).
//
// Thread rule: values and pure functions; a KeyChain belongs to one thread.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"

namespace deepinfer {

// Key of one block: SHA-256 over its tokens and everything before them.
struct BlockKey {
  Sha256Digest bytes{};

  friend auto operator<=>(const BlockKey&, const BlockKey&) = default;
  // The first 8 bytes, little-endian; keys are digests, so any part of them is uniform.
  uint64_t Prefix64() const {
    uint64_t value;
    std::memcpy(&value, bytes.data(), sizeof(value));
    return value;
  }
  std::string Hex() const;
};

struct BlockKeyHash {
  size_t operator()(const BlockKey& key) const { return key.Prefix64(); }
};

// Everything that can change the bytes of a block besides tokens, images and owner.
struct KvNamespace {
  Sha256Digest weights_fingerprint{};  // over the sorted (name, dtype, shape, shard digest) list
  Sha256Digest tokenizer_hash{};
  std::string prompt_codec_version;
  uint32_t format_id = 0;
  uint32_t block_tokens = 0;
  std::string rope_and_context;  // canonical text of the position parameters
  std::string numerics_id;       // numerics.md §1
  std::string adapter_digest;    // empty without an adapter
  std::string vision_version;    // empty without vision

  Sha256Digest Id() const;
};

// Who may share a block. The server derives scopes from the authenticated tenant; a client's own
// text can only narrow one.
struct KvScope {
  Sha256Digest digest{};

  // Private to the tenant, narrowed by `scope` when it is not empty.
  static KvScope Tenant(std::span<const uint8_t> server_secret, std::string_view tenant_id,
                        std::string_view scope);
  // Shared by all tenants: prefixes that the operator has registered.
  static KvScope Public(std::span<const uint8_t> server_secret);
};

// Names a tenant on disk for quotas and erasure without telling who it is.
uint64_t TenantTag(std::span<const uint8_t> server_secret, std::string_view tenant_id);

// Positions [begin, end) that stand for one image.
struct MediaSpan {
  int64_t begin = 0;
  int64_t end = 0;
  Sha256Digest digest{};  // of the preprocessed image and the vision weights
};

// What a chain starts from. Blocks that end at or before public_tokens (rounded down to whole
// blocks) chain in the public scope, later ones in the tenant's.
struct KeyOrigin {
  Sha256Digest namespace_id{};
  KvScope scope;
  KvScope public_scope;
  int64_t public_tokens = 0;
  int32_t block_tokens = 128;
};

// The keys of a growing sequence; each whole block is hashed once.
class KeyChain {
 public:
  explicit KeyChain(const KeyOrigin& origin);

  // Hashes the whole blocks of `tokens` that have no key yet. tokens [num_tokens] is the sequence
  // from position 0 and must extend what earlier calls saw; media is sorted by begin and disjoint.
  void Extend(std::span<const int32_t> tokens, std::span<const MediaSpan> media);

  // Key of block i, covering positions [i · block_tokens, (i + 1) · block_tokens).
  const std::vector<BlockKey>& keys() const { return keys_; }
  // The key that block i's own is derived from; the root for block 0.
  BlockKey ParentOf(size_t block) const;

 private:
  KeyOrigin origin_;
  BlockKey root_;
  size_t num_public_blocks_ = 0;
  std::vector<BlockKey> keys_;
};

// All keys of the whole blocks of tokens: KeyChain in one call.
std::vector<BlockKey> ComputeBlockKeys(const KeyOrigin& origin, std::span<const int32_t> tokens,
                                       std::span<const MediaSpan> media);

}  // namespace deepinfer
