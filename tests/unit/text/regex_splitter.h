// Pre-tokenises with a regex library: the oracle for the hand-written scanner.
// Thread rule: one thread. Owner: the test.
#pragma once

#define PCRE2_CODE_UNIT_WIDTH 8
#include <gtest/gtest.h>
#include <pcre2.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer::testing {

class Regex {
 public:
  explicit Regex(std::string_view pattern) {
    int error = 0;
    PCRE2_SIZE error_offset = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                              PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK, &error, &error_offset,
                              nullptr));
    if (code_ == nullptr) {
      ADD_FAILURE() << "pattern error " << error << " at " << error_offset;
      std::abort();
    }
    pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);
    match_.reset(pcre2_match_data_create_from_pattern(code_.get(), nullptr));
  }

  // First match at or after `from`; `group` gets the number of the last group that took part.
  bool Find(std::string_view text, size_t from, size_t* begin, size_t* end, int* group = nullptr) {
    const int count = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()),
                                  text.size(), from, PCRE2_NO_UTF_CHECK, match_.get(), nullptr);
    if (count <= 0) return false;
    const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(match_.get());
    *begin = offsets[0];
    *end = offsets[1];
    if (group != nullptr) *group = count - 1;
    return true;
  }

 private:
  struct FreeCode {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  };
  struct FreeMatch {
    void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
  };
  std::unique_ptr<pcre2_code, FreeCode> code_;
  std::unique_ptr<pcre2_match_data, FreeMatch> match_;
};

// The patterns of tokenizer.json mean the White_Space property by \s; this library adds U+180E.
inline std::string WithExplicitWhiteSpace(std::string pattern) {
  const std::string members =
      "\\t-\\r \\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}"
      "\\x{3000}";
  const auto replace_all = [&](const std::string& from, const std::string& to) {
    for (size_t at = pattern.find(from); at != std::string::npos;
         at = pattern.find(from, at + to.size())) {
      pattern.replace(at, from.size(), to);
    }
  };
  replace_all("[^\\s", "[^" + members);
  replace_all("\\s", "[" + members + "]");
  replace_all("\\S", "[^" + members + "]");
  return pattern;
}

// Passes of "Split, isolated": matches and the gaps between them are the pieces of the next pass.
class RegexSplitter {
 public:
  explicit RegexSplitter(const std::vector<std::string_view>& patterns) {
    for (const std::string_view pattern : patterns) {
      passes_.emplace_back(WithExplicitWhiteSpace(std::string(pattern)));
    }
  }

  std::vector<std::string> Split(std::string_view text) {
    std::vector<std::string> pieces;
    if (!text.empty()) pieces.emplace_back(text);
    for (Regex& pass : passes_) {
      std::vector<std::string> next;
      for (const std::string& piece : pieces) SplitPiece(&pass, piece, &next);
      pieces = std::move(next);
    }
    return pieces;
  }

 private:
  static void SplitPiece(Regex* pass, std::string_view piece, std::vector<std::string>* out) {
    size_t from = 0;
    size_t begin = 0;
    size_t end = 0;
    while (pass->Find(piece, from, &begin, &end)) {
      if (begin > from) out->emplace_back(piece.substr(from, begin - from));
      out->emplace_back(piece.substr(begin, end - begin));
      from = end;
    }
    if (from < piece.size()) out->emplace_back(piece.substr(from));
  }

  std::vector<Regex> passes_;
};

}  // namespace deepinfer::testing
