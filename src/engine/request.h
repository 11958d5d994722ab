// What the engine is asked to do and what it reports: token ids and numbers, no text.
// Thread rule: values; a request is moved into the engine, events are moved out.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/sha256.h"
#include "base/status.h"
#include "engine/statistics.h"
#include "kvcache/format.h"
#include "sched/predicted_costs.h"
#include "sched/request_class.h"
#include "text/grammar.h"
#include "text/grammar_source.h"

namespace deepinfer {

inline constexpr int32_t kMaxTopLogprobs = 1000;
inline constexpr size_t kMaxStateAt = 16;

// How tokens are drawn at temperature > 0 (numerics.md §5).
enum class SamplingMode : unsigned char {
  kAuto,       // strict when the request carries a seed, else rejection
  kStrict,     // race draw: a fixed function of distribution, seed and position
  kRejection,  // CDF draw; keeps the distribution
};

// Which distribution log-probabilities describe (numerics.md §5.6).
enum class LogprobsKind : unsigned char {
  kRaw,        // the model's logits at temperature 1
  kProcessed,  // after bans, penalties, bias, temperature and filters; removed ids are -inf
};

// Ranges are those of api.md §3; the server validates them, the engine checks them again and
// answers invalid_request.
struct SamplingParams {
  float temperature = 1.0f;  // below 1e-5: argmax, lowest id on ties
  float top_p = 1.0f;
  float min_p = 0.0f;
  int32_t top_k = 0;  // 0 = off
  float repetition_penalty = 1.0f;
  float frequency_penalty = 0.0f;
  float presence_penalty = 0.0f;
  uint64_t seed = 0;  // always used; has_seed tells whether the client chose it
  bool has_seed = false;
  SamplingMode mode = SamplingMode::kAuto;
  int32_t max_tokens = 16;
  int32_t min_tokens = 0;  // end and stop ids are banned before that many tokens
  bool ignore_eos = false;
  std::vector<int32_t> stop_token_ids;
  std::vector<std::pair<int32_t, float>> logit_bias;
  std::vector<int32_t> banned_ids;
  std::vector<int32_t> allowed_ids;  // empty = all; a ban is stronger
  // The last id of each is banned where the output ends with the ids before it.
  std::vector<std::vector<int32_t>> banned_sequences;
  int32_t num_tokens_without_end = 0;  // the end token is banned before that many tokens
  LogprobsKind logprobs_kind = LogprobsKind::kRaw;
  bool mass_below = false;        // report TokenLogprobs::mass_below, with log-probabilities
  int32_t num_top_logprobs = -1;  // -1 = no log-probabilities, 0 = chosen token only
  bool prompt_logprobs = false;
};

// What an output must match (structured_outputs.md §6).
struct OutputGrammar {
  GrammarSource source;
  // Compiled in its place where `source` is refused; without one the request ends then.
  std::optional<GrammarSource> fallback = std::nullopt;
  GrammarTrigger trigger;
  bool strict = false;  // parts that the compiled grammar does not enforce refuse the request
};

// Exact account of a request so far (api.md §6).
struct RequestCounters {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t computed_tokens = 0;  // prompt rows run, replayed rows included
  int64_t replayed_tokens = 0;
  std::array<int64_t, kNumCacheTiers> cached_by_tier{};  // adds up to cached_tokens
  MissReason miss_reason = MissReason::kNone;  // of the first whole block that was not cached
  int64_t cache_written_tokens = 0;            // prompt tokens this request added to a kept tier
  int64_t cache_written_output_tokens = 0;     // generated ones
  int64_t generated_tokens = 0;                // committed, the end token included
  int64_t drafted_tokens = 0;
  int64_t draft_accepted_tokens = 0;
  int64_t queue_us = 0;
  int64_t prefill_us = 0;
  int64_t decode_us = 0;
  // Shares of the time that steps kept the device, in nanoseconds (docs/economics.md section 3),
  // and blocks held times nanoseconds.
  int64_t prefill_device_ns = 0;
  int64_t decode_device_ns = 0;
  int64_t kv_block_ns = 0;
  int64_t disk_read_bytes = 0;
  int64_t disk_write_bytes = 0;  // accepted by the persistent store
  int64_t load_after_us = 0;     // from its submission to the begin of its load
  int64_t load_us = 0;           // of blocks from the persistent store; 0: none
  int64_t transfer_us = 0;       // from the reservation of its landing to its commit; 0: none
  int64_t handoff_bytes = 0;     // of states that moved between workers
  int64_t control_bytes = 0;     // of messages between gateway and workers
  // State was rebuilt from a truncated history after its image was lost (numerics.md §6).
  bool approximate_resume = false;
};

// Where the rows of a sequence began. Whoever computes its state again elsewhere begins likewise.
struct SequenceOrigin {
  int32_t first_row = 0;
  int32_t window_floor = 0;
  int32_t replay_gen = 0;
};

// What of a prompt runs here when another engine runs the answer, and what that one gets of it
// (cluster.md §6).
enum class HandOffProfile : unsigned char {
  kNone,     // the answer runs here too
  kFull,     // all layers; the state and the first token move
  kStore,    // all layers; the first token moves, blocks are read from the shared store
  kEncoder,  // layers below the decoder; the state and the rows at the cut move
  kTail,     // layers below the decoder, rows before the decoder tail; the state moves
};

// Complete blocks of a prompt, first_block and on.
struct StateBlocks {
  int32_t first_block = 0;
  std::vector<const std::byte*> blocks;
  // They stay as they are while it lives, which ends before the engine does.
  std::shared_ptr<void> pin;
  // What the whole state will be: TokenEvent::image_positions and num_cut_rows.
  int32_t positions = 0;
  int32_t num_cut_rows = 0;
};

// Takes blocks of a prompt as they are completed, for an engine elsewhere.
// Thread rule: called on the engine thread; must not block.
class StateSink {
 public:
  virtual ~StateSink() = default;

  virtual void OnBlocks(StateBlocks blocks) = 0;

  // The prompt gave up its memory for now: pins of blocks that have arrived need not wait for the
  // end.
  virtual void OnParked() = 0;
};

// invalid_request when it lies outside of the prompt.
Status ValidateOrigin(const SequenceOrigin& origin, size_t prompt_tokens);

// A request that another engine began: this one continues after the tokens produced so far, as if
// it had been parked and came back (architecture.md §8).
struct ResumePoint {
  std::vector<int32_t> ids;  // generated so far; empty only with an image
  SequenceOrigin origin;
  RequestCounters counters;  // at that point
  // engine/state_image.h; empty: rows run again.
  std::vector<std::byte> image;
  // That the image covers; all but the last token when there are ids.
  int32_t positions = 0;
  // Kept rows at the cut at the end of the image: the rest of the prompt runs from there.
  int32_t num_cut_rows = 0;
  // Without an image: blocks that the persistent store holds or is about to hold.
  int32_t num_stored_blocks = 0;
};

inline constexpr int32_t kKeepAll = std::numeric_limits<int32_t>::max();

// What may be kept of a request in the persistent store, and how long (api.md §7).
struct CacheRetention {
  bool persist = true;  // false: in memory only
  // Positions behind are not kept: no block of them in the store, no state near their end.
  int32_t kept_tokens = kKeepAll;
  RetentionClass retention = RetentionClass::kChat;
  int64_t max_lifetime_hours = 0;  // shorter than the class keeps it; no touch extends it. 0: none
  uint64_t tenant_tag = 0;         // whose quota pays (kv_format.md §5)
};

struct EngineRequest {
  std::string request_id;  // unique among live requests
  // Counted up by its owner whenever it is dispatched again: with request_id it names one run.
  uint32_t attempt = 1;
  // Names the answer that a client may ask for again through another gateway (docs/cluster.md §4):
  // equal only for equal requests of one tenant. Empty: nobody will.
  std::string work_id;
  std::vector<int32_t> prompt_ids;
  SamplingParams sampling;
  int64_t deadline_us = 0;        // monotonic clock; 0 = none
  int64_t queue_deadline_us = 0;  // a request still waiting then ends; 0 = none
  // A request without a token then ends; until then it orders requests of a class, in place of
  // EngineOptions::ttft_target_us; 0 = none.
  int64_t first_token_deadline_us = 0;
  RequestClass request_class = RequestClass::kInteractive;
  // Who may share cached prefixes with this request: equal scopes share (kv_format.md §5).
  Sha256Digest cache_scope{};
  CacheRetention cache_retention;
  // Places in the prompt where later requests will part from it: window state is kept at the last
  // block edge at or below each, so that a hit up to there is exact and cheap. kMaxStateAt at most.
  std::vector<int32_t> state_at;
  // Of the prompt, as the gateway learned of it: for predictions only.
  StoredPrefix stored{};
  // Id of a live request with the same prompt whose computation of it this one shares, as choice 2
  // and on of n do; empty: none. Where sharing is not possible it runs like any other.
  std::string branch_of;
  // Null: any output. Shared by the choices of one request; never changes.
  std::shared_ptr<const OutputGrammar> grammar;
  std::optional<ResumePoint> resume;
  // Ends after the prompt with FinishReason::kHandedOff and the image of its state, unless the
  // first token ends it anyway.
  HandOffProfile hand_off = HandOffProfile::kNone;
  // With hand_off: complete blocks go there as soon as they are, and are left out of the image.
  std::shared_ptr<StateSink> state_sink;
  // Test hook: these ids are emitted instead of sampled ones; empty = off.
  std::vector<int32_t> forced_ids;
  // Test hook: drafts accepted by the n-th, n + 1-th, ... step that verifies, over and over,
  // whatever the target says; empty = off.
  std::vector<int32_t> forced_accepts;
};

// invalid_request when an id, a length or a parameter is out of range; nothing was allocated yet.
Status ValidateRequest(const EngineRequest& request, int32_t vocab_size, int32_t max_model_len);

enum class FinishReason : unsigned char {
  kNone,       // more events follow
  kStop,       // end token or a stop id
  kLength,     // max_tokens or the context is full
  kCancelled,  // Cancel was called
  kDeadline,
  kQueueTimeout,  // queue_deadline_us passed before the request started
  kGrammarError,  // the grammar of the request cannot be compiled or not be enforced
  kError,         // TokenEvent::status says why
  kHandedOff,     // EngineRequest::hand_off: another engine continues
  kQuarantined,   // it lost too many workers to be tried again; of a gateway, never on the wire
};

std::string_view FinishReasonName(FinishReason reason);

// Log-probabilities of one decided position (numerics.md §5.6).
struct TokenLogprobs {
  float logprob = 0.0f;
  std::vector<std::pair<int32_t, float>> top;  // rank order, num_top_logprobs entries
  float mass_below = 0.0f;  // share ranked after the chosen token, when asked for
};

// One step's outcome for one request. Events of a request arrive in order; exactly one, the last,
// has finish != kNone. The first event of a request with a grammar has no ids: it tells that the
// grammar is compiled, unless it is the last.
struct TokenEvent {
  int32_t start_index = 0;                     // index of ids[0] among the generated tokens
  std::vector<int32_t> ids;                    // the end token, when sampled, is the last id
  std::vector<TokenLogprobs> logprobs;         // one per id when asked for, else empty
  std::vector<TokenLogprobs> prompt_logprobs;  // first event only, when asked: positions 1..L-1
  FinishReason finish = FinishReason::kNone;
  int32_t stop_token_id = -1;  // the id that ended the request, if one did
  Status status;  // ok but for kError, kDeadline, kQueueTimeout, kGrammarError, kQuarantined
  RequestCounters counters;
  SequenceOrigin origin;
  // Of the state after the prompt (engine/state_image.h); with kHandedOff only.
  std::vector<std::byte> image;
  int32_t image_positions = 0;
  int32_t num_cut_rows = 0;  // at the end of the image
  int64_t wire_bytes = 0;    // of the messages that brought it here, and of the submission before
  // Held while the event waits to be sent: with too many alive the sequence is not run on.
  std::shared_ptr<void> credit;
};

// Receives the events of one request, in order, on one thread of the engine's choice. Must not
// block. Never called again after the event with finish != kNone, and destroyed right after it.
using TokenSink = std::function<void(TokenEvent)>;

}  // namespace deepinfer
