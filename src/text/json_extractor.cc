#include "text/json_extractor.h"

namespace deepinfer {
namespace {

constexpr int kFenceTicks = 3;

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// Characters of a language name behind the ticks, and blanks behind it.
bool ContinuesLanguage(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '+' || c == '-' || c == ' ' || c == '\t' || c == '\r';
}

}  // namespace

size_t JsonExtractor::SkipToJson(std::string_view text, bool* dropped) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '{' || text[i] == '[') {
      state_ = opening_ == Opening::kOpen ? State::kFenced : State::kPlain;
      if (state_ == State::kPlain && opening_ != Opening::kNone) *dropped = true;
      return i;
    }
    StepOpening(text[i], dropped);
  }
  return text.size();
}

void JsonExtractor::StepOpening(char c, bool* dropped) {
  if (c == '`' && (opening_ == Opening::kNone || opening_ == Opening::kTicks)) {
    num_ticks_ = opening_ == Opening::kNone ? 1 : num_ticks_ + 1;
    opening_ = Opening::kTicks;
    return;
  }
  const bool has_ticks = opening_ == Opening::kTicks && num_ticks_ >= kFenceTicks;
  if (has_ticks || opening_ == Opening::kLanguage) {
    if (c == '\n') {
      opening_ = Opening::kOpen;
      return;
    }
    if (ContinuesLanguage(c)) {
      opening_ = Opening::kLanguage;
      return;
    }
  }
  if (opening_ == Opening::kOpen && IsSpace(c)) return;
  *dropped = true;
  opening_ = Opening::kNone;
}

}  // namespace deepinfer
