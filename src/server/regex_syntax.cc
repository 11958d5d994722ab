#include "server/regex_syntax.h"

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/utf8.h"
#include "text/regex_escape.h"

namespace deepinfer {
namespace {

bool IsLetter(char32_t c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool IsDigit(char32_t c) { return c >= '0' && c <= '9'; }

// One pass over the pattern; open groups are kept on a stack of their own, so nesting costs no
// call depth.
class Scanner {
 public:
  explicit Scanner(std::string_view pattern) : text_(pattern) {}

  bool Run() {
    while (pos_ < text_.size()) {
      if (!Item()) return false;
    }
    return open_groups_.empty() && highest_backreference_ <= num_captures_;
  }

 private:
  bool Item() {
    const char c = text_[pos_];
    switch (c) {
      case '(':
        return OpenGroup();
      case ')':
        return CloseGroup();
      case '|':
        ++pos_;
        can_repeat_ = false;
        return true;
      case '*':
      case '+':
      case '?':
        ++pos_;
        return Quantify();
      case '{':
        return CountedRepetition() && Quantify();
      case '[':
        can_repeat_ = true;
        return Class();
      case '\\': {
        can_repeat_ = true;
        std::optional<char32_t> ignored;
        return ReadEscape(false, &ignored);
      }
      default:
        can_repeat_ = true;
        NextCodePoint();
        return true;
    }
  }

  // Behind a quantifier: its lazy or possessive mark.
  bool Quantify() {
    if (!can_repeat_) return false;
    if (pos_ < text_.size() && (text_[pos_] == '?' || text_[pos_] == '+')) {
      ++pos_;
      can_repeat_ = false;
    } else {
      // "a{2}{3}" is fine, "a**" is not.
      can_repeat_ = pos_ < text_.size() && text_[pos_] == '{';
    }
    return true;
  }

  std::optional<uint32_t> Count(std::string_view* body) {
    while (!body->empty() && body->front() == ' ') body->remove_prefix(1);
    uint32_t count = 0;
    const auto [end, error] = std::from_chars(body->data(), body->data() + body->size(), count);
    if (error != std::errc()) return std::nullopt;
    body->remove_prefix(static_cast<size_t>(end - body->data()));
    while (!body->empty() && body->front() == ' ') body->remove_prefix(1);
    return count;
  }

  bool CountedRepetition() {
    const size_t close = text_.find('}', pos_);
    if (close == std::string_view::npos) return false;
    std::string_view body = text_.substr(pos_ + 1, close - pos_ - 1);
    pos_ = close + 1;
    const auto low = Count(&body);
    if (!low) return false;
    if (body.empty()) return true;
    if (body.front() != ',') return false;
    body.remove_prefix(1);
    if (body.empty()) return true;
    const auto high = Count(&body);
    return high && body.empty() && *low <= *high;
  }

  bool OpenGroup() {
    ++pos_;
    bool is_look_around = false;
    if (!Take("?")) {
      ++num_captures_;
    } else if (Take("=") || Take("!") || Take("<=") || Take("<!")) {
      is_look_around = true;
    } else if (Take("P<") || Take("<")) {
      if (!GroupName()) return false;
      ++num_captures_;
    } else if (!Take(":") && !Take(">")) {
      return Flags();
    }
    open_groups_.push_back(is_look_around);
    can_repeat_ = false;
    return true;
  }

  bool CloseGroup() {
    if (open_groups_.empty()) return false;
    ++pos_;
    can_repeat_ = !open_groups_.back();
    open_groups_.pop_back();
    return true;
  }

  bool GroupName() {
    const size_t close = text_.find('>', pos_);
    if (close == std::string_view::npos) return false;
    const std::string_view name = text_.substr(pos_, close - pos_);
    pos_ = close + 1;
    if (name.empty()) return false;
    for (size_t i = 0; i < name.size(); ++i) {
      const auto c = static_cast<unsigned char>(name[i]);
      const bool starts_name = IsLetter(c) || c == '_' || c >= 0x80;
      if (!starts_name && (i == 0 || (!IsDigit(c) && c != '.'))) return false;
    }
    return names_.insert(std::string(name)).second;
  }

  // (?i) sets flags for the rest, (?i:...) for a group.
  bool Flags() {
    constexpr std::string_view kFlags = "imsxuUR-";
    const size_t start = pos_;
    while (pos_ < text_.size() && kFlags.find(text_[pos_]) != std::string_view::npos) ++pos_;
    if (pos_ == start) return false;
    if (Take(")")) {
      can_repeat_ = false;
      return true;
    }
    if (!Take(":")) return false;
    open_groups_.push_back(false);
    can_repeat_ = false;
    return true;
  }

  // A bracket expression, with nested ones and [:alpha:].
  bool Class() {
    ++pos_;
    int depth = 1;
    bool at_start = true;
    Take("^");
    while (pos_ < text_.size()) {
      const char c = text_[pos_];
      if (c == ']' && !at_start) {
        ++pos_;
        if (--depth == 0) return true;
        continue;
      }
      if (c == '[') {
        ++pos_;
        ++depth;
        at_start = true;
        Take("^");
        continue;
      }
      at_start = false;
      if (!ClassRange()) return false;
    }
    return false;
  }

  bool ClassRange() {
    std::optional<char32_t> first;
    if (!ClassItem(&first)) return false;
    if (pos_ + 1 >= text_.size() || text_[pos_] != '-' || text_[pos_ + 1] == ']' ||
        text_[pos_ + 1] == '[' || text_[pos_ + 1] == '-') {
      return true;
    }
    ++pos_;
    std::optional<char32_t> last;
    if (!ClassItem(&last) || !first || !last) return false;
    return *first <= *last;
  }

  bool ClassItem(std::optional<char32_t>* character) {
    if (text_[pos_] == '\\') return ReadEscape(true, character);
    *character = NextCodePoint();
    return true;
  }

  char32_t NextCodePoint() {
    const Utf8Char c = DecodeUtf8(text_, pos_);
    pos_ += c.size_bytes;
    return c.code_point;
  }

  // No character: a class such as \d, or an assertion.
  bool ReadEscape(bool in_class, std::optional<char32_t>* character) {
    ++pos_;
    if (pos_ >= text_.size()) return false;
    const char c = text_[pos_];
    if (std::string_view("dDwWsSpP").find(c) != std::string_view::npos) {
      ++pos_;
      return (c != 'p' && c != 'P') || Property();
    }
    if (std::string_view("AzbB").find(c) != std::string_view::npos) {
      ++pos_;
      return !in_class;
    }
    if (IsDigit(static_cast<unsigned char>(c))) return !in_class && Backreference();
    *character = ReadCharacterEscape(text_, &pos_);
    return character->has_value();
  }

  bool Backreference() {
    constexpr size_t kMaxGroups = 100000;
    size_t number = 0;
    if (text_[pos_] == '0') return false;
    while (pos_ < text_.size() && IsDigit(static_cast<unsigned char>(text_[pos_]))) {
      number = number * 10 + static_cast<size_t>(text_[pos_++] - '0');
      if (number > kMaxGroups) return false;
    }
    if (number > highest_backreference_) highest_backreference_ = number;
    return true;
  }

  // \p{Name}, \p{Name=Value} or \pL. Names are letters; which of them exist is left to the
  // compiler of the grammar.
  bool Property() {
    if (pos_ < text_.size() && text_[pos_] != '{') {
      return IsLetter(static_cast<unsigned char>(text_[pos_++]));
    }
    const size_t close = text_.find('}', pos_);
    if (close == std::string_view::npos) return false;
    const std::string_view name = text_.substr(pos_ + 1, close - pos_ - 1);
    pos_ = close + 1;
    if (name.empty()) return false;
    for (char c : name) {
      const auto byte = static_cast<unsigned char>(c);
      if (!IsLetter(byte) && !IsDigit(byte) && c != '_' && c != '=' && c != ' ') return false;
    }
    return true;
  }

  bool Take(std::string_view prefix) {
    if (!text_.substr(pos_).starts_with(prefix)) return false;
    pos_ += prefix.size();
    return true;
  }

  std::string_view text_;
  size_t pos_ = 0;
  bool can_repeat_ = false;
  std::vector<bool> open_groups_;  // true: look-around
  std::unordered_set<std::string> names_;
  size_t num_captures_ = 0;
  size_t highest_backreference_ = 0;
};

}  // namespace

bool IsRegexSyntax(std::string_view pattern) { return Scanner(pattern).Run(); }

}  // namespace deepinfer
