#include "text/grammar_pool.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <string>
#include <utility>

#include "base/clock.h"
#include "text/grammar_library.h"
#include "text/grammar_limits.h"

namespace deepinfer {

namespace {

static_assert(GrammarPoolOptions{}.max_source_bytes == kMaxGrammarSourceBytes);

using CompileResult = Result<std::shared_ptr<const CompiledGrammar>>;

// Between the isolated process and the pool: the status code, then its message or the grammar
// text and what it leaves out, each part ended by a zero byte. No part holds one.
std::string PackReply(const Result<GrammarText>& text) {
  std::string reply(1, static_cast<char>(text.status().code()));
  if (!text.ok()) return reply + text.status().message();
  reply += text->ebnf;
  for (const std::string& part : text->unenforced) {
    reply += '\0';
    reply += part;
  }
  return reply;
}

Result<GrammarText> UnpackReply(std::string_view reply) {
  if (reply.empty()) return Internal("a grammar compilation answered nothing");
  const auto code = static_cast<StatusCode>(reply.front());
  reply.remove_prefix(1);
  if (code != StatusCode::kOk) return Status(code, std::string(reply));
  GrammarText text;
  size_t end = std::min(reply.find('\0'), reply.size());
  text.ebnf = reply.substr(0, end);
  while (end < reply.size()) {
    reply.remove_prefix(end + 1);
    end = std::min(reply.find('\0'), reply.size());
    text.unenforced.emplace_back(reply.substr(0, end));
  }
  return text;
}

// Runs in the isolated process. The compilation here is a trial: its result stays behind, because
// handing it over would cost more than to compile again what is known to stay within the limits.
Result<GrammarText> TryCompile(const GrammarLibrary& library, std::string_view request,
                               int64_t max_grammar_bytes) {
  DI_ASSIGN_OR_RETURN(const GrammarSource source, ParseGrammarSource(request));
  DI_ASSIGN_OR_RETURN(GrammarText text, library.Translate(source));
  DI_ASSIGN_OR_RETURN(const auto grammar, library.Compile(text));
  if (grammar->size_bytes() > max_grammar_bytes) {
    return ResourceExhausted("the compiled grammar takes " +
                             std::to_string(grammar->size_bytes() >> 20) + " MiB");
  }
  DI_RETURN_IF_ERROR(GrammarLibrary::TryMasks(grammar));
  return text;
}

}  // namespace

bool GrammarTicket::ready() const {
  const std::lock_guard lock(mutex_);
  return result_.has_value();
}

bool GrammarTicket::WaitFor(int64_t timeout_us) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::microseconds(timeout_us),
                           [this] { return result_.has_value(); });
}

void GrammarTicket::WhenReady(std::function<void()> callback) const {
  {
    const std::lock_guard lock(mutex_);
    if (!result_) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  callback();
}

const CompileResult& GrammarTicket::result() const {
  const std::lock_guard lock(mutex_);
  return *result_;
}

GrammarPool::GrammarPool(const Tokenizer& tokenizer, std::unique_ptr<const GrammarLibrary> library,
                         const GrammarPoolOptions& options)
    : tokenizer_(tokenizer), library_(std::move(library)), options_(options) {}

Result<std::unique_ptr<GrammarPool>> GrammarPool::Create(const Tokenizer& tokenizer,
                                                         const GrammarPoolOptions& options) {
  DI_ASSIGN_OR_RETURN(auto library, GrammarLibrary::Create(tokenizer));
  std::unique_ptr<GrammarPool> pool(new GrammarPool(tokenizer, std::move(library), options));
  DI_RETURN_IF_ERROR(pool->StartThreads());
  return pool;
}

Status GrammarPool::StartThreads() {
  IsolationLimits limits;
  limits.time_us = options_.timeout_us;
  limits.memory_bytes = options_.max_work_bytes;
  const auto handler = [library = library_.get(),
                        max_bytes = options_.max_grammar_bytes](std::string_view request) {
    return PackReply(TryCompile(*library, request, max_bytes));
  };
  // All processes before the first thread: each is a copy of this one.
  for (int i = 0; i < std::max(1, options_.num_threads); ++i) {
    DI_ASSIGN_OR_RETURN(auto runner, IsolatedRunner::Start(handler, limits));
    runners_.push_back(std::move(runner));
  }
  for (const auto& runner : runners_) {
    threads_.emplace_back([this, runner = runner.get()] { ThreadLoop(runner); });
  }
  return OkStatus();
}

GrammarPool::~GrammarPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  for (const Waiting& waiting : waiting_) {
    if (const auto ticket = waiting.ticket.lock()) {
      Finish(ticket.get(), Cancelled("the server is shutting down"));
    }
  }
}

void GrammarPool::Finish(GrammarTicket* ticket, CompileResult result) {
  std::vector<std::function<void()>> callbacks;
  {
    const std::lock_guard lock(ticket->mutex_);
    ticket->result_ = std::move(result);
    callbacks.swap(ticket->callbacks_);
  }
  ticket->changed_.notify_all();
  for (const auto& callback : callbacks) callback();
}

std::shared_ptr<const GrammarTicket> GrammarPool::Compile(const GrammarSource& source) {
  if (source.text.size() + source.answer_schema.size() > options_.max_source_bytes) {
    auto refused = std::make_shared<GrammarTicket>();
    Finish(refused.get(), InvalidRequest("the grammar is larger than " +
                                         std::to_string(options_.max_source_bytes >> 10) + " KiB"));
    return refused;
  }
  const Sha256Digest key = DigestOf(source);
  const std::lock_guard lock(mutex_);
  if (const auto open = open_tickets_.find(key); open != open_tickets_.end()) {
    if (auto ticket = open->second.lock()) return ticket;
  }
  auto ticket = std::make_shared<GrammarTicket>();
  if (const auto cached = cache_index_.find(key); cached != cache_index_.end()) {
    cache_.splice(cache_.begin(), cache_, cached->second);
    ++stats_.num_cache_hits;
    Finish(ticket.get(), cached->second->grammar);
    return ticket;
  }
  if (waiting_.size() >= options_.max_waiting) {
    Finish(ticket.get(), Unavailable("too many grammars are waiting to be compiled"));
    return ticket;
  }
  open_tickets_[key] = ticket;
  waiting_.push_back({key, source, ticket});
  wake_.notify_one();
  return ticket;
}

std::optional<GrammarPool::Waiting> GrammarPool::NextWaiting() {
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
  if (stopping_) return std::nullopt;
  Waiting next = std::move(waiting_.front());
  waiting_.pop_front();
  return next;
}

void GrammarPool::ThreadLoop(IsolatedRunner* runner) {
  while (auto next = NextWaiting()) {
    const auto ticket = next->ticket.lock();
    CompileResult result = Cancelled("nobody waits for the grammar");
    const int64_t start_us = SteadyClock().NowUs();
    if (ticket != nullptr) result = CompileOne(next->source, runner);
    {
      const std::lock_guard lock(mutex_);
      stats_.compile_us += SteadyClock().NowUs() - start_us;
      if (ticket != nullptr) ++(result.ok() ? stats_.num_compiled : stats_.num_failed);
      if (result.ok()) Keep(next->key, *result);
      // A later call may have replaced a ticket that was dropped.
      const auto open = open_tickets_.find(next->key);
      if (open != open_tickets_.end() &&
          (open->second.expired() || open->second.lock() == ticket)) {
        open_tickets_.erase(open);
      }
    }
    if (ticket != nullptr) Finish(ticket.get(), std::move(result));
  }
}

CompileResult GrammarPool::CompileOne(const GrammarSource& source, IsolatedRunner* runner) const {
  const auto reply = runner->Run(SerializeGrammarSource(source));
  if (!reply.ok()) return reply.status().Annotate("the grammar");
  DI_ASSIGN_OR_RETURN(GrammarText text, UnpackReply(*reply));
  try {
    return library_->Compile(std::move(text));
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("no memory for the grammar");
  }
}

void GrammarPool::Keep(const Sha256Digest& key, std::shared_ptr<const CompiledGrammar> grammar) {
  if (cache_index_.contains(key)) return;
  stats_.cached_bytes += grammar->size_bytes();
  cache_.push_front({key, std::move(grammar)});
  cache_index_[key] = cache_.begin();
  while (stats_.cached_bytes > options_.cache_bytes && !cache_.empty()) {
    stats_.cached_bytes -= cache_.back().grammar->size_bytes();
    cache_index_.erase(cache_.back().key);
    cache_.pop_back();
    ++stats_.num_evicted;
  }
}

GrammarPoolStats GrammarPool::stats() const {
  const std::lock_guard lock(mutex_);
  GrammarPoolStats stats = stats_;
  stats.num_waiting = static_cast<int64_t>(waiting_.size());
  return stats;
}

}  // namespace deepinfer
