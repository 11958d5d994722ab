// Compiles grammars for the tests of src/text/, with one pool per vocabulary and process.
// Thread rule: tests run on one thread.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/grammar_walk.h"
#include "text/grammar_pool.h"
#include "text/special_tokens.h"
#include "text/tokenizer.h"
#include "unit/text/text_test_data.h"

namespace deepinfer::testing {

// A limit that a busy machine and sanitizers do not reach.
inline constexpr int64_t kPatientTimeoutUs = 60'000'000;

inline std::unique_ptr<GrammarPool> MakePool(const Tokenizer& tokenizer,
                                             GrammarPoolOptions options = {
                                                 .timeout_us = kPatientTimeoutUs}) {
  auto pool = GrammarPool::Create(tokenizer, options);
  EXPECT_TRUE(pool.ok()) << pool.status().ToString();
  if (!pool.ok()) std::abort();
  return *std::move(pool);
}

inline Result<std::shared_ptr<const CompiledGrammar>> CompileWith(GrammarPool* pool,
                                                                  const GrammarSource& source) {
  const auto ticket = pool->Compile(source);
  if (!ticket->WaitFor(10 * kPatientTimeoutUs)) return DeadlineExceeded("the ticket never came");
  return ticket->result();
}

inline GrammarPool& DemoPool() {
  static const std::unique_ptr<GrammarPool> pool = MakePool(DemoTokenizer());
  return *pool;
}

inline GrammarPool& ReleasedPool() {
  static const std::unique_ptr<GrammarPool> pool = MakePool(ReleasedTokenizer());
  return *pool;
}

inline int32_t EosOf(const Tokenizer& tokenizer) { return SpecialTokens::Resolve(tokenizer)->eos; }

// A matcher over the demo vocabulary. A grammar that does not compile ends the process.
inline GrammarMatcher DemoMatcher(const GrammarSource& source, GrammarTrigger trigger = {}) {
  auto grammar = CompileWith(&DemoPool(), source);
  EXPECT_TRUE(grammar.ok()) << grammar.status().ToString();
  if (!grammar.ok()) std::abort();
  return GrammarMatcher(*grammar, DemoTokenizer(), {EosOf(DemoTokenizer())}, std::move(trigger));
}

inline std::vector<uint32_t> MaskOf(GrammarMatcher* matcher, const Tokenizer& tokenizer) {
  std::vector<uint32_t> mask(GrammarMaskWords(tokenizer.vocab_size()));
  const auto filled = matcher->FillMask(mask);
  EXPECT_TRUE(filled.ok()) << filled.status().ToString();
  return mask;
}

inline bool IsLegal(const std::vector<uint32_t>& mask, int32_t id) {
  return (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
}

// Whether the whole text, spelt with the tokenizer's own tokens, is an output of the grammar. Added
// tokens are single tokens.
inline bool Matches(GrammarMatcher matcher, const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> ids;
  tokenizer.EncodeWithSpecials(text, &ids);
  return matcher.AcceptAll(ids).ok() && matcher.Accept(EosOf(tokenizer)).ok();
}

inline bool DemoMatches(const GrammarSource& source, std::string_view text) {
  return Matches(DemoMatcher(source), DemoTokenizer(), text);
}

}  // namespace deepinfer::testing
