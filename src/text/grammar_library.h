// The grammar library behind our types: the vocabulary it matches against, translation of sources
// into its grammar text, and positions inside a grammar. grammar_library.cc is the only file that
// knows the library.
// Thread rule: const methods from any thread; a cursor belongs to one thread at a time.
// Owner: GrammarPool and GrammarMatcher.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "text/grammar.h"
#include "text/grammar_source.h"

namespace deepinfer {

class Tokenizer;

// A source in the library's own notation.
struct GrammarText {
  std::string ebnf;
  std::vector<std::string> unenforced;
};

class GrammarLibrary {
 public:
  // Errors: not_found for a tokenizer without the tokens of the prompt format.
  static Result<std::unique_ptr<const GrammarLibrary>> Create(const Tokenizer& tokenizer);
  ~GrammarLibrary();

  // May take any time and memory, and overflow the stack: call it in an isolated process.
  // Error: invalid_request with the reason of the compiler.
  Result<GrammarText> Translate(const GrammarSource& source) const;

  // As Translate, for a text that Translate made.
  Result<std::shared_ptr<const CompiledGrammar>> Compile(GrammarText text) const;

  // Computes the masks of a short output: grammars whose masks take seconds do not come back from
  // the isolated process in time.
  static Status TryMasks(std::shared_ptr<const CompiledGrammar> grammar);

 private:
  struct Impl;
  explicit GrammarLibrary(std::unique_ptr<const Impl> impl);

  std::unique_ptr<const Impl> impl_;
};

// A position inside a grammar, without trigger and free text.
class GrammarCursor {
 public:
  GrammarCursor(std::shared_ptr<const CompiledGrammar> grammar, std::vector<int32_t> stop_ids);
  ~GrammarCursor();
  GrammarCursor(GrammarCursor&&) noexcept;

  GrammarCursor Clone() const;
  Status FillMask(std::span<uint32_t> mask);
  Status Accept(int32_t token_id);
  Status Rollback(int64_t num_tokens);
  bool IsTerminated() const;
  bool IsComplete() const;
  // Whether only one byte can come next.
  Result<bool> ForcesByte();

 private:
  struct Impl;
  explicit GrammarCursor(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer
