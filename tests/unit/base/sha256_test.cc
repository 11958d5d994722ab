#include "base/sha256.h"

#include <gtest/gtest.h>

#include <vector>

namespace deepinfer {
namespace {

std::span<const uint8_t> Bytes(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

std::string Hex(const Sha256Digest& digest) {
  std::string hex;
  for (const uint8_t byte : digest) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  return hex;
}

TEST(Sha256, AHasherGivesTheSameDigestsInARow) {
  Sha256Hasher hasher;
  for (const std::string_view text : {"", "abc", "a longer message", "abc"}) {
    EXPECT_EQ(hasher.Digest(Bytes(text)), Sha256(text)) << text;
  }
  // FIPS 180-4, example of one block.
  EXPECT_EQ(Sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Sha256, HmacMatchesRfc4231) {
  EXPECT_EQ(Hex(HmacSha256(std::vector<uint8_t>(20, 0x0b), Bytes("Hi There"))),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(Hex(HmacSha256(Bytes("Jefe"), Bytes("what do ya want for nothing?"))),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

}  // namespace
}  // namespace deepinfer
