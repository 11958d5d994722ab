// Flags of `serve` and of the processes of a cluster, also shown by `config print`.
// Thread rule: main thread.
#pragma once

#include <string>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "cli/compatibility_flags.h"
#include "cli/kv_flags.h"
#include "cli/model_flags.h"
#include "cli/scheduling_flags.h"
#include "cli/speculation_flags.h"
#include "cluster/gateway.h"
#include "engine/engine.h"
#include "server/server_options.h"

namespace deepinfer {

struct ServeFlags {
  ModelFlags model;
  KvFlags kv;
  SpeculationFlags speculation;
  EngineOptions engine;
  SchedulingFlags scheduling;
  GrammarPoolOptions grammars;
  ServerOptions server;

  void Register(CLI::App* command);
  // The flags of a worker: model, engine and logs.
  void RegisterWorker(CLI::App* command);

  // Checks what CLI11 cannot and completes `server` and `engine`. model_dir names the default
  // served name. invalid_request names the flag.
  Status Finish(const std::filesystem::path& model_dir);

  LogLevel log_level() const;
  LogFormat log_format() const;
  // The part of `engine` and of the promises that the gateway keeps.
  GatewayOptions gateway_options() const;
  ModelPart part = ModelPart::kWhole;  // a worker may load one
  double drain_timeout_s = 60;
  std::string perf_curve_dir;
  std::string model_revision;   // "": that of a snapshot folder
  int64_t kv_memory_bytes = 0;  // of the cache pool, in place of engine.kv_cache_tokens; 0: not so

 private:
  void RegisterListen(CLI::App* command);
  void RegisterEngine(CLI::App* command);
  void RegisterLogs(CLI::App* command);
  void RegisterApi(CLI::App* command);
  void RegisterGrammars(CLI::App* command);
  void RegisterAccess(CLI::App* command);
  void RegisterOperations(CLI::App* command);
  void RegisterLedger(CLI::App* command);
  void RegisterAccount(CLI::App* command);

  std::vector<std::string> served_names_;
  std::vector<std::string> aliases_;
  std::string decoder_tail_ = "compact";
  std::string prefix_cache_ = "on", replay_ = "bounded", async_scheduling_ = "on";
  int64_t min_load_wait_ms_ = kMinLoadWaitUs / 1000;
  std::string default_thinking_ = "on";
  std::string default_effort_ = "high";
  int32_t default_max_tokens_ = 0;
  std::string sampling_policy_ = "honour";
  bool strict_reasoning_passback_ = false;
  std::string anthropic_any_ = "force";
  std::string anthropic_prefill_ = "off";
  std::string sampling_mode_ = "auto";
  std::string logprobs_mode_ = "raw";
  double log_interval_s_ = 5;
  double grammar_timeout_s_ = 2;
  int64_t grammar_cache_mb_ = 1024, grammar_max_mb_ = 64;
  std::string jump_forward_ = "on";
  std::string usage_style_ = "openai";
  std::string reasoning_field_ = "reasoning_content";
  std::string usage_extension_ = "on";
  std::string raw_prompt_specials_ = "on";
  std::string json_mode_ = "grammar";
  std::string exact_replay_ = "on";
  bool ssl_refresh_ = false;
  std::string metrics_compat_ = "vllm";
  std::string web_pages_ = "auto";
  std::string price_book_{kDefaultPriceBook};
  std::string cost_book_, cost_device_;
  std::string log_requests_ = "meta";
  std::string log_format_ = "text";
  std::string log_level_ = "info";
  double timeout_s_ = 3600;
  double queue_timeout_s_ = 600;
  std::vector<double> class_max_wait_s_{0, 0, 0};
  double ttft_slo_s_ = 0, tpot_slo_ms_ = 0;
  double tenant_budget_ = 0, tenant_burst_s_ = GatewayOptions().tenant_burst_s;
  double ping_interval_s_ = 45;
  std::string cache_min_ttl_cap_, cache_max_ttl_cap_;
  std::string config_file_;
  CompatibilityFlags compatibility_;
};

}  // namespace deepinfer
