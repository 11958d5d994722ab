#include "cluster/wire_codec.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <cluster.pb.h>

namespace deepinfer {

namespace {

template <typename From, typename To>
void CopyIds(const From& from, To* to) {
  to->Assign(from.begin(), from.end());
}

template <typename Repeated>
std::vector<int32_t> Ids(const Repeated& ids) {
  return {ids.begin(), ids.end()};
}

// What is left until a deadline; at least 1 of one that passed, because 0 means none.
int64_t Remaining(int64_t deadline_us, int64_t now_us) {
  return deadline_us == 0 ? 0 : std::max<int64_t>(1, deadline_us - now_us);
}

// Of a prompt: no context is longer.
constexpr int64_t kMostRows = std::numeric_limits<int32_t>::max();

constexpr int64_t kLongestWaitUs = int64_t{365} * 24 * 3600 * 1'000'000;

int64_t DeadlineAt(int64_t remaining_us, int64_t now_us) {
  return remaining_us <= 0 ? 0 : now_us + std::min(remaining_us, kLongestWaitUs);
}

template <typename E>
Result<E> DecodeEnum(int32_t value, E last, const char* field) {
  if (value < 0 || value > static_cast<int32_t>(last)) {
    return InvalidRequest(std::string(field) + " is out of range");
  }
  return static_cast<E>(value);
}

void EncodeSampling(const SamplingParams& s, wire::Sampling* out) {
  out->set_temperature(s.temperature);
  out->set_top_p(s.top_p);
  out->set_min_p(s.min_p);
  out->set_top_k(s.top_k);
  out->set_repetition_penalty(s.repetition_penalty);
  out->set_frequency_penalty(s.frequency_penalty);
  out->set_presence_penalty(s.presence_penalty);
  out->set_seed(s.seed);
  out->set_has_seed(s.has_seed);
  out->set_mode(static_cast<int32_t>(s.mode));
  out->set_max_tokens(s.max_tokens);
  out->set_min_tokens(s.min_tokens);
  out->set_ignore_eos(s.ignore_eos);
  CopyIds(s.stop_token_ids, out->mutable_stop_token_ids());
  for (const auto& [id, bias] : s.logit_bias) {
    wire::LogitBias* b = out->add_logit_bias();
    b->set_id(id);
    b->set_bias(bias);
  }
  CopyIds(s.banned_ids, out->mutable_banned_ids());
  CopyIds(s.allowed_ids, out->mutable_allowed_ids());
  for (const std::vector<int32_t>& ids : s.banned_sequences) {
    CopyIds(ids, out->add_banned_sequences()->mutable_ids());
  }
  out->set_num_tokens_without_end(s.num_tokens_without_end);
  out->set_logprobs_kind(static_cast<int32_t>(s.logprobs_kind));
  out->set_mass_below(s.mass_below);
  out->set_num_top_logprobs(s.num_top_logprobs);
  out->set_prompt_logprobs(s.prompt_logprobs);
}

Result<SamplingParams> DecodeSampling(const wire::Sampling& in) {
  SamplingParams s;
  s.temperature = in.temperature();
  s.top_p = in.top_p();
  s.min_p = in.min_p();
  s.top_k = in.top_k();
  s.repetition_penalty = in.repetition_penalty();
  s.frequency_penalty = in.frequency_penalty();
  s.presence_penalty = in.presence_penalty();
  s.seed = in.seed();
  s.has_seed = in.has_seed();
  DI_ASSIGN_OR_RETURN(s.mode, DecodeEnum(in.mode(), SamplingMode::kRejection, "the sampling mode"));
  s.max_tokens = in.max_tokens();
  s.min_tokens = in.min_tokens();
  s.ignore_eos = in.ignore_eos();
  s.stop_token_ids = Ids(in.stop_token_ids());
  for (const wire::LogitBias& b : in.logit_bias()) s.logit_bias.emplace_back(b.id(), b.bias());
  s.banned_ids = Ids(in.banned_ids());
  s.allowed_ids = Ids(in.allowed_ids());
  for (const wire::Ids& ids : in.banned_sequences()) s.banned_sequences.push_back(Ids(ids.ids()));
  s.num_tokens_without_end = in.num_tokens_without_end();
  DI_ASSIGN_OR_RETURN(s.logprobs_kind, DecodeEnum(in.logprobs_kind(), LogprobsKind::kProcessed,
                                                  "the kind of log-probabilities"));
  s.mass_below = in.mass_below();
  s.num_top_logprobs = in.num_top_logprobs();
  s.prompt_logprobs = in.prompt_logprobs();
  return s;
}

// Order of the values on the wire; new ones are added at the end.
template <typename C, typename F>
void ForEachCounter(C& c, F f) {
  f(c.prompt_tokens);
  f(c.cached_tokens);
  f(c.computed_tokens);
  f(c.replayed_tokens);
  for (auto& v : c.cached_by_tier) f(v);
  f(c.cache_written_tokens);
  f(c.generated_tokens);
  f(c.drafted_tokens);
  f(c.draft_accepted_tokens);
  f(c.queue_us);
  f(c.prefill_us);
  f(c.decode_us);
  f(c.prefill_device_ns), f(c.decode_device_ns), f(c.kv_block_ns);
  f(c.disk_read_bytes), f(c.disk_write_bytes);
  f(c.load_after_us), f(c.load_us), f(c.transfer_us);
  f(c.cache_written_output_tokens), f(c.handoff_bytes), f(c.control_bytes);
}

template <typename S, typename F>
void ForEachValue(S& s, F f) {
  f(s.running), f(s.waiting), f(s.pending), f(s.parked), f(s.loading);
  f(s.waiting_prompt_tokens), f(s.remaining_output_tokens);
  f(s.kv_tokens), f(s.kv_capacity_tokens);
  f(s.blocks_total), f(s.blocks_used), f(s.blocks_cached), f(s.slots_total), f(s.slots_used);
  f(s.steps), f(s.prefill_rows), f(s.decode_rows);
  f(s.cached_tokens), f(s.computed_tokens), f(s.replayed_tokens), f(s.generated_tokens);
  for (auto& v : s.cached_by_tier) f(v);
  for (auto& v : s.hit_by_tier) f(v);
  for (auto& v : s.miss_tokens) f(v);
  for (auto& v : s.replayed_by) f(v);
  f(s.store_loads), f(s.store_loads_partial);
  f(s.drafts), f(s.draft_tokens), f(s.draft_accepted);
  for (auto& v : s.draft_verified_by_position) f(v);
  for (auto& v : s.draft_accepted_by_position) f(v);
  f(s.parks), f(s.resumes_from_image), f(s.resumes_rebuilt), f(s.started), f(s.cancels);
  f(s.blocks_evicted);
  f(s.blocks_acquired), f(s.blocks_released), f(s.slots_acquired), f(s.slots_released);
  f(s.masked_tokens), f(s.forced_tokens), f(s.grammar_us);
  f(s.host_us), f(s.model_us), f(s.draft_us), f(s.step_us);
  for (auto& v : s.queued_by_class) f(v);
  f(s.undelivered_events), f(s.step_max_context), f(s.attended_tokens), f(s.kiloflops);
  f(s.attention_kiloflops), f(s.expert_load_milli), f(s.flops_per_second), f(s.peak_flops);
  f(s.unclaimed_ns), f(s.accounted_us), f(s.invariant_breaches);
}

template <typename S, typename F>
void ForEachHistogram(S& s, F f) {
  for (auto& h : s.step_seconds) f(h);
  f(s.rows_per_step), f(s.step_prediction_error), f(s.draft_accept_length);
  f(s.draft_confidence_error), f(s.store_load_seconds), f(s.replay_gen);
  f(s.block_lifetime_seconds), f(s.block_idle_seconds);
  f(s.block_reuse_seconds);
}

void EncodeGrammar(const OutputGrammar& grammar, wire::Grammar* out) {
  out->set_source(SerializeGrammarSource(grammar.source));
  if (grammar.fallback) {
    out->set_has_fallback(true);
    out->set_fallback(SerializeGrammarSource(*grammar.fallback));
  }
  const GrammarTrigger& trigger = grammar.trigger;
  wire::GrammarTrigger* t = out->mutable_trigger();
  CopyIds(trigger.token_ids, t->mutable_token_ids());
  t->set_preceding_text(trigger.preceding_text);
  t->set_has_bound_token(trigger.bound_token.has_value());
  t->set_bound_token(trigger.bound_token.value_or(0));
  CopyIds(trigger.banned_ids, t->mutable_banned_ids());
  t->set_optional(trigger.optional);
  out->set_strict(grammar.strict);
}

Result<std::shared_ptr<const OutputGrammar>> DecodeGrammar(const wire::Grammar& in) {
  auto grammar = std::make_shared<OutputGrammar>();
  DI_ASSIGN_OR_RETURN(grammar->source, ParseGrammarSource(in.source()));
  if (in.has_fallback()) {
    DI_ASSIGN_OR_RETURN(grammar->fallback, ParseGrammarSource(in.fallback()));
  }
  const wire::GrammarTrigger& t = in.trigger();
  grammar->trigger.token_ids = Ids(t.token_ids());
  grammar->trigger.preceding_text = t.preceding_text();
  if (t.has_bound_token()) grammar->trigger.bound_token = t.bound_token();
  grammar->trigger.banned_ids = Ids(t.banned_ids());
  grammar->trigger.optional = t.optional();
  grammar->strict = in.strict();
  return std::shared_ptr<const OutputGrammar>(std::move(grammar));
}

void EncodeCounters(const RequestCounters& counters, wire::Counters* out) {
  ForEachCounter(counters, [&](int64_t v) { out->add_values(v); });
  out->set_approximate_resume(counters.approximate_resume);
  out->set_miss_reason(static_cast<int32_t>(counters.miss_reason));
}

RequestCounters DecodeCounters(const wire::Counters& in) {
  RequestCounters counters;
  int i = 0;
  ForEachCounter(counters, [&](int64_t& v) { v = i < in.values_size() ? in.values(i++) : 0; });
  counters.approximate_resume = in.approximate_resume();
  if (in.miss_reason() >= 0 && in.miss_reason() < static_cast<int32_t>(kNumMissReasons)) {
    counters.miss_reason = static_cast<MissReason>(in.miss_reason());
  }
  return counters;
}

void EncodeOrigin(const SequenceOrigin& origin, wire::Origin* out) {
  out->set_first_row(origin.first_row);
  out->set_window_floor(origin.window_floor);
  out->set_replay_gen(origin.replay_gen);
}

SequenceOrigin DecodeOrigin(const wire::Origin& in) {
  return {in.first_row(), in.window_floor(), in.replay_gen()};
}

void EncodeLogprobs(const TokenLogprobs& l, wire::Logprobs* out) {
  out->set_logprob(l.logprob);
  for (const auto& [id, logprob] : l.top) {
    out->add_top_ids(id);
    out->add_top_logprobs(logprob);
  }
  out->set_mass_below(l.mass_below);
}

Result<TokenLogprobs> DecodeLogprobs(const wire::Logprobs& in) {
  if (in.top_ids_size() != in.top_logprobs_size()) {
    return InvalidRequest("log-probabilities and their ids differ in number");
  }
  TokenLogprobs l;
  l.logprob = in.logprob();
  for (int i = 0; i < in.top_ids_size(); ++i) {
    l.top.emplace_back(in.top_ids(i), in.top_logprobs(i));
  }
  l.mass_below = in.mass_below();
  return l;
}

}  // namespace

void EncodeRequest(const EngineRequest& r, int64_t now_us, wire::Request* out) {
  out->set_request_id(r.request_id);
  out->set_attempt(r.attempt);
  out->set_work_id(r.work_id);
  CopyIds(r.prompt_ids, out->mutable_prompt_ids());
  EncodeSampling(r.sampling, out->mutable_sampling());
  out->set_deadline_in_us(Remaining(r.deadline_us, now_us));
  out->set_queue_deadline_in_us(Remaining(r.queue_deadline_us, now_us));
  out->set_first_token_deadline_in_us(Remaining(r.first_token_deadline_us, now_us));
  out->set_request_class(static_cast<int32_t>(r.request_class));
  out->set_cache_scope(r.cache_scope.data(), r.cache_scope.size());
  out->set_branch_of(r.branch_of);
  CopyIds(r.forced_ids, out->mutable_forced_ids());
  CopyIds(r.forced_accepts, out->mutable_forced_accepts());
  wire::CacheRetention* retention = out->mutable_cache_retention();
  retention->set_persist(r.cache_retention.persist);
  retention->set_retention(static_cast<int32_t>(r.cache_retention.retention));
  retention->set_max_lifetime_hours(r.cache_retention.max_lifetime_hours);
  retention->set_tenant_tag(r.cache_retention.tenant_tag);
  retention->set_kept_tokens(r.cache_retention.kept_tokens);
  CopyIds(r.state_at, out->mutable_state_at());
  EncodeStored(r.stored, out->mutable_stored());
  if (r.grammar != nullptr) EncodeGrammar(*r.grammar, out->mutable_grammar());
  if (!r.resume) return;
  CopyIds(r.resume->ids, out->mutable_resume_ids());
  EncodeOrigin(r.resume->origin, out->mutable_resume_origin());
  EncodeCounters(r.resume->counters, out->mutable_resume_counters());
}

Result<EngineRequest> DecodeRequest(const wire::Request& in, int64_t now_us) {
  EngineRequest r;
  r.request_id = in.request_id();
  r.attempt = in.attempt();
  r.work_id = in.work_id();
  r.prompt_ids = Ids(in.prompt_ids());
  DI_ASSIGN_OR_RETURN(r.sampling, DecodeSampling(in.sampling()));
  r.deadline_us = DeadlineAt(in.deadline_in_us(), now_us);
  r.queue_deadline_us = DeadlineAt(in.queue_deadline_in_us(), now_us);
  r.first_token_deadline_us = DeadlineAt(in.first_token_deadline_in_us(), now_us);
  DI_ASSIGN_OR_RETURN(r.request_class,
                      DecodeEnum(in.request_class(), RequestClass::kBatch, "the class"));
  if (in.cache_scope().size() != r.cache_scope.size()) {
    return InvalidRequest("the cache scope has another size");
  }
  std::copy(in.cache_scope().begin(), in.cache_scope().end(), r.cache_scope.begin());
  r.branch_of = in.branch_of();
  r.forced_ids = Ids(in.forced_ids());
  r.forced_accepts = Ids(in.forced_accepts());
  const wire::CacheRetention& retention = in.cache_retention();
  r.cache_retention.persist = retention.persist();
  DI_ASSIGN_OR_RETURN(
      r.cache_retention.retention,
      DecodeEnum(retention.retention(), RetentionClass::kPinned, "the retention class"));
  r.cache_retention.max_lifetime_hours = retention.max_lifetime_hours();
  r.cache_retention.tenant_tag = retention.tenant_tag();
  r.cache_retention.kept_tokens = retention.kept_tokens();
  r.state_at = Ids(in.state_at());
  r.stored = DecodeStored(in.stored(), std::ssize(r.prompt_ids));
  if (in.has_grammar()) {
    DI_ASSIGN_OR_RETURN(r.grammar, DecodeGrammar(in.grammar()));
  }
  if (in.resume_ids_size() == 0) return r;
  r.resume.emplace();
  r.resume->ids = Ids(in.resume_ids());
  r.resume->origin = DecodeOrigin(in.resume_origin());
  DI_RETURN_IF_ERROR(ValidateOrigin(r.resume->origin, r.prompt_ids.size()));
  r.resume->counters = DecodeCounters(in.resume_counters());
  return r;
}

void EncodeEvent(const std::string& request_id, uint32_t attempt, const TokenEvent& event,
                 wire::TokenEvent* out) {
  out->set_request_id(request_id);
  out->set_attempt(attempt);
  out->set_start_index(event.start_index);
  CopyIds(event.ids, out->mutable_ids());
  for (const TokenLogprobs& l : event.logprobs) EncodeLogprobs(l, out->add_logprobs());
  for (const TokenLogprobs& l : event.prompt_logprobs) {
    EncodeLogprobs(l, out->add_prompt_logprobs());
  }
  out->set_finish(static_cast<int32_t>(event.finish));
  out->set_stop_token_id(event.stop_token_id);
  out->set_status_code(static_cast<int32_t>(event.status.code()));
  out->set_status_message(event.status.message());
  EncodeCounters(event.counters, out->mutable_counters());
  EncodeOrigin(event.origin, out->mutable_origin());
}

Result<TokenEvent> DecodeEvent(const wire::TokenEvent& in) {
  TokenEvent event;
  event.start_index = in.start_index();
  event.ids = Ids(in.ids());
  for (const wire::Logprobs& l : in.logprobs()) {
    DI_ASSIGN_OR_RETURN(TokenLogprobs logprobs, DecodeLogprobs(l));
    event.logprobs.push_back(std::move(logprobs));
  }
  for (const wire::Logprobs& l : in.prompt_logprobs()) {
    DI_ASSIGN_OR_RETURN(TokenLogprobs logprobs, DecodeLogprobs(l));
    event.prompt_logprobs.push_back(std::move(logprobs));
  }
  DI_ASSIGN_OR_RETURN(event.finish,
                      DecodeEnum(in.finish(), FinishReason::kHandedOff, "the finish reason"));
  event.stop_token_id = in.stop_token_id();
  DI_ASSIGN_OR_RETURN(const StatusCode code,
                      DecodeEnum(in.status_code(), StatusCode::kInternal, "the status"));
  if (code != StatusCode::kOk) event.status = Status(code, in.status_message());
  event.counters = DecodeCounters(in.counters());
  event.origin = DecodeOrigin(in.origin());
  return event;
}

void EncodeStatistics(const EngineStatistics& statistics, wire::Statistics* out) {
  ForEachValue(statistics, [&](int64_t v) { out->add_values(v); });
  ForEachHistogram(statistics, [&](const StatHistogram& h) {
    wire::Histogram* histogram = out->add_histograms();
    histogram->mutable_counts()->Assign(h.counts().begin(), h.counts().end());
    histogram->set_sum(h.sum());
  });
}

EngineStatistics DecodeStatistics(const wire::Statistics& in) {
  EngineStatistics statistics;
  int i = 0;
  ForEachValue(statistics, [&](auto& v) {
    using Value = std::remove_reference_t<decltype(v)>;
    v = i < in.values_size() ? static_cast<Value>(in.values(i++)) : Value{0};
  });
  int h = 0;
  ForEachHistogram(statistics, [&](StatHistogram& histogram) {
    if (h >= in.histograms_size()) return;
    const wire::Histogram& from = in.histograms(h++);
    if (from.counts_size() != static_cast<int>(histogram.counts().size())) return;
    histogram.Restore({from.counts().data(), static_cast<size_t>(from.counts_size())}, from.sum());
  });
  return statistics;
}

void EncodeStored(const StoredPrefix& stored, wire::StoredPrefix* out) {
  out->set_own_tokens(stored.own_tokens);
  out->set_peer_tokens(stored.peer_tokens);
  out->set_first_row(stored.first_row);
}

StoredPrefix DecodeStored(const wire::StoredPrefix& in, int64_t prompt_tokens) {
  const int64_t tokens = int64_t{in.own_tokens()} + in.peer_tokens();
  const bool can_be = in.own_tokens() >= 0 && in.peer_tokens() >= 0 && tokens <= prompt_tokens &&
                      in.first_row() >= 0 && in.first_row() <= tokens;
  return can_be ? StoredPrefix{in.own_tokens(), in.peer_tokens(), in.first_row()} : StoredPrefix{};
}

namespace {

struct CostNumber {
  double PredictedCosts::*value;
  double (wire::Costs::*get)() const;
  void (wire::Costs::*set)(double);
};

// None of them is ever below 0.
constexpr CostNumber kCostNumbers[] = {
    {&PredictedCosts::prompt_us_per_step, &wire::Costs::prompt_us_per_step,
     &wire::Costs::set_prompt_us_per_step},
    {&PredictedCosts::prompt_us_per_token, &wire::Costs::prompt_us_per_token,
     &wire::Costs::set_prompt_us_per_token},
    {&PredictedCosts::prompt_us_per_square, &wire::Costs::prompt_us_per_square,
     &wire::Costs::set_prompt_us_per_square},
    {&PredictedCosts::tail_us_per_row, &wire::Costs::tail_us_per_row,
     &wire::Costs::set_tail_us_per_row},
    {&PredictedCosts::load_us, &wire::Costs::load_us, &wire::Costs::set_load_us},
    {&PredictedCosts::load_us_per_token, &wire::Costs::load_us_per_token,
     &wire::Costs::set_load_us_per_token},
    {&PredictedCosts::step_us, &wire::Costs::step_us, &wire::Costs::set_step_us},
    {&PredictedCosts::step_us_per_row, &wire::Costs::step_us_per_row,
     &wire::Costs::set_step_us_per_row},
    {&PredictedCosts::step_us_per_token, &wire::Costs::step_us_per_token,
     &wire::Costs::set_step_us_per_token},
    {&PredictedCosts::error, &wire::Costs::prediction_error, &wire::Costs::set_prediction_error},
    {&PredictedCosts::queued_us, &wire::Costs::queued_us, &wire::Costs::set_queued_us},
};

}  // namespace

void EncodeCosts(const PredictedCosts& costs, wire::Costs* out) {
  for (const CostNumber& number : kCostNumbers) (out->*number.set)(costs.*number.value);
  out->set_chunk_rows(costs.chunk_rows);
  out->set_tail_rows(costs.tail_rows);
  out->set_cuts_at_tail(costs.cuts_at_tail);
}

PredictedCosts DecodeCosts(const wire::Costs& in) {
  PredictedCosts costs;
  for (const CostNumber& number : kCostNumbers) {
    const double value = (in.*number.get)();
    if (!std::isfinite(value) || value < 0) return {};
    costs.*number.value = value;
  }
  const auto rows = [](int64_t n) { return std::clamp<int64_t>(n, 0, kMostRows); };
  costs.chunk_rows = rows(in.chunk_rows());
  costs.tail_rows = rows(in.tail_rows());
  costs.cuts_at_tail = in.cuts_at_tail();
  return costs;
}

void EncodeHandOffs(const HandOffCounters& counters, wire::HandOffCounts* out) {
  out->set_tickets_granted(counters.tickets_granted);
  out->set_tickets_released(counters.tickets_released);
  out->set_pins_acquired(counters.pins_acquired);
  out->set_pins_released(counters.pins_released);
  out->set_committed(counters.committed);
  out->set_failed(counters.failed);
  out->set_bytes_sent(counters.bytes_sent);
  out->set_bytes_received(counters.bytes_received);
  out->set_extents_nacked(counters.extents_nacked);
  out->set_bytes_by_ucx(counters.bytes_by_ucx);
}

HandOffCounters DecodeHandOffs(const wire::HandOffCounts& in) {
  return {in.tickets_granted(), in.tickets_released(), in.pins_acquired(), in.pins_released(),
          in.committed(),       in.failed(),           in.bytes_sent(),    in.bytes_received(),
          in.extents_nacked(),  in.bytes_by_ucx()};
}

}  // namespace deepinfer
