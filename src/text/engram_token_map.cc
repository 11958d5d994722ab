#include "text/engram_token_map.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/utf8.h"
#include "text/code_point_class.h"
#include "text/tokenizer.h"

namespace deepinfer {
namespace {

struct FreeDeleter {
  void operator()(utf8proc_uint8_t* p) const { std::free(p); }
};

Result<std::string> MapUtf8(std::string_view text, unsigned options) {
  utf8proc_uint8_t* raw = nullptr;
  const utf8proc_ssize_t size_bytes = utf8proc_map(
      reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
      static_cast<utf8proc_ssize_t>(text.size()), &raw, static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, FreeDeleter> owner(raw);
  if (size_bytes < 0) {
    return Internal(fmt::format("Unicode normalisation: {}", utf8proc_errmsg(size_bytes)));
  }
  return std::string(reinterpret_cast<const char*>(raw), static_cast<size_t>(size_bytes));
}

bool IsRunSpace(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

// Without combining marks, in lower case, each run of [space, tab, CR, LF] as one space.
//
// Lower case goes code point by code point, without context: a final capital sigma gives the
// ordinary small one. The one unconditional mapping to several code points, U+0130, cannot occur
// in decomposed text.
std::string FoldDecomposed(std::string_view text) {
  const CodePointTable& table = CodePointTable::Get();
  std::string folded;
  bool in_run = false;
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = DecodeUtf8(text, i);
    const bool run_space = IsRunSpace(text[i]);
    i += c.size_bytes;
    if (table.Lookup(c.code_point) == CodePointClass::kMark) continue;
    if (run_space) {
      if (!in_run) folded += ' ';
    } else {
      const utf8proc_int32_t lower = utf8proc_tolower(static_cast<utf8proc_int32_t>(c.code_point));
      AppendUtf8(static_cast<char32_t>(lower), &folded);
    }
    in_run = run_space;
  }
  return folded;
}

std::string_view StripWhiteSpace(std::string_view text) {
  const CodePointTable& table = CodePointTable::Get();
  const auto is_space = [&](char32_t c) {
    const CodePointClass kind = table.Lookup(c);
    return kind == CodePointClass::kSpace || kind == CodePointClass::kNewline;
  };
  while (!text.empty()) {
    const Utf8Char first = DecodeUtf8(text, 0);
    if (!is_space(first.code_point)) break;
    text.remove_prefix(first.size_bytes);
  }
  while (!text.empty()) {
    size_t last = text.size() - 1;
    while ((static_cast<unsigned char>(text[last]) & 0xC0) == 0x80) --last;
    if (!is_space(DecodeUtf8(text, last).code_point)) break;
    text = text.substr(0, last);
  }
  return text;
}

// N of model.md §10.1. Precondition: valid UTF-8.
Result<std::string> NormalizeForEngram(std::string_view text) {
  DI_ASSIGN_OR_RETURN(const std::string composed,
                      MapUtf8(text, UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT));
  DI_ASSIGN_OR_RETURN(const std::string decomposed,
                      MapUtf8(composed, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE));
  const std::string folded = FoldDecomposed(decomposed);
  if (folded == " ") return folded;
  return std::string(StripWhiteSpace(folded));
}

}  // namespace

Result<std::vector<int32_t>> BuildEngramTokenMap(const Tokenizer& tokenizer) {
  std::vector<int32_t> map(static_cast<size_t>(tokenizer.vocab_size()));
  std::unordered_map<std::string, int32_t> classes;
  for (size_t i = 0; i < map.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    const std::string text = tokenizer.Decode({&id, 1});
    std::string key;
    if (text.find(kReplacementUtf8) != std::string::npos) {
      key = tokenizer.TokenString(id);
    } else {
      DI_ASSIGN_OR_RETURN(key, NormalizeForEngram(text));
      if (key.empty()) key = text;
    }
    map[i] = classes.emplace(std::move(key), static_cast<int32_t>(classes.size())).first->second;
  }
  return map;
}

}  // namespace deepinfer
