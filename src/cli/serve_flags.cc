#include "cli/serve_flags.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "base/sha256.h"
#include "cli/build_info.h"
#include "cli/value_checks.h"
#include "server/cache_controls.h"

namespace deepinfer {

namespace {

constexpr double kLeastTimeoutS = 0.001;
constexpr double kMostSeconds = 1e9;

// A duration in seconds; range checks of the library let NaN pass.
CLI::Validator Seconds(double least) {
  const auto check = [least](const std::string& text) -> std::string {
    double value = 0;
    if (CLI::detail::lexical_cast(text, value) && value >= least && value <= kMostSeconds)
      return {};
    return fmt::format("{} is not a number of seconds from {} to {}", text, least, kMostSeconds);
  };
  return CLI::Validator(check, fmt::format("SECONDS >= {}", least));
}

std::chrono::milliseconds Milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(std::llround(seconds * 1000)));
}

// One flag with a fixed list of words.
void Choice(CLI::App* command, const std::string& names, std::string* value,
            std::vector<std::string> words, const std::string& help) {
  command->add_option(names, *value, help)
      ->check(CLI::IsMember(std::move(words)))
      ->capture_default_str();
}

}  // namespace

void ServeFlags::Register(CLI::App* command) {
  model.Register(command, false, kServingNumerics);
  command->add_option("--config", config_file_, "TOML file with any of these flags as keys");
  RegisterListen(command);
  RegisterEngine(command);
  RegisterApi(command);
  kv.Register(command, "");
  RegisterGrammars(command);
  RegisterAccess(command);
  RegisterOperations(command);
  RegisterLedger(command);
  RegisterAccount(command);
  RegisterLogs(command);
  compatibility_.Register(command);
}

void ServeFlags::RegisterWorker(CLI::App* command) {
  model.Register(command, false, kServingNumerics);
  command->add_option("--config", config_file_, "TOML file with any of these flags as keys");
  RegisterEngine(command);
  RegisterGrammars(command);
  kv.Register(command, "none");
  RegisterLedger(command);
  RegisterLogs(command);
}

void ServeFlags::RegisterListen(CLI::App* c) {
  HttpServerOptions& h = server.http;
  c->add_option("--host", h.host, "Address to listen on")->capture_default_str();
  c->add_option("--port", h.port, "TCP port; 0 = chosen by the system")
      ->check(WholeNumber(0, UINT16_MAX))
      ->capture_default_str();
  c->add_option("--uds", h.uds_path, "Also listen on this Unix socket");
  c->add_option("--ssl-certfile", h.tls.certificate_file,
                "PEM certificate with its chain: the TCP port speaks TLS");
  c->add_option("--ssl-keyfile", h.tls.key_file, "PEM key of --ssl-certfile, not encrypted");
  c->add_option("--ssl-ca-certs", h.tls.authority_file,
                "PEM authorities: clients must show a certificate that one of them signed");
  c->add_option("--ssl-ciphers", h.tls.ciphers, "Ciphers of TLS 1.2 in OpenSSL's notation");
  c->add_flag("--enable-ssl-refresh", ssl_refresh_, "Read the files again when they change");
  c->add_option("--max-connections", h.max_connections, "Open connections; more get 503")
      ->check(WholeNumber(1, INT32_MAX))
      ->capture_default_str();
  c->add_option("--max-body", h.max_body_bytes, "Largest request body, bytes")
      ->capture_default_str();
  c->add_option("--threads-http", h.num_threads, "Network threads")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  c->add_option("--served-model-name", served_names_,
                "Names clients may ask for; the first is the default");
  c->add_option("--model-revision", model_revision,
                "Revision of the model in /version and ledger; default: that of a folder "
                "snapshots/REVISION");
  c->add_option("--model-alias,-a,--alias", aliases_, "Further name as alias=served; may repeat");
}

void ServeFlags::RegisterEngine(CLI::App* c) {
  c->add_option("--max-model-len,-c,--ctx-size,--context-length", engine.max_model_len,
                "Context: prompt plus generated tokens; clipped to the model")
      ->check(CLI::Range(2, 1 << 24))
      ->capture_default_str();
  c->add_option("--max-num-batched-tokens,--chunked-prefill-size", engine.max_num_batched_tokens,
                "Prompt rows per step")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  c->add_option("--max-num-seqs,--parallel,--max-running-requests", engine.max_num_seqs,
                "Requests that run at a time")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  c->add_option("--kv-cache-tokens", engine.kv_cache_tokens,
                "Tokens of the cache pool; 0 = from memory and --max-num-seqs")
      ->check(WholeNumber(0, INT64_MAX))
      ->capture_default_str();
  c->add_option("--kv-memory", kv_memory_bytes, "The same in bytes")
      ->check(WholeNumber(0, INT64_MAX))
      ->capture_default_str();
  Choice(c, "--prefix-cache", &prefix_cache_, {"on", "off"},
         "Share the cache of prompts that begin alike");
  Choice(c, "--replay", &replay_, {"bounded", "exact"},
         "After a cache hit without window state: run one window again, or enough for equal bits");
  c->add_option("--max-replay-gen", engine.max_replay_gen,
                "Bounded replays behind the blocks of a hit at most; 65535 = no limit")
      ->check(CLI::Range(0, int{kAnyReplayGen}))
      ->capture_default_str();
  c->add_option("--kv-min-load-wait-ms", min_load_wait_ms_,
                "A load from disk may take this long even where computing saves less")
      ->check(CLI::Range(int64_t{0}, int64_t{3'600'000}))
      ->capture_default_str();
  c->add_option("--cache-min-ttl-cap", cache_min_ttl_cap_,
                "Longest minimum lifetime that requests may ask for, as 90m, 24h or 7d");
  c->add_option("--cache-max-ttl-cap", cache_max_ttl_cap_,
                "Longest lifetime of what requests leave in the persistent cache");
  Choice(c, "--async-scheduling", &async_scheduling_, {"on", "off"},
         "Plan a step while the one before computes; off is for debugging");
  scheduling.Register(c, &engine);
  speculation.Register(c);
  c->add_option("--perf-curve-dir", perf_curve_dir,
                "Folder that keeps learned step times between starts; none by default");
  Choice(c, "--decoder-tail", &decoder_tail_, {"compact", "full"},
         "compact: the decoder layers run the last prompt rows only; full: every row");
}

void ServeFlags::RegisterApi(CLI::App* c) {
  Choice(c, "--default-thinking", &default_thinking_, {"on", "off"},
         "Thinking mode of requests that do not say");
  c->add_option("--default-effort,--reasoning-effort", default_effort_,
                "Effort of requests that do not say: low, high, max or 1..100")
      ->capture_default_str();
  c->add_option("--default-max-tokens", default_max_tokens_,
                "Output limit of requests that do not say; 0 = by mode")
      ->check(WholeNumber(0, INT32_MAX))
      ->capture_default_str();
  c->add_option("--max-output", server.chat.max_tokens_limit_plain, "Largest max_tokens")
      ->check(WholeNumber(1, INT32_MAX))
      ->capture_default_str();
  c->add_option("--max-top-logprobs", server.chat.max_top_logprobs, "Largest top_logprobs")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  c->add_option("--max-logprobs", server.max_completions_logprobs,
                "Largest logprobs of /v1/completions")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  Choice(c, "--sampling-policy", &sampling_policy_, {"honour", "deepseek"},
         "deepseek: the hosted overrides of temperature and top_p");
  Choice(c, "--sampling-mode", &sampling_mode_, {"auto", "strict", "rejection"},
         "How tokens are drawn at temperature > 0; auto = strict with a seed");
  Choice(c, "--logprobs-mode", &logprobs_mode_, {"raw", "processed"},
         "Log-probabilities of the model's logits, or after bans, penalties and filters");
  c->add_option("--global-ban", server.global_ban, "Token ids that are never sampled")
      ->check(WholeNumber(0, INT32_MAX));
  Choice(c, "--stream-usage-style", &usage_style_, {"openai", "deepseek"},
         "Usage in an extra last chunk, or on the finish chunk");
  Choice(c, "--reasoning-field", &reasoning_field_, {"reasoning_content", "reasoning", "both"},
         "Name of the reasoning text in answers");
  Choice(c, "--usage-extension", &usage_extension_, {"on", "off"},
         "Exact token account under usage.deepinfer");
  c->add_flag("--per-request-metrics", server.per_request_metrics,
              "Timings in whole answers without --usage-extension too");
  c->add_flag("--forced-tools-in-thinking", server.chat.forced_tools_in_thinking,
              "Allow tool_choice required and named in thinking mode");
  c->add_flag("--strict-fields", server.chat.strict_fields, "Unknown request fields are errors");
  c->add_flag("--strict-reasoning-passback", strict_reasoning_passback_,
              "Refuse a history turn with calls whose reasoning was left out");
  c->add_flag("--allow-zero-max-tokens", server.chat.allow_zero_max_tokens,
              "max_tokens 0 computes and keeps the prompt, on every route");
  c->add_flag("--drop-server-tools", server.chat.drop_server_tools,
              "Messages: leave out tools the service would run instead of refusing them");
  c->add_flag("--reject-server-tools", server.chat.reject_server_tools,
              "Responses: refuse tools the service would run instead of leaving them out");
  c->add_flag("--deepseek-status-codes", server.hosted_status_codes,
              "422 in place of 400 for values that are refused");
  c->add_flag("--nonstream-whitespace-keepalive", server.whitespace_keep_alive,
              "Answers that are not streamed begin at once, with an empty line every "
              "--sse-ping-interval; errors behind that have status 200");
  Choice(c, "--anthropic-any", &anthropic_any_, {"force", "auto"},
         "Messages: tool_choice any forces a call, or means auto");
  Choice(c, "--anthropic-prefill", &anthropic_prefill_, {"on", "off"},
         "Messages: continue a final assistant message");
  Choice(c, "--json-mode", &json_mode_, {"grammar", "extract"},
         "json_object: a grammar allows nothing else, or what stands around the JSON is dropped");
  Choice(c, "--exact-replay", &exact_replay_, {"on", "off"},
         "Render turns with tool calls as they were sampled when clients send them back");
  Choice(c, "--raw-prompt-specials", &raw_prompt_specials_, {"on", "off"},
         "Raw prompts recognise special-token strings");
}

void ServeFlags::RegisterGrammars(CLI::App* c) {
  c->add_option("--grammar-threads", grammars.num_threads, "Threads that compile grammars")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  c->add_option("--grammar-timeout", grammar_timeout_s_, "Seconds that one compilation may take")
      ->check(Seconds(kLeastTimeoutS))
      ->capture_default_str();
  c->add_option("--grammar-max-mb", grammar_max_mb_, "Largest compiled grammar, MiB")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  c->add_option("--grammar-cache-mb", grammar_cache_mb_, "Compiled grammars that are kept, MiB")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  Choice(c, "--jump-forward", &jump_forward_, {"on", "off"},
         "Append tokens that a grammar leaves no choice about without sampling them");
}

void ServeFlags::RegisterAccess(CLI::App* c) {
  c->add_option("--api-key-file", server.api_key_file, "File with API keys");
  c->add_option("--api-key", server.api_keys,
                "API key; visible in the process list, prefer the file");
  c->add_flag("--allow-unauthenticated", server.allow_unauthenticated,
              "Listen beyond loopback without keys");
  c->add_option("--allowed-origins", server.cors.allowed_origins, "CORS origins; none by default");
  c->add_option("--allowed-methods", server.cors.allowed_methods, "CORS methods")
      ->capture_default_str();
  c->add_option("--allowed-headers", server.cors.allowed_headers, "CORS headers")
      ->capture_default_str();
  c->add_flag("--allow-credentials", server.cors.allow_credentials, "CORS credentials");
}

void ServeFlags::RegisterLogs(CLI::App* c) {
  c->add_option("--drain-timeout", drain_timeout_s,
                "Seconds that running requests get after SIGTERM")
      ->check(Seconds(0))
      ->capture_default_str();
  Choice(c, "--log-format", &log_format_, {"text", "json"}, "Form of log lines");
  Choice(c, "--log-level", &log_level_, {"debug", "info", "warning", "error", "off"},
         "Least severe level that is logged");
}

void ServeFlags::RegisterLedger(CLI::App* c) {
  c->add_option("--ledger", server.ledger_folder,
                "Folder for one line per request, and for the time of devices that belongs to "
                "none; none by default");
  c->add_option("--cost-book", cost_book_,
                "Prices of device time, wear, traffic and operation: a file; none by default");
  c->add_option("--cost-device", cost_device_, "Device of the cost book, where it has several");
  c->add_option("--run-id", server.run_id, "Label of the lines of this run");
}

void ServeFlags::RegisterAccount(CLI::App* c) {
  c->add_option("--price-book", price_book_,
                "Prices of tokens: id of a shipped book, a file, or none")
      ->capture_default_str();
  Choice(c, "--web-pages", &web_pages_, {"auto", "on", "off"},
         "Chat page and dashboard; auto: where only this machine can reach the server");
  c->add_option("--otlp-traces-endpoint", server.traces.endpoint,
                "Collector for traces of requests, as http://host:4318/v1/traces");
  c->add_option("--trace-file", server.traces.file,
                "File for traces of requests in place of a collector, one export a line");
}

void ServeFlags::RegisterOperations(CLI::App* c) {
  c->add_option("--timeout", timeout_s_, "Longest wait and run of a request, seconds")
      ->check(Seconds(kLeastTimeoutS))
      ->capture_default_str();
  c->add_option("--queue-timeout", queue_timeout_s_, "Longest wait of a request, seconds")
      ->check(Seconds(kLeastTimeoutS))
      ->capture_default_str();
  c->add_option("--class-max-wait", class_max_wait_s_,
                "Longest wait of interactive, agent and batch requests, seconds, as 5,30,300: what "
                "waits longer gets 429; 0 = --queue-timeout alone")
      ->delimiter(',')
      ->expected(static_cast<int>(kRequestClasses.size()))
      ->check(Seconds(0))
      ->capture_default_str();
  c->add_option("--sse-ping-interval", ping_interval_s_,
                "Seconds of silence before a keep-alive comment; -1 = never")
      ->check(Seconds(-1))
      ->capture_default_str();
  c->add_option("--max-queued-requests", engine.max_queued_requests,
                "Waiting requests; more get 429")
      ->check(WholeNumber(1, INT32_MAX))
      ->capture_default_str();
  c->add_option("--ttft-slo", ttft_slo_s_,
                "Seconds to the first token that are promised: a request that would miss them gets "
                "429, unless it is of the batch class; 0 = none")
      ->check(Seconds(0))
      ->capture_default_str();
  c->add_option("--tpot-slo-ms", tpot_slo_ms_,
                "The same for the time per output token, milliseconds; 0 = none")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  c->add_option("--tenant-budget", tenant_budget_,
                "Compute seconds a second that the requests of one API key may use, as predicted: "
                "what is beyond waits, or gets 429 where that takes too long; 0 = no limit")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  c->add_option("--tenant-burst", tenant_burst_s_,
                "Compute seconds that a key without recent requests may use at once")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  Choice(c, "--metrics-compat", &metrics_compat_, {"vllm", "none"},
         "Also export the series under these names");
  c->add_option("--log-interval", log_interval_s_,
                "Seconds between throughput lines of a working server; 0 = none")
      ->check(Seconds(0))
      ->capture_default_str();
  Choice(c, "--log-requests", &log_requests_, {"off", "meta", "full"},
         "One log line per request; full: also the texts of prompts and answers");
  c->add_flag("--balance", server.balance_endpoint,
              "Serve /user/balance: what is left of a key's budget");
  c->add_flag("--debug-endpoints", server.debug_endpoints,
              "Serve /debug/prefix and /profile; needs an admin's key where keys are set");
#ifdef DEEPINFER_TEST_HOOKS
  c->add_flag("--enable-test-hooks", server.enable_test_hooks,
              "Read the test_* body fields; loopback only");
#endif
}

LogLevel ServeFlags::log_level() const {
  if (log_level_ == "debug") return LogLevel::kDebug;
  if (log_level_ == "warning") return LogLevel::kWarning;
  if (log_level_ == "error") return LogLevel::kError;
  return log_level_ == "off" ? LogLevel::kOff : LogLevel::kInfo;
}

LogFormat ServeFlags::log_format() const {
  return log_format_ == "json" ? LogFormat::kJson : LogFormat::kText;
}

namespace {

Result<int32_t> ParseEffort(const std::string& text) {
  if (text == "low") return kEffortLow;
  if (text == "high") return kEffortHigh;
  if (text == "max") return kEffortMax;
  int32_t n = 0;
  for (char c : text) n = c >= '0' && c <= '9' && n < 1000 ? n * 10 + (c - '0') : 1000;
  if (text.empty() || n < 1 || n > 100) {
    return InvalidRequest("--default-effort must be low, high, max or 1..100");
  }
  return n;
}

Result<int64_t> ParseTtlCap(const char* which, const std::string& text) {
  if (text.empty()) return kNoTtlCap;
  const std::optional<int64_t> seconds = ParseCacheLifetimeSeconds(text);
  if (seconds) return *seconds;
  return InvalidRequest(
      fmt::format("--cache-{}-ttl-cap {}: expected {}", which, text, kCacheLifetimeGrammar));
}

}  // namespace

Status ServeFlags::Finish(const std::filesystem::path& model_dir) {
  if (kv_memory_bytes > 0 && engine.kv_cache_tokens > 0) {
    return InvalidRequest("--kv-memory and --kv-cache-tokens exclude each other");
  }
  ServerOptions& s = server;
  s.served_model_names = served_names_;
  if (std::find(served_names_.begin(), served_names_.end(), "") != served_names_.end()) {
    return InvalidRequest("--served-model-name: a name must not be empty");
  }
  if (s.served_model_names.empty()) {
    s.served_model_names = {"deepseek-flash", "DeepSeek-V4.1-Flash"};
    const std::string folder = FolderName(model_dir);
    if (std::find(served_names_.begin(), served_names_.end(), folder) == served_names_.end()) {
      s.served_model_names.insert(s.served_model_names.begin(), folder);
    }
  }
  for (const std::string& alias : aliases_) {
    const size_t split = alias.find('=');
    const std::string target = split == std::string::npos ? "" : alias.substr(split + 1);
    const auto& names = s.served_model_names;
    if (std::find(names.begin(), names.end(), target) == names.end()) {
      return InvalidRequest("--model-alias " + alias +
                            " must have the form alias=served, with a served model name");
    }
    s.model_aliases[alias.substr(0, split)] = target;
  }
  engine.decoder_tail = decoder_tail_ == "full" ? DecoderTail::kFull : DecoderTail::kCompact;
  engine.prefix_cache = prefix_cache_ == "on";
  engine.min_load_wait_us = min_load_wait_ms_ * 1000;
  scheduling.Apply(&engine);
  engine.replay = replay_ == "exact" ? ReplayMode::kExact : ReplayMode::kBounded;
  engine.async_scheduling = async_scheduling_ == "on";
  s.cache.default_class = kv.default_class();
  s.cache.ttl_hours = kv.ttl_hours();
  DI_ASSIGN_OR_RETURN(s.cache.min_ttl_cap_s, ParseTtlCap("min", cache_min_ttl_cap_));
  DI_ASSIGN_OR_RETURN(s.cache.max_ttl_cap_s, ParseTtlCap("max", cache_max_ttl_cap_));
  engine.jump_forward = jump_forward_ == "on";
  grammars.timeout_us = std::llround(grammar_timeout_s_ * 1e6);
  grammars.max_grammar_bytes = grammar_max_mb_ << 20;
  grammars.cache_bytes = grammar_cache_mb_ << 20;
  s.chat.default_thinking = default_thinking_ == "on";
  DI_RETURN_IF_ERROR(compatibility_.Apply(&speculation, &s));
  DI_ASSIGN_OR_RETURN(engine.speculation, speculation.Options());
  DI_ASSIGN_OR_RETURN(s.chat.default_effort, ParseEffort(default_effort_));
  if (default_max_tokens_ > 0) s.chat.default_max_tokens = default_max_tokens_;
  s.chat.max_tokens_limit_thinking = s.chat.max_tokens_limit_plain;
  s.chat.sampling_policy =
      sampling_policy_ == "deepseek" ? SamplingPolicy::kDeepSeek : SamplingPolicy::kHonour;
  if (strict_reasoning_passback_) s.chat.reasoning_passback = ReasoningPassback::kReject;
  server.chat.messages_any_forces = anthropic_any_ == "force";
  server.chat.messages_prefill = anthropic_prefill_ == "on";
  s.chat.default_sampling_mode = sampling_mode_ == "strict"      ? SamplingMode::kStrict
                                 : sampling_mode_ == "rejection" ? SamplingMode::kRejection
                                                                 : SamplingMode::kAuto;
  s.chat.default_logprobs_kind =
      logprobs_mode_ == "processed" ? LogprobsKind::kProcessed : LogprobsKind::kRaw;
  s.usage_style =
      usage_style_ == "deepseek" ? StreamUsageStyle::kDeepSeek : StreamUsageStyle::kOpenAi;
  s.reasoning_field = reasoning_field_ == "both"        ? ReasoningField::kBoth
                      : reasoning_field_ == "reasoning" ? ReasoningField::kReasoning
                                                        : ReasoningField::kReasoningContent;
  s.usage_extension = usage_extension_ == "on";
  // The switch that instrumentation of all languages shares.
  const char* const opt_in = std::getenv("OTEL_SEMCONV_STABILITY_OPT_IN");
  s.traces.newer_names =
      opt_in != nullptr &&
      std::string_view(opt_in).find("gen_ai_latest_experimental") != std::string_view::npos;
  constexpr std::chrono::seconds kTlsRefreshInterval{1};
  if (ssl_refresh_) s.http.tls.refresh_interval = kTlsRefreshInterval;
  s.json_mode = json_mode_ == "extract" ? JsonMode::kExtract : JsonMode::kGrammar;
  s.exact_replay = exact_replay_ == "on";
  s.raw_prompt_specials = raw_prompt_specials_ == "on";
  s.metrics_compat = metrics_compat_ == "vllm" ? MetricsCompat::kVllm : MetricsCompat::kNone;
  s.log_requests = log_requests_ == "off"    ? LogRequests::kOff
                   : log_requests_ == "full" ? LogRequests::kFull
                                             : LogRequests::kMeta;
  if (s.log_requests == LogRequests::kFull) {
    Log(LogLevel::kWarning, "requests.logged_in_full",
        {{"reason", "--log-requests full: prompts and answers are in this log"}});
  }
  s.web_pages = web_pages_ == "on" || (web_pages_ == "auto" && IsLoopbackHost(s.http.host));
  if (price_book_ != "none") {
    Result<PriceBook> book = PriceBook::Load(price_book_);
    if (!book.ok()) return book.status().Annotate("--price-book");
    s.price_book = std::make_shared<const PriceBook>(*std::move(book));
  }
  if (!cost_book_.empty()) {
    Result<CostBook> book = CostBook::Load(cost_book_, cost_device_);
    if (!book.ok()) return book.status().Annotate("--cost-book");
    s.cost_book = std::make_shared<const CostBook>(*std::move(book));
  }
  s.request_timeout = Milliseconds(timeout_s_);
  s.queue_timeout = Milliseconds(queue_timeout_s_);
  for (size_t i = 0; i < s.class_max_wait.size(); ++i) {
    s.class_max_wait[i] = Milliseconds(class_max_wait_s_[i]);
  }
  s.sse_ping_interval = Milliseconds(ping_interval_s_);
  s.throughput_log_interval = Milliseconds(log_interval_s_);
  s.build_commit = std::string(kCommit);
  return OkStatus();
}

GatewayOptions ServeFlags::gateway_options() const {
  GatewayOptions options;
  options.max_queued_requests = engine.max_queued_requests;
  options.ttft_slo_us = static_cast<int64_t>(ttft_slo_s_ * 1e6);
  options.tpot_slo_us = static_cast<int64_t>(tpot_slo_ms_ * 1e3);
  options.tenant_budget = tenant_budget_;
  options.tenant_burst_s = tenant_burst_s_;
  return options;
}

}  // namespace deepinfer
