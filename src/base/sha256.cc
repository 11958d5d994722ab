#include "base/sha256.h"

#include <openssl/evp.h>

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

}  // namespace deepinfer
