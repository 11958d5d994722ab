#include "server/custom_input.h"

#include <algorithm>
#include <utility>

namespace deepinfer {
namespace {

// As the output parser writes it.
constexpr std::string_view kOpening = "{\"input\": \"";
constexpr size_t kUnicodeEscapeSize = 6;  // \u001f

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

char SimpleEscape(char c) {
  switch (c) {
    case 'n':
      return '\n';
    case 'r':
      return '\r';
    case 't':
      return '\t';
    case 'b':
      return '\b';
    case 'f':
      return '\f';
    default:
      return c;  // the quote and the backslash stand for themselves
  }
}

}  // namespace

std::string CustomInput::Push(std::string_view piece) {
  switch (state_) {
    case State::kRaw:
      return std::string(piece);
    case State::kDone:
      return {};
    case State::kText:
      return Unescape(piece);
    case State::kOpening:
      break;
  }
  held_ += piece;
  const size_t compared = std::min(held_.size(), kOpening.size());
  if (held_.compare(0, compared, kOpening, 0, compared) != 0) {
    state_ = State::kRaw;
    return std::exchange(held_, {});
  }
  if (compared < kOpening.size()) return {};
  state_ = State::kText;
  const std::string rest = std::exchange(held_, {}).substr(kOpening.size());
  return Unescape(rest);
}

std::string CustomInput::Finish() {
  return state_ == State::kOpening ? std::exchange(held_, {}) : std::string();
}

// Controls below 0x20 are the only ones written by number.
std::string CustomInput::Unescape(std::string_view piece) {
  const std::string text = std::exchange(held_, {}).append(piece);
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') {
      state_ = State::kDone;
      return out;
    }
    if (text[i] != '\\') {
      out += text[i];
      continue;
    }
    const bool is_number = i + 1 < text.size() && text[i + 1] == 'u';
    const size_t size = is_number ? kUnicodeEscapeSize : 2;
    if (i + size > text.size()) {
      held_ = text.substr(i);
      return out;
    }
    if (is_number) {
      out += static_cast<char>(HexValue(text[i + 4]) * 16 + HexValue(text[i + 5]));
    } else {
      out += SimpleEscape(text[i + 1]);
    }
    i += size - 1;
  }
  return out;
}

}  // namespace deepinfer
