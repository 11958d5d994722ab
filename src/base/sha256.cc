#include "base/sha256.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "base/check.h"

namespace deepinfer {

Sha256Digest Sha256(std::string_view bytes) {
  Sha256Digest digest;
  unsigned size = 0;
  // Fails only if the library has no SHA-256 or no memory for its context.
  DI_CHECK(EVP_Digest(bytes.data(), bytes.size(), digest.data(), &size, EVP_sha256(), nullptr) ==
           1);
  return digest;
}

std::string Sha256Hex(std::string_view bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const uint8_t byte : Sha256(bytes)) {
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

Sha256Digest HmacSha256(std::span<const uint8_t> key, std::span<const uint8_t> message) {
  Sha256Digest digest;
  unsigned size = 0;
  DI_CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), message.data(),
                message.size(), digest.data(), &size) != nullptr);
  return digest;
}

Sha256Hasher::Sha256Hasher() : context_(EVP_MD_CTX_new()) {
  DI_CHECK(context_ != nullptr && EVP_DigestInit_ex(context_, EVP_sha256(), nullptr) == 1);
}

Sha256Hasher::~Sha256Hasher() { EVP_MD_CTX_free(context_); }

Sha256Digest Sha256Hasher::Digest(std::span<const uint8_t> bytes) {
  Sha256Digest digest;
  unsigned size = 0;
  // A context without a new type starts again with the algorithm it has.
  DI_CHECK(EVP_DigestUpdate(context_, bytes.data(), bytes.size()) == 1 &&
           EVP_DigestFinal_ex(context_, digest.data(), &size) == 1 &&
           EVP_DigestInit_ex(context_, nullptr, nullptr) == 1);
  return digest;
}

}  // namespace deepinfer
