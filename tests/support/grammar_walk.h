// Random outputs under a grammar: legal tokens at random, and after a number of them tokens that
// lead to the end.
// Thread rule: values and pure functions.
#pragma once

#include <bit>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar.h"
#include "text/special_tokens.h"
#include "text/tokenizer.h"

namespace deepinfer::testing {

struct GrammarWalkLimits {
  int num_free_tokens = 60;  // after them closing tokens are preferred
  int max_tokens = 4000;
};

struct GrammarWalk {
  std::vector<int32_t> tokens;  // the stop token is not one of them
  std::string text;
  bool ended = false;
  std::string error;
};

inline std::vector<int32_t> LegalTokens(std::span<const uint32_t> mask) {
  std::vector<int32_t> ids;
  for (size_t word = 0; word < mask.size(); ++word) {
    for (uint32_t bits = mask[word]; bits != 0; bits &= bits - 1) {
      ids.push_back(static_cast<int32_t>(word * 32) + std::countr_zero(bits));
    }
  }
  return ids;
}

// Ends a string, an object, an array or a tag (which goes on with the marker behind `</`), or leads
// on in an address.
inline bool IsClosing(std::string_view bytes) {
  return bytes == "\"" || bytes == "}" || bytes == "]" || bytes == "</" || bytes == "\"]" ||
         bytes == "\"}" || bytes == ">" || bytes == "@" || bytes == ".";
}

inline GrammarWalk WalkGrammar(GrammarMatcher* matcher, const Tokenizer& tokenizer, int32_t stop_id,
                               std::mt19937* random, const GrammarWalkLimits& limits = {}) {
  GrammarWalk walk;
  std::vector<uint32_t> mask(GrammarMaskWords(tokenizer.vocab_size()));
  const auto pick = [&](const std::vector<int32_t>& ids) { return ids[(*random)() % ids.size()]; };
  while (static_cast<int>(walk.tokens.size()) < limits.max_tokens) {
    if (auto filled = matcher->FillMask(mask); !filled.ok()) {
      walk.error = filled.status().ToString();
      return walk;
    }
    const std::vector<int32_t> legal = LegalTokens(mask);
    if (legal.empty()) {
      walk.error = "no legal token";
      return walk;
    }
    std::vector<int32_t> closing, short_ones;
    bool may_stop = false;
    int32_t marker = -1, quote = -1;
    for (const int32_t id : legal) {
      const std::string_view bytes = tokenizer.TokenBytes(id);
      if (id == stop_id) may_stop = true;
      if (bytes == kDsmlString) marker = id;
      if (bytes == "\"") quote = id;
      if (IsClosing(bytes)) closing.push_back(id);
      if (id != stop_id && bytes.size() <= 2) short_ones.push_back(id);
    }
    const bool closes = static_cast<int>(walk.tokens.size()) >= limits.num_free_tokens;
    // One of four ways; towards the end no free choice among all tokens, but one of the other
    // three.
    const auto way = closes ? (*random)() % 3 : (*random)() % 4;
    int32_t next = pick(legal);
    if (may_stop && (closes || way == 0)) {
      next = stop_id;
    } else if (closes && marker >= 0) {
      next = marker;
    } else if (way == 0 && quote >= 0) {
      next = quote;
    } else if (way <= 1 && !closing.empty()) {
      next = pick(closing);
    } else if (way <= 2 && !short_ones.empty()) {
      next = pick(short_ones);
    }
    if (Status accepted = matcher->Accept(next); !accepted.ok()) {
      walk.error = "a legal token was refused: " + accepted.ToString();
      return walk;
    }
    if (next == stop_id) {
      walk.ended = true;
      return walk;
    }
    walk.tokens.push_back(next);
    walk.text += tokenizer.TokenBytes(next);
  }
  walk.error = "did not end";
  return walk;
}

}  // namespace deepinfer::testing
