// Compiles grammars off the step thread, under limits, and keeps the results (structured_outputs.md
// §4). Thread rule: any thread may ask; the pool owns its compile threads, each with a process of
// its own for the work that outside input can make expensive (base/isolated_runner.h). Owner:
// whoever owns the tokenizer, which outlives the pool.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/isolated_runner.h"
#include "base/result.h"
#include "base/sha256.h"
#include "text/grammar.h"
#include "text/grammar_source.h"
#include "text/grammar_stats.h"

namespace deepinfer {

class GrammarLibrary;
class Tokenizer;

struct GrammarPoolOptions {
  int num_threads = 2;
  int64_t cache_bytes = int64_t{1} << 30;
  int64_t timeout_us = 2'000'000;                 // of one compilation
  int64_t max_grammar_bytes = int64_t{64} << 20;  // of one compiled grammar
  int64_t max_work_bytes = int64_t{512} << 20;    // memory while compiling
  size_t max_source_bytes = 4 << 20;
  size_t max_waiting = 1024;  // compilations not yet begun
};

// One asked-for grammar. Ready once; the result never changes after that.
class GrammarTicket {
 public:
  bool ready() const;
  // Blocks until ready or `timeout_us` passed; tells whether it is ready.
  bool WaitFor(int64_t timeout_us) const;
  // Calls back once it is ready, at once if it is; on the thread that compiled it, and it must not
  // block.
  void WhenReady(std::function<void()> callback) const;
  // Precondition: ready().
  const Result<std::shared_ptr<const CompiledGrammar>>& result() const;

 private:
  friend class GrammarPool;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable std::vector<std::function<void()>> callbacks_;
  std::optional<Result<std::shared_ptr<const CompiledGrammar>>> result_;
};

class GrammarPool {
 public:
  // Call it early: the helper processes are copies of this one. Errors: unavailable if the system
  // refuses a process; not_found for a tokenizer without the tokens of the prompt format.
  static Result<std::unique_ptr<GrammarPool>> Create(const Tokenizer& tokenizer,
                                                     const GrammarPoolOptions& options);
  ~GrammarPool();
  GrammarPool(const GrammarPool&) = delete;
  GrammarPool& operator=(const GrammarPool&) = delete;

  // Never blocks. Compilations begin in the order of the calls; equal sources share one. A ticket
  // nobody holds any more is skipped. Errors of the result: invalid_request with the reason of the
  // compiler; deadline and resource_exhausted for the limits; unavailable when the pool is full.
  std::shared_ptr<const GrammarTicket> Compile(const GrammarSource& source);

  GrammarPoolStats stats() const;

  // Of the vocabulary that its grammars are for.
  const Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  struct Waiting {
    Sha256Digest key;
    GrammarSource source;
    std::weak_ptr<GrammarTicket> ticket;
  };
  struct Cached {
    Sha256Digest key;
    std::shared_ptr<const CompiledGrammar> grammar;
  };

  GrammarPool(const Tokenizer& tokenizer, std::unique_ptr<const GrammarLibrary> library,
              const GrammarPoolOptions& options);

  Status StartThreads();
  void ThreadLoop(IsolatedRunner* runner);
  std::optional<Waiting> NextWaiting();
  Result<std::shared_ptr<const CompiledGrammar>> CompileOne(const GrammarSource& source,
                                                            IsolatedRunner* runner) const;
  void Keep(const Sha256Digest& key, std::shared_ptr<const CompiledGrammar> grammar);
  static void Finish(GrammarTicket* ticket, Result<std::shared_ptr<const CompiledGrammar>> result);

  const Tokenizer& tokenizer_;
  const std::unique_ptr<const GrammarLibrary> library_;
  const GrammarPoolOptions options_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::deque<Waiting> waiting_;
  std::map<Sha256Digest, std::weak_ptr<GrammarTicket>> open_tickets_;  // waiting or compiling
  std::list<Cached> cache_;                                            // most recently used first
  std::map<Sha256Digest, std::list<Cached>::iterator> cache_index_;
  GrammarPoolStats stats_;

  std::vector<std::unique_ptr<IsolatedRunner>> runners_;
  std::vector<std::thread> threads_;
};

}  // namespace deepinfer
