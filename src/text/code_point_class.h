// Classes of code points the pre-tokenizer patterns distinguish, from Unicode general categories.
// Thread rule: the table is built on first use and immutable afterwards.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace deepinfer {

// Disjoint: no White_Space code point is in L, M, N, P or S.
enum class CodePointClass : unsigned char {
  kOther,        // control, format, private use, unassigned
  kLetter,       // \p{L}
  kMark,         // \p{M}
  kNumber,       // \p{N}
  kPunctuation,  // \p{P} and \p{S}
  kSpace,        // White_Space except the two of kNewline
  kNewline,      // CR and LF
};

class CodePointTable {
 public:
  static const CodePointTable& Get();

  // Precondition: code_point <= 0x10FFFF.
  CodePointClass Lookup(char32_t code_point) const {
    return blocks_[block_index_[code_point >> kBlockBits]][code_point & kBlockMask];
  }

 private:
  static constexpr unsigned kBlockBits = 8;
  static constexpr char32_t kBlockMask = (1u << kBlockBits) - 1;
  static constexpr size_t kNumBlocks = 0x110000 >> kBlockBits;
  using Block = std::array<CodePointClass, 1u << kBlockBits>;

  CodePointTable();

  // Equal blocks are stored once, which leaves some 60 KiB of the 1.1 MiB.
  std::array<uint16_t, kNumBlocks> block_index_;
  std::vector<Block> blocks_;
};

}  // namespace deepinfer
