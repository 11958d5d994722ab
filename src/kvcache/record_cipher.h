// Records whose payload is encrypted with the key of their tenant: AES-256-GCM over the payload as
// it stands, bytes 0 to 119 of the header authenticated with it (kv_format.md §22).
// Thread rule: pure functions on the caller's buffers.
#pragma once

#include <span>

#include "kvcache/record.h"
#include "kvcache/tenant_keys.h"

namespace deepinfer {

using RecordNonce = std::array<uint8_t, 12>;

// A random nonce: a key is used for far fewer than the 2^32 records that random ones are good for.
Result<RecordNonce> NewNonce();

// Like SealRecord, with the payload encrypted in place first.
Status SealEncryptedRecord(const KvBlockLayout& layout, RecordHeader header, const TenantKey& key,
                           const RecordNonce& nonce, std::span<std::byte> record);

// Decrypts the payload of a verified record in place. False when it was not encrypted with this key
// under this header; the payload is then useless.
bool DecryptRecord(const KvBlockLayout& layout, const TenantKey& key, std::span<std::byte> record);

}  // namespace deepinfer
