#include "server/metrics_compat.h"

#include <algorithm>
#include <array>

namespace deepinfer {
namespace {

constexpr std::string_view kVllmNames[] = {
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "gpu_cache_usage_perc",
    "cpu_kv_cache_usage_perc",
    "cache_config_info",
    "num_preemptions_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "request_success_total",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "external_prefix_cache_queries_total",
    "external_prefix_cache_hits_total",
    "prompt_tokens_by_source_total",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_inference_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_params_n",
    "request_params_max_tokens",
    "iteration_tokens_total",
    "kv_block_lifetime_seconds",
    "kv_block_idle_before_evict_seconds",
    "kv_block_reuse_gap_seconds",
    "spec_decode_num_drafts_total",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
    "spec_decode_num_accepted_tokens_per_pos_total",
};

// vLLM's web framework exports these without a prefix.
constexpr std::string_view kBareNames[] = {
    "http_requests_total",
    "http_request_duration_seconds",
    "http_request_size_bytes",
    "http_response_size_bytes",
};

template <size_t N>
bool Contains(const std::string_view (&names)[N], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

}  // namespace

std::vector<std::string> ExportedNames(std::string_view name, MetricsCompat compat) {
  std::vector<std::string> names{std::string("deepinfer:").append(name)};
  if (compat == MetricsCompat::kVllm) {
    if (Contains(kVllmNames, name)) names.push_back(std::string("vllm:").append(name));
    if (Contains(kBareNames, name)) names.emplace_back(name);
  }
  return names;
}

}  // namespace deepinfer
