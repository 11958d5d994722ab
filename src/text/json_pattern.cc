#include "text/json_pattern.h"

#include <algorithm>
#include <vector>

#include "base/utf8.h"
#include "text/regex_escape.h"

namespace deepinfer {

namespace {

// What no JSON string holds as it is, as members of a negated class. The compiler takes any number
// of digits behind \x, so none may follow.
constexpr std::string_view kEscapedMembers = R"(\x00-\x1f"\\)";
// \s without control characters.
constexpr std::string_view kSpaceMembers =
    R"( \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff)";
// The compiler's automaton for JSON strings drops every path through an escape. It takes ASCII
// only: this matches nothing and keeps the pattern away from it.
constexpr std::string_view kPlainGrammarMark = "(?:ä){0}";

bool NeedsEscape(char32_t c) { return c < 0x20 || c == '"' || c == '\\'; }

std::string Literal(char32_t c) {
  std::string out;
  if (c < 0x80 &&
      std::string_view("^$.*+?()[]{}|/-\\").find(static_cast<char>(c)) != std::string_view::npos) {
    out += '\\';
  }
  AppendUtf8(c, &out);
  return out;
}

// An expression for the escape of one character in a JSON string.
std::string EscapeOf(char32_t c) {
  switch (c) {
    case '"':
      return R"(\\")";
    case '\\':
      return R"(\\\\)";
    case '\n':
      return R"(\\n)";
    case '\r':
      return R"(\\r)";
    case '\t':
      return R"(\\t)";
    case '\f':
      return R"(\\f)";
    case '\b':
      return R"(\\b)";
    default: {
      constexpr char kHex[] = "0123456789abcdef";
      return std::string(R"(\\u00)") + kHex[c >> 4] + kHex[c & 15];
    }
  }
}

struct Range {
  char32_t first = 0;
  char32_t last = 0;
};

// One pass over a pattern.
class Rewriter {
 public:
  explicit Rewriter(std::string_view pattern) : text_(pattern) {}

  std::optional<JsonPattern> Run() {
    while (pos_ < text_.size()) {
      if (!Item()) return std::nullopt;
    }
    // Behind the anchor, which the compiler knows at the front only.
    if (has_escapes_) out_.insert(out_.starts_with('^') ? 1 : 0, kPlainGrammarMark);
    return JsonPattern{std::move(out_), has_escapes_};
  }

 private:
  // What a class or an escape stands for.
  struct Members {
    std::vector<Range> ranges;
    std::string shorthands;  // \d and \w
    std::string negated;     // letters of \D, \W and \S
    bool spaces = false;
  };

  bool Item() {
    const char c = text_[pos_];
    if (c == '[') return Class();
    if (c == '\\') return Escape();
    if (c == '.') {
      ++pos_;
      out_ += "[^" + std::string(kEscapedMembers) + ']';
      return true;
    }
    const Utf8Char next = DecodeUtf8(text_, pos_);
    if (NeedsEscape(next.code_point)) {
      AppendEscapes({next.code_point});
    } else {
      out_ += text_.substr(pos_, next.size_bytes);
    }
    pos_ += next.size_bytes;
    return next.status == Utf8Status::kValid;
  }

  void AppendEscapes(const std::vector<char32_t>& characters) {
    has_escapes_ = true;
    out_ += "(?:";
    for (size_t i = 0; i < characters.size(); ++i) {
      if (i > 0) out_ += '|';
      out_ += EscapeOf(characters[i]);
    }
    out_ += ')';
  }

  bool Escape() {
    if (pos_ + 1 >= text_.size()) return false;
    Members members;
    if (!ReadMember(&members)) return false;
    if (members.ranges.empty()) {
      if (IsPlain(members)) {
        out_ += members.shorthands;
        return true;
      }
      return AppendClass(members);
    }
    const char32_t character = members.ranges.front().first;
    if (NeedsEscape(character)) {
      AppendEscapes({character});
    } else {
      out_ += Literal(character);
    }
    return true;
  }

  bool Class() {
    const size_t start = pos_;
    ++pos_;
    const bool negated = pos_ < text_.size() && text_[pos_] == '^';
    if (negated) ++pos_;
    const size_t body = pos_;
    Members members;
    while (pos_ < text_.size() && text_[pos_] != ']') {
      if (!ReadRange(&members)) return false;
    }
    if (pos_ == text_.size() || pos_ == body) return false;
    ++pos_;
    if (negated) {
      AppendNegatedClass(members);
      return true;
    }
    if (IsPlain(members)) {
      out_ += text_.substr(start, pos_ - start);
      return true;
    }
    return AppendClass(members);
  }

  static bool IsPlain(const Members& members) {
    if (members.spaces || !members.negated.empty()) return false;
    for (const Range& range : members.ranges) {
      if (range.first < 0x20 || (range.first <= '"' && range.last >= '"') ||
          (range.first <= '\\' && range.last >= '\\')) {
        return false;
      }
    }
    return true;
  }

  bool ReadRange(Members* members) {
    const size_t num_ranges = members->ranges.size();
    if (!ReadMember(members)) return false;
    const bool is_character = members->ranges.size() > num_ranges;
    if (!is_character || pos_ + 1 >= text_.size() || text_[pos_] != '-' || text_[pos_ + 1] == ']') {
      return true;
    }
    ++pos_;
    Members last;
    if (!ReadMember(&last) || last.ranges.size() != 1) return false;
    members->ranges.back().last = last.ranges.front().last;
    return members->ranges.back().first <= members->ranges.back().last;
  }

  // One character, as it is or escaped, or a shorthand such as \d.
  bool ReadMember(Members* members) {
    if (text_[pos_] != '\\') {
      const Utf8Char next = DecodeUtf8(text_, pos_);
      pos_ += next.size_bytes;
      members->ranges.push_back({next.code_point, next.code_point});
      return next.status == Utf8Status::kValid;
    }
    if (pos_ + 1 >= text_.size()) return false;
    const char c = text_[pos_ + 1];
    switch (c) {
      case 'd':
      case 'w':
        members->shorthands += text_.substr(pos_, 2);
        break;
      case 's':
        members->spaces = true;
        break;
      case 'D':
      case 'W':
      case 'S':
        members->negated += c;
        break;
      default: {
        const std::optional<char32_t> character = EscapedCharacter();
        if (character) members->ranges.push_back({*character, *character});
        return character.has_value();
      }
    }
    pos_ += 2;
    return true;
  }

  // At a backslash. Where classes take them: \b is a character, and \0 where no digit follows.
  std::optional<char32_t> EscapedCharacter() {
    ++pos_;
    const char c = text_[pos_];
    const bool before_digit =
        pos_ + 1 < text_.size() && text_[pos_ + 1] >= '0' && text_[pos_ + 1] <= '9';
    if (c != 'b' && (c != '0' || before_digit)) return ReadCharacterEscape(text_, &pos_);
    ++pos_;
    return c == 'b' ? '\b' : '\0';
  }

  void AppendNegatedClass(const Members& members) {
    out_ += "[^" + std::string(kEscapedMembers) + members.shorthands;
    if (members.spaces) out_ += kSpaceMembers;
    for (const char letter : members.negated) out_ += std::string(1, '\\') + letter;
    for (const Range& range : members.ranges) {
      // The escaped members are there already.
      if (range.last < 0x20 || (range.first == range.last && NeedsEscape(range.first))) continue;
      const char32_t first = std::max<char32_t>(range.first, 0x20);
      out_ += Literal(first);
      if (first != range.last) out_ += '-' + Literal(range.last);
    }
    out_ += ']';
  }

  // Alternatives: what stands as it is, escapes, and bodies of negated classes.
  bool AppendClass(const Members& members) {
    std::vector<std::string> parts;
    const std::string plain = PlainMembers(members);
    // A class that begins with a caret is negated, however the caret is spelt.
    if (!plain.empty()) parts.push_back(plain == R"(\^)" ? plain : '[' + plain + ']');
    for (const Range& range : members.ranges) {
      // Escapes of a whole range would be most of the grammar.
      if (range.first != range.last || !NeedsEscape(range.first)) continue;
      parts.push_back(EscapeOf(range.first));
      has_escapes_ = true;
    }
    for (const char letter : members.negated) {
      const std::string_view body = letter == 'D'   ? R"(\d)"
                                    : letter == 'W' ? R"(\w)"
                                                    : kSpaceMembers;
      parts.push_back("[^" + std::string(kEscapedMembers) + std::string(body) + ']');
    }
    if (parts.empty()) return false;
    out_ += "(?:";
    for (size_t i = 0; i < parts.size(); ++i) {
      if (i > 0) out_ += '|';
      out_ += parts[i];
    }
    out_ += ')';
    return true;
  }

  static std::string PlainMembers(const Members& members) {
    std::string out = members.shorthands;
    if (members.spaces) out += kSpaceMembers;
    bool has_caret = false;
    const auto append = [&](char32_t first, char32_t last) {
      if (first > last) return;
      if (first == '^') {
        has_caret = true;
        if (++first > last) return;
      }
      out += Literal(first);
      if (first != last) out += '-' + Literal(last);
    };
    for (const Range& range : members.ranges) {
      char32_t first = std::max<char32_t>(range.first, 0x20);
      for (const char32_t gap : {U'"', U'\\'}) {
        if (gap < first || gap > range.last) continue;
        append(first, gap - 1);
        first = gap + 1;
      }
      append(first, range.last);
    }
    if (has_caret) out += R"(\^)";
    return out;
  }

  std::string_view text_;
  size_t pos_ = 0;
  bool has_escapes_ = false;
  std::string out_;
};

// Behind '('.
bool IsKnownGroup(std::string_view rest) {
  if (!rest.starts_with('?')) return true;
  rest.remove_prefix(1);
  if (rest.starts_with(':') || rest.starts_with('=') || rest.starts_with('!')) return true;
  return rest.starts_with('<') && !rest.starts_with("<=") && !rest.starts_with("<!");
}

// The number of characters of a counted quantifier such as {2,5}; 0 if it is none.
size_t QuantifierSize(std::string_view text) {
  const size_t close = text.find('}');
  if (close == std::string_view::npos || close < 2) return 0;
  const std::string_view body = text.substr(1, close - 1);
  const bool counts = body.find_first_not_of("0123456789,") == std::string_view::npos;
  return counts && body.front() != ',' && std::count(body.begin(), body.end(), ',') <= 1 ? close + 1
                                                                                         : 0;
}

}  // namespace

bool IsKnownToCompiler(std::string_view pattern) {
  bool in_class = false;
  for (size_t pos = 0; pos < pattern.size();) {
    const char c = pattern[pos];
    size_t size = 1;
    if (c == '\\' && pos + 1 < pattern.size()) {
      const char escaped = pattern[pos + 1];
      if (std::string_view("pP").find(escaped) != std::string_view::npos) return false;
      if (!in_class && ((escaped >= '1' && escaped <= '9') ||
                        std::string_view("kbBAzZG").find(escaped) != std::string_view::npos)) {
        return false;
      }
      size = 2;
    } else if (in_class) {
      in_class = c != ']';
    } else if (c == '[') {
      in_class = true;
    } else if (c == '(') {
      if (!IsKnownGroup(pattern.substr(pos + 1))) return false;
    } else if (c == '{' || c == '*' || c == '+' || c == '?') {
      if (c == '{') size = QuantifierSize(pattern.substr(pos));
      if (size == 0) return false;
      const bool begins_group = c == '?' && pos > 0 && pattern[pos - 1] == '(';
      if (!begins_group && pattern.substr(pos + size).starts_with('+')) return false;
    }
    pos += size;
  }
  return true;
}

std::optional<JsonPattern> PatternInsideJsonString(std::string_view pattern) {
  return Rewriter(pattern).Run();
}

}  // namespace deepinfer
