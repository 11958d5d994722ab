#include "base/utf8.h"

namespace deepinfer {
namespace {

constexpr bool IsAscii(char c) { return static_cast<unsigned char>(c) < 0x80; }

// What the lead byte promises: sequence length, the payload bits it carries, and the range of the
// second byte (narrowed for E0, ED, F0, F4: overlong forms, surrogates, beyond U+10FFFF).
struct LeadByte {
  size_t size_bytes;
  char32_t payload;
  unsigned char second_min;
  unsigned char second_max;
};

constexpr LeadByte kNotALead = {0, 0, 0, 0};

constexpr LeadByte ClassifyLead(unsigned char b) {
  if (b >= 0xC2 && b <= 0xDF) return {2, static_cast<char32_t>(b & 0x1F), 0x80, 0xBF};
  if (b >= 0xE0 && b <= 0xEF) {
    return {3, static_cast<char32_t>(b & 0x0F), static_cast<unsigned char>(b == 0xE0 ? 0xA0 : 0x80),
            static_cast<unsigned char>(b == 0xED ? 0x9F : 0xBF)};
  }
  if (b >= 0xF0 && b <= 0xF4) {
    return {4, static_cast<char32_t>(b & 0x07), static_cast<unsigned char>(b == 0xF0 ? 0x90 : 0x80),
            static_cast<unsigned char>(b == 0xF4 ? 0x8F : 0xBF)};
  }
  return kNotALead;
}

}  // namespace

Utf8Char DecodeUtf8(std::string_view text, size_t offset) {
  const auto byte_at = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte_at(offset);
  if (first < 0x80) return {first, 1, Utf8Status::kValid};
  const LeadByte lead = ClassifyLead(first);
  if (lead.size_bytes == 0) return {kReplacementCodePoint, 1, Utf8Status::kInvalid};
  char32_t code_point = lead.payload;
  for (size_t i = 1; i < lead.size_bytes; ++i) {
    if (offset + i == text.size()) return {kReplacementCodePoint, i, Utf8Status::kIncomplete};
    const unsigned char next = byte_at(offset + i);
    const unsigned char min = i == 1 ? lead.second_min : 0x80;
    const unsigned char max = i == 1 ? lead.second_max : 0xBF;
    if (next < min || next > max) return {kReplacementCodePoint, i, Utf8Status::kInvalid};
    code_point = (code_point << 6) | (next & 0x3F);
  }
  return {code_point, lead.size_bytes, Utf8Status::kValid};
}

size_t ValidUtf8Prefix(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    if (IsAscii(text[i])) {
      ++i;
      continue;
    }
    const Utf8Char c = DecodeUtf8(text, i);
    if (c.status != Utf8Status::kValid) return i;
    i += c.size_bytes;
  }
  return i;
}

bool IsValidUtf8(std::string_view text) { return ValidUtf8Prefix(text) == text.size(); }

std::string ReplaceInvalidUtf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t valid = ValidUtf8Prefix(text);
    out.append(text.substr(0, valid));
    text.remove_prefix(valid);
    if (text.empty()) break;
    out.append(kReplacementUtf8);
    text.remove_prefix(DecodeUtf8(text, 0).size_bytes);
  }
  return out;
}

void DrainCompleteUtf8(std::string* pending, std::string* out) {
  std::string_view rest = *pending;
  while (!rest.empty()) {
    const size_t valid = ValidUtf8Prefix(rest);
    out->append(rest.substr(0, valid));
    rest.remove_prefix(valid);
    if (rest.empty()) break;
    const Utf8Char c = DecodeUtf8(rest, 0);
    if (c.status == Utf8Status::kIncomplete) break;
    out->append(kReplacementUtf8);
    rest.remove_prefix(c.size_bytes);
  }
  pending->erase(0, pending->size() - rest.size());
}

void AppendUtf8(char32_t code_point, std::string* out) {
  const auto put = [&](char32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | (code_point >> 6));
    put(0x80 | (code_point & 0x3F));
  } else if (code_point > 0x10FFFF || (code_point >= 0xD800 && code_point <= 0xDFFF)) {
    out->append(kReplacementUtf8);
  } else if (code_point < 0x10000) {
    put(0xE0 | (code_point >> 12));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | (code_point >> 18));
    put(0x80 | ((code_point >> 12) & 0x3F));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

}  // namespace deepinfer
