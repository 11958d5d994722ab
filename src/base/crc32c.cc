#include "base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__SSE4_2__)
#include <immintrin.h>
#endif

namespace deepinfer {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78;  // reflected

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    table[byte] = crc;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = MakeTable();

#if defined(__SSE4_2__)
// The instruction has a latency of three cycles and issues every cycle: three streams keep it busy.
// Streams are joined by advancing a CRC over the zero bytes that the next stream occupies.
constexpr size_t kStreamBytes = 4096;

// A CRC is linear in its register, so "advance over kStreamBytes zeros" is a table of four lookups.
using ZeroTable = std::array<std::array<uint32_t, 256>, 4>;

constexpr ZeroTable MakeZeroTable() {
  // Images of the 32 unit registers, advanced by repeated doubling of the number of zero bits.
  std::array<uint32_t, 32> step{};
  for (uint32_t bit = 0; bit < 32; ++bit) {
    const uint32_t crc = uint32_t{1} << bit;
    step[bit] = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
  }
  for (size_t zero_bits = 1; zero_bits < 8 * kStreamBytes; zero_bits *= 2) {
    std::array<uint32_t, 32> twice{};
    for (size_t bit = 0; bit < 32; ++bit) {
      for (size_t source = 0; source < 32; ++source) {
        if ((step[bit] >> source & 1) != 0) twice[bit] ^= step[source];
      }
    }
    step = twice;
  }
  ZeroTable table{};
  for (size_t place = 0; place < 4; ++place) {
    for (size_t byte = 0; byte < 256; ++byte) {
      for (size_t bit = 0; bit < 8; ++bit) {
        if ((byte >> bit & 1) != 0) table[place][byte] ^= step[8 * place + bit];
      }
    }
  }
  return table;
}

constexpr ZeroTable kZeros = MakeZeroTable();

uint32_t AdvanceOverStream(uint32_t crc) {
  return kZeros[0][crc & 255] ^ kZeros[1][crc >> 8 & 255] ^ kZeros[2][crc >> 16 & 255] ^
         kZeros[3][crc >> 24];
}

uint64_t Word(const std::byte* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

uint32_t Crc32cInstruction(const std::byte* data, size_t size, uint32_t crc) {
  for (; size >= 3 * kStreamBytes; size -= 3 * kStreamBytes, data += 3 * kStreamBytes) {
    uint64_t a = crc;
    uint64_t b = 0;
    uint64_t c = 0;
    for (size_t i = 0; i < kStreamBytes; i += sizeof(uint64_t)) {
      a = _mm_crc32_u64(a, Word(data + i));
      b = _mm_crc32_u64(b, Word(data + kStreamBytes + i));
      c = _mm_crc32_u64(c, Word(data + 2 * kStreamBytes + i));
    }
    const uint32_t ab = AdvanceOverStream(static_cast<uint32_t>(a)) ^ static_cast<uint32_t>(b);
    crc = AdvanceOverStream(ab) ^ static_cast<uint32_t>(c);
  }
  uint64_t tail = crc;
  for (; size >= sizeof(uint64_t); size -= sizeof(uint64_t), data += sizeof(uint64_t)) {
    tail = _mm_crc32_u64(tail, Word(data));
  }
  crc = static_cast<uint32_t>(tail);
  for (; size > 0; --size, ++data) crc = _mm_crc32_u8(crc, static_cast<uint8_t>(*data));
  return crc;
}
#endif

}  // namespace

uint32_t Crc32cPortable(std::span<const std::byte> bytes, uint32_t crc_so_far) {
  uint32_t crc = ~crc_so_far;
  for (const std::byte byte : bytes) {
    crc = (crc >> 8) ^ kTable[(crc ^ static_cast<uint32_t>(byte)) & 255];
  }
  return ~crc;
}

uint32_t Crc32c(std::span<const std::byte> bytes, uint32_t crc_so_far) {
#if defined(__SSE4_2__)
  return ~Crc32cInstruction(bytes.data(), bytes.size(), ~crc_so_far);
#else
  return Crc32cPortable(bytes, crc_so_far);
#endif
}

}  // namespace deepinfer
