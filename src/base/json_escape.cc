#include "base/json_escape.h"

#include <cstddef>

namespace deepinfer {
namespace {

// Letter behind the backslash, 'u' for the long form, 0 for bytes that stand for themselves.
char EscapeLetter(unsigned char byte) {
  switch (byte) {
    case '"':
      return '"';
    case '\\':
      return '\\';
    case '\n':
      return 'n';
    case '\r':
      return 'r';
    case '\t':
      return 't';
    case '\b':
      return 'b';
    case '\f':
      return 'f';
    default:
      return byte < 0x20 ? 'u' : '\0';
  }
}

}  // namespace

void AppendJsonEscaped(std::string_view text, std::string* out) {
  constexpr char kHex[] = "0123456789abcdef";
  size_t run_begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const char letter = EscapeLetter(byte);
    if (letter == '\0') continue;
    out->append(text.substr(run_begin, i - run_begin));
    run_begin = i + 1;
    *out += '\\';
    *out += letter;
    if (letter == 'u') {
      *out += "00";
      *out += kHex[byte >> 4];
      *out += kHex[byte & 15];
    }
  }
  out->append(text.substr(run_begin));
}

}  // namespace deepinfer
