#include "engine/engine_state.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "engine/actions/store_blocks.h"
#include "engine/drafter.h"
#include "text/grammar_pool.h"

namespace deepinfer {

namespace {

// Tokens without a choice that one step appends: a few lines of text, whose rows fit into a step
// beside those of others.
constexpr int32_t kMaxForcedTokens = 32;

}  // namespace

EngineState::EngineState(Model* m, const EngineOptions& o, const Clock* c,
                         std::unique_ptr<KvMemory> kv, GrammarPool* g, KvStore* persistent)
    : model(m),
      options(o),
      clock(c),
      memory(std::move(kv)),
      grammars(g),
      store(persistent),
      flops(MakeCostShape(m->config()),
            // The CPU multiplies every format in fp32 or bf16 units of one speed.
            FormatCost{.fp4 = 2, .fp8 = 2, .bf16 = 2, .fp32 = 2}),
      max_drafts(Drafter::MaxDrafts(m->config(), o.speculation)),
      model_use(m->config().num_experts) {
  static_assert(kPlanBlockTokens == kBlockTokens);
  limits.max_rows = o.max_num_batched_tokens;
  limits.max_sequences = o.max_num_seqs;
  limits.min_prefill_rows = o.min_prefill_rows;
  limits.prefill_every = o.prefill_every;
  limits.prefill_share_max = o.prefill_share_max;
  limits.tpot_target_us = o.tpot_target_us;
  limits.max_skips = o.max_skips;
  statistics.peak_flops = std::llround(o.peak_flops);
  statistics.kv_capacity_tokens = memory->capacity_tokens();
  statistics.blocks_total = memory->blocks().stats().capacity;
  statistics.slots_total = memory->slots().num_slots();
}

CostShape MakeCostShape(const ModelConfig& c) {
  CostShape s;
  s.decoder_start = c.decoder_start();
  s.dim = c.dim;
  s.heads = c.num_heads;
  s.head_dim = c.head_dim;
  s.q_lora = c.q_lora_rank;
  s.o_groups = c.o_groups;
  s.o_lora = c.o_lora_rank;
  s.moe_inter = c.moe_inter_dim;
  s.num_experts = c.num_experts;
  s.experts_per_token = c.experts_per_token;
  s.hc_mult = c.hc_mult;
  s.window = c.window;
  s.engram_width = int64_t{c.engram.num_columns()} * c.engram.head_dim;
  s.vocab = c.vocab_size;
  s.index_heads = c.index_num_heads;
  s.index_head_dim = c.index_head_dim;
  s.index_topk = c.index_topk;
  for (int32_t l = 0; l < c.num_layers; ++l) {
    CostShape::Layer layer;
    layer.ratio = c.ratio(l);
    layer.kv_source = c.IsKvSource(l);
    layer.index_source = c.IsIndexSource(l);
    layer.engram = c.EngramIndex(l) >= 0;
    if (layer.index_source && c.candidate_source_layer >= 0 && l > c.candidate_source_layer) {
      layer.index_cap = int64_t{c.candidate_topk_blocks} * c.candidate_block_size;
    }
    s.layers.push_back(layer);
  }
  return s;
}

namespace {

// One more or one less.
void AddQueuedPrompt(EngineState& state, const Sequence& s, int64_t sign) {
  // What its gateway found in the persistent cache will not run.
  const int64_t rows = s.prompt_len - s.request.stored.first_row;
  state.queued_prompts.prompts += sign;
  state.queued_prompts.tokens += sign * rows;
  state.queued_prompts.squares += sign * rows * s.prompt_len;
}

}  // namespace

int64_t FirstTokenDueUs(const EngineState& state, const Sequence& s) {
  if (s.request.first_token_deadline_us != 0) return s.request.first_token_deadline_us;
  const auto rank = static_cast<size_t>(s.request.request_class);
  const int64_t target_us = state.options.ttft_target_us[rank];
  return target_us == 0 ? kNoDeadlineUs : s.schedule.submitted_us + target_us;
}

void Enqueue(EngineState& state, Sequence& s) {
  s.state = SequenceState::kQueued;
  const int64_t due_us = FirstTokenDueUs(state, s);
  StepRows rows;
  state.cost().AddPrefill(0, s.prompt_len, s.prompt_len, &rows);
  s.schedule.predicted_prefill_us = static_cast<int64_t>(state.step_time.Predict(rows));
  state.queue.Add({s.id, s.request.request_class, s.schedule.submitted_us,
                   due_us == kNoDeadlineUs ? due_us : due_us - s.schedule.predicted_prefill_us});
  AddQueuedPrompt(state, s, 1);
  state.queued_output_tokens += s.request.sampling.max_tokens;
}

void Dequeue(EngineState& state, Sequence& s) {
  if (!state.queue.Remove(s.id)) return;
  AddQueuedPrompt(state, s, -1);
  state.queued_output_tokens -= s.request.sampling.max_tokens;
}

namespace {

// Adds the positions [0, end) to the tiers they came from.
void AddByTier(const Sequence& s, int64_t end, std::array<int64_t, kNumCacheTiers>* by_tier) {
  const auto add = [&](CacheTier tier, int64_t tokens) {
    (*by_tier)[static_cast<size_t>(tier)] += tokens;
  };
  int64_t loaded = 0;
  for (int32_t i = 0; i < s.load.num_loaded; ++i) {
    const int64_t begin = int64_t{s.load.first_block + i} * kBlockTokens;
    const int64_t tokens = std::clamp<int64_t>(end - begin, 0, kBlockTokens);
    const bool from_peer = s.load.from_peer[static_cast<size_t>(i)];
    add(from_peer ? CacheTier::kRemote : CacheTier::kDisk, tokens);
    loaded += tokens;
  }
  add(CacheTier::kDram, end - loaded);
}

void NoteHit(EngineState& state, Sequence& s) {
  EngineStatistics& st = state.statistics;
  RequestCounters& c = s.counters;
  const int64_t hit = s.cache.write_from;
  AddByTier(s, c.cached_tokens, &c.cached_by_tier);
  AddByTier(s, c.cached_tokens, &st.cached_by_tier);
  AddByTier(s, hit, &st.hit_by_tier);
  st.cached_tokens += c.cached_tokens;
  st.replayed_tokens += c.replayed_tokens;
  const ReplayPlan& plan = s.schedule.probe.plan;
  const WindowRebuild how = plan.uses_snapshot                           ? WindowRebuild::kSnapshot
                            : state.options.replay == ReplayMode::kExact ? WindowRebuild::kExact
                                                                         : WindowRebuild::kBounded;
  st.replayed_by[static_cast<size_t>(how)] += c.replayed_tokens;
  if (hit > 0) st.replay_gen.Observe(s.cache.replay_gen);
  const int64_t whole = int64_t{s.prompt_len / kBlockTokens} * kBlockTokens;
  if (hit >= whole) return;
  c.miss_reason = s.load.miss == MissReason::kNone ? MissReason::kAbsent : s.load.miss;
  st.miss_tokens[static_cast<size_t>(c.miss_reason)] += whole - hit;
}

}  // namespace

void NoteStart(EngineState& state, Sequence& s) {
  Dequeue(state, s);
  s.schedule.started_us = state.clock->NowUs();
  s.counters.queue_us = s.schedule.started_us - s.schedule.submitted_us;
  ++state.statistics.started;
  // A branch found nothing in the cache: it shares what its leader found or computed.
  if (s.forked_from == 0) NoteHit(state, s);
}

void PrepareDevice(EngineState& state, Sequence& s) {
  DeviceRows& d = s.device;
  if (d.tokens != nullptr) return;
  const int32_t longest = s.max_positions(state.options.max_model_len);
  const auto positions = static_cast<size_t>(longest) + 1;
  d.tokens = std::make_unique<int32_t[]>(positions);
  std::copy(s.request.prompt_ids.begin(), s.request.prompt_ids.end(), d.tokens.get());
  d.block_table =
      std::make_unique<int32_t[]>(static_cast<size_t>(KvLayout::NumBlocks(int64_t(positions))));
  const ModelConfig& config = state.model->config();
  d.sampler.emplace(s.request.sampling, s.request.prompt_ids, config.eos_token_id,
                    config.image_token_id);
  if (s.grammar.compiled == nullptr) return;
  d.constraint.emplace(s.grammar.compiled, state.grammars->tokenizer(), *s.request.grammar,
                       s.request.sampling, config.eos_token_id);
  // Log-probabilities need the logits of every row; a hand-off ends with the first token.
  const bool jumps = state.options.jump_forward && s.request.sampling.num_top_logprobs < 0 &&
                     s.request.hand_off == HandOffProfile::kNone;
  d.max_forced = jumps ? kMaxForcedTokens : 0;
}

bool EnsureBlocks(EngineState& state, Sequence& s, int32_t end) {
  const int64_t missing = KvLayout::NumBlocks(end) - s.cache.num_blocks;
  if (missing <= 0) return true;
  std::vector<int32_t> blocks;
  if (!state.memory->blocks().Allocate(missing, &blocks)) return false;
  std::copy(blocks.begin(), blocks.end(), s.device.block_table.get() + s.cache.num_blocks);
  s.cache.num_blocks += static_cast<int32_t>(missing);
  return true;
}

namespace {

// Of what is not kept nobody is told that it was.
void NoteWritten(const EngineState& state, Sequence& s, int32_t block, bool is_new) {
  const int32_t end = (block + 1) * kBlockTokens;
  if (!is_new || !state.options.prefix_cache || end > s.request.cache_retention.kept_tokens) return;
  if (end <= s.prompt_len) {
    s.counters.cache_written_tokens += kBlockTokens;
  } else {
    s.counters.cache_written_output_tokens += end - std::max(s.prompt_len, end - kBlockTokens);
  }
}

}  // namespace

void PublishBlocks(EngineState& state, Sequence& s) {
  const int32_t complete = s.computed / kBlockTokens;
  if (complete <= s.cache.num_published) return;
  s.cache.chain.Extend({s.device.tokens.get(), static_cast<size_t>(complete) * kBlockTokens}, {});
  for (int32_t i = s.cache.num_published; i < complete; ++i) {
    // A duplicate stays private: another writer's bytes may descend from another replay.
    const bool is_new = state.memory->blocks().Publish(s.device.block_table[static_cast<size_t>(i)],
                                                       s.cache.chain.keys()[static_cast<size_t>(i)],
                                                       s.cache.replay_gen);
    NoteWritten(state, s, i, is_new);
    StoreBlock(state, s, i);
  }
  s.cache.num_published = complete;
}

void ReleaseMemory(EngineState& state, Sequence& s) {
  DI_CHECK(s.schedule.num_in_flight == 0);
  std::erase(state.active, &s);
  if (s.cache.slot >= 0) state.memory->slots().Release(s.cache.slot);
  s.cache.slot = -1;
  if (s.cache.num_blocks > 0) {
    state.memory->blocks().ReleaseChain(
        {s.device.block_table.get(), static_cast<size_t>(s.cache.num_blocks)});
  }
  s.cache.num_blocks = 0;
  s.schedule.blocks_charged_us = 0;
}

}  // namespace deepinfer
