#include "text/code_point_class.h"

#include <utf8proc.h>

#include <map>

namespace deepinfer {
namespace {

// The White_Space property of the Unicode character database. The set is fixed by stability policy
// in practice: it last changed in Unicode 6.3.
bool IsWhiteSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

CodePointClass Classify(char32_t c) {
  if (c == '\r' || c == '\n') return CodePointClass::kNewline;
  if (IsWhiteSpace(c)) return CodePointClass::kSpace;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return CodePointClass::kLetter;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      return CodePointClass::kMark;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return CodePointClass::kNumber;
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
    case UTF8PROC_CATEGORY_SM:
    case UTF8PROC_CATEGORY_SC:
    case UTF8PROC_CATEGORY_SK:
    case UTF8PROC_CATEGORY_SO:
      return CodePointClass::kPunctuation;
    default:
      return CodePointClass::kOther;
  }
}

}  // namespace

CodePointTable::CodePointTable() {
  std::map<Block, uint16_t> seen;
  for (char32_t first = 0; first < 0x110000; first += 1u << kBlockBits) {
    Block block;
    for (char32_t i = 0; i <= kBlockMask; ++i) block[i] = Classify(first + i);
    const auto [it, inserted] = seen.emplace(block, static_cast<uint16_t>(blocks_.size()));
    if (inserted) blocks_.push_back(block);
    block_index_[first >> kBlockBits] = it->second;
  }
}

const CodePointTable& CodePointTable::Get() {
  static const CodePointTable table;
  return table;
}

}  // namespace deepinfer
