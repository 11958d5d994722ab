#include "server/request_id.h"

#include <openssl/rand.h>

#include <algorithm>
#include <array>

#include "base/check.h"

namespace deepinfer {
namespace {

constexpr size_t kMaxIdLength = 128;
constexpr size_t kRandomLength = 24;
constexpr std::string_view kAlphabet =
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

bool IsIdChar(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == ':' || c == '-';
}

}  // namespace

bool IsValidRequestId(std::string_view id) {
  return !id.empty() && id.size() <= kMaxIdLength && std::all_of(id.begin(), id.end(), IsIdChar);
}

std::string MakeRandomId(std::string_view prefix) {
  // Bytes at or above the largest multiple of 62 are skipped, so that every character is equally
  // likely. One refill of 64 bytes is enough in all but a few cases.
  constexpr unsigned kLimit = 256 / 62 * 62;
  std::string id(prefix);
  const size_t length = prefix.size() + kRandomLength;
  std::array<unsigned char, 64> bytes{};
  while (id.size() < length) {
    DI_CHECK(RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) == 1);
    for (const unsigned char byte : bytes) {
      if (byte < kLimit && id.size() < length) id += kAlphabet[byte % kAlphabet.size()];
    }
  }
  return id;
}

std::string MakeRandomHex128() {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::array<unsigned char, 16> bytes{};
  DI_CHECK(RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) == 1);
  std::string hex;
  for (const unsigned char byte : bytes) {
    hex += kHex[byte >> 4];
    hex += kHex[byte & 15];
  }
  return hex;
}

}  // namespace deepinfer
