// SHA-256 and HMAC-SHA-256 of bytes in memory.
// Thread rule: pure functions; a Sha256Hasher belongs to one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

struct evp_md_ctx_st;

namespace deepinfer {

using Sha256Digest = std::array<uint8_t, 32>;

Sha256Digest Sha256(std::string_view bytes);

// Lower-case hexadecimal, 64 characters.
std::string Sha256Hex(std::string_view bytes);

// RFC 2104 over SHA-256.
Sha256Digest HmacSha256(std::span<const uint8_t> key, std::span<const uint8_t> message);

// Many digests in a row without looking the algorithm up each time.
class Sha256Hasher {
 public:
  Sha256Hasher();
  ~Sha256Hasher();
  Sha256Hasher(const Sha256Hasher&) = delete;
  Sha256Hasher& operator=(const Sha256Hasher&) = delete;

  Sha256Digest Digest(std::span<const uint8_t> bytes);

 private:
  evp_md_ctx_st* context_;
};

}  // namespace deepinfer
