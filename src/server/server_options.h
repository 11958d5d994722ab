// Settings of the HTTP side, filled by cli/ (api.md §18).
// Thread rule: values.
#pragma once

#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "economics/cost_book.h"
#include "economics/price_book.h"
#include "sched/request_class.h"
#include "server/cache_controls.h"
#include "server/chat_request.h"
#include "server/chat_response.h"
#include "server/http.h"
#include "server/metrics_compat.h"
#include "server/trace_exporter.h"

namespace deepinfer {

enum class LogRequests : unsigned char {
  kOff,
  kMeta,  // one line without text
  kFull,  // another with the bodies of requests and what was generated
};

// How an answer to `response_format: json_object` becomes JSON (encoding.md §17).
enum class JsonMode : unsigned char {
  kGrammar,  // nothing else can be generated
  kExtract,  // the model is free, text around the JSON is dropped
};

struct CorsOptions {
  std::vector<std::string> allowed_origins;  // empty: no CORS; "*": any
  std::string allowed_methods = "GET, POST, OPTIONS";
  std::string allowed_headers = "Authorization, Content-Type, x-api-key";
  bool allow_credentials = false;
};

struct ServerOptions {
  HttpServerOptions http;
  bool listens = true;  // false: requests come through Server::handler alone

  std::string api_key_file;
  std::vector<std::string> api_keys;
  bool allow_unauthenticated = false;  // other addresses than loopback without keys
  CorsOptions cors;

  // Not empty; the first is the default model.
  std::vector<std::string> served_model_names{"deepseek-flash", "DeepSeek-V4.1-Flash"};
  std::map<std::string, std::string> model_aliases;  // alias -> served name

  // vocab_size, resolve_model, served_models and test_hooks are set by the server.
  ChatRequestOptions chat;
  int32_t max_completions_logprobs = 1000;
  bool raw_prompt_specials = true;
  CacheControlOptions cache;
  JsonMode json_mode = JsonMode::kGrammar;
  bool exact_replay = true;
  std::vector<int32_t> global_ban;  // ids no request may sample
  StreamUsageStyle usage_style = StreamUsageStyle::kOpenAi;
  ReasoningField reasoning_field = ReasoningField::kReasoningContent;
  bool usage_extension = true;
  bool per_request_metrics = false;    // `metrics` without the usage extension too
  bool hosted_status_codes = false;    // 422 for refused values, as DeepSeek's service
  bool whitespace_keep_alive = false;  // empty lines while a whole answer is made

  std::chrono::milliseconds request_timeout{3'600'000};
  std::chrono::milliseconds queue_timeout{600'000};
  // Of a class: what waits longer may come again later (429). 0: queue_timeout alone.
  std::array<std::chrono::milliseconds, kRequestClasses.size()> class_max_wait{};

  // Whether its class ends the wait of a request, not queue_timeout.
  bool WaitsByClass(RequestClass c) const {
    const auto wait = class_max_wait[static_cast<size_t>(c)];
    return wait.count() > 0 && wait < queue_timeout;
  }
  std::chrono::milliseconds MaxWait(RequestClass c) const {
    return WaitsByClass(c) ? class_max_wait[static_cast<size_t>(c)] : queue_timeout;
  }

  std::chrono::milliseconds sse_ping_interval{45'000};  // negative: off
  // A wait for its turn of which a stream tells, where the dialect has a word for it.
  std::chrono::milliseconds queue_notice_delay{10'000};

  int prepare_threads = 2;   // parse, render and tokenise generation requests
  int tokenize_threads = 1;  // the same for routes that only count or convert
  int stream_threads = 2;    // detokenise, parse and frame answers
  size_t max_prepare_queue = 4096;

  MetricsCompat metrics_compat = MetricsCompat::kVllm;
  LogRequests log_requests = LogRequests::kMeta;
  std::chrono::milliseconds throughput_log_interval{5'000};  // 0: off

  TraceOptions traces;

  std::string ledger_folder;                    // "": no ledger
  std::string run_id;                           // label of ledger lines
  std::shared_ptr<const PriceBook> price_book;  // null: nothing is priced
  std::shared_ptr<const CostBook> cost_book;    // null: nothing is costed

  bool web_pages = true;  // chat page and dashboard

  bool balance_endpoint = false;   // GET /user/balance
  bool debug_endpoints = false;    // routes that show the inside, for admins
  bool enable_test_hooks = false;  // effective only in builds with DEEPINFER_TEST_HOOKS

  std::string build_commit;
  std::string config_hash;  // hex, of the effective configuration
};

}  // namespace deepinfer
