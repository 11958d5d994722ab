#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <random>
#include <string_view>
#include <vector>

namespace deepinfer {
namespace {

std::span<const std::byte> Bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

TEST(Crc32c, MatchesKnownValues) {
  EXPECT_EQ(Crc32c({}), 0u);
  EXPECT_EQ(Crc32c(Bytes("123456789")), 0xE3069283u);
  // RFC 3720, appendix B.4.
  EXPECT_EQ(Crc32c(std::vector(32, std::byte{0})), 0x8A9136AAu);
  EXPECT_EQ(Crc32c(std::vector(32, std::byte{0xFF})), 0x62A8AB43u);
}

TEST(Crc32c, InstructionAndTableAgreeAtEveryLengthAndAlignment) {
  std::mt19937 random(7);
  std::vector<std::byte> bytes(50'000);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  const std::span all(bytes);
  for (size_t size = 0; size < 300; ++size) {
    ASSERT_EQ(Crc32c(all.subspan(size % 11, size)), Crc32cPortable(all.subspan(size % 11, size)))
        << size;
  }
  // Around one and several rounds of three streams.
  for (const size_t size : {12287u, 12288u, 12289u, 12300u, 24576u, 36863u, 49990u}) {
    ASSERT_EQ(Crc32c(all.subspan(3, size)), Crc32cPortable(all.subspan(3, size))) << size;
  }
}

TEST(Crc32c, ContinuesFromTheBytesBefore) {
  std::vector<std::byte> bytes(30'000, std::byte{0x5A});
  const std::span all(bytes);
  for (const size_t cut : {0u, 1u, 13u, 4096u, 20'000u, 30'000u}) {
    EXPECT_EQ(Crc32c(all.subspan(cut), Crc32c(all.first(cut))), Crc32c(all)) << cut;
    EXPECT_EQ(Crc32cPortable(all.subspan(cut), Crc32c(all.first(cut))), Crc32c(all)) << cut;
  }
}

}  // namespace
}  // namespace deepinfer
