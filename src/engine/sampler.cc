#include "engine/sampler.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/philox.h"
#include "engine/verify.h"

namespace deepinfer {

namespace {

constexpr float kNegInf = -std::numeric_limits<float>::infinity();
constexpr float kGreedyBelow = 1e-5f;

bool Allows(std::span<const uint32_t> mask, int32_t id) {
  const size_t word = static_cast<size_t>(id) / 32;
  return word < mask.size() && (mask[word] >> (id % 32) & 1) != 0;
}

}  // namespace

// The logits of one row under edit. Single ids are changed in place and put back at the end; a row
// with few allowed ids or under a mask is built anew.
class Sampler::EditedRow {
 public:
  EditedRow(const SampleRow& in, const std::vector<int32_t>& allowed_ids, SamplerScratch* scratch)
      : logits_(in.logits), maxima_(in.maxima), changes_(&scratch->changes) {
    const std::span<const float> logits = in.logits;
    const std::span<const uint32_t> mask = in.mask;
    changes_->clear();
    if (!allowed_ids.empty()) {
      scratch->row.assign(logits.size(), kNegInf);
      for (const int32_t id : allowed_ids) {
        if (!mask.empty() && !Allows(mask, id)) continue;
        scratch->row[static_cast<size_t>(id)] = logits[static_cast<size_t>(id)];
      }
    } else if (!mask.empty()) {
      KeepLegal(logits, mask, &scratch->row);
    } else {
      return;
    }
    logits_ = scratch->row;
  }
  ~EditedRow() { Restore(); }
  EditedRow(const EditedRow&) = delete;
  EditedRow& operator=(const EditedRow&) = delete;

  float operator[](int32_t id) const { return logits_[static_cast<size_t>(id)]; }

  void Set(int32_t id, float value) {
    float& z = logits_[static_cast<size_t>(id)];
    changes_->emplace_back(id, z);
    if (!(value <= z)) maxima_ = {};
    z = value;
  }

  std::span<const float> logits() const { return logits_; }
  // No less than any logit of their block; empty: not known.
  std::span<const float> maxima() const { return maxima_; }

  // An id may have changed more than once: the oldest value comes last.
  void Restore() {
    for (auto it = changes_->rbegin(); it != changes_->rend(); ++it) {
      logits_[static_cast<size_t>(it->first)] = it->second;
    }
    changes_->clear();
  }

 private:
  static void KeepLegal(std::span<const float> logits, std::span<const uint32_t> mask,
                        std::vector<float>* row) {
    row->resize(logits.size());
    size_t id = 0;
    for (const uint32_t word : mask) {
      const size_t end = std::min(id + 32, logits.size());
      for (uint32_t bits = word; id < end; ++id, bits >>= 1) {
        (*row)[id] = (bits & 1) != 0 ? logits[id] : kNegInf;
      }
    }
    std::fill(row->begin() + static_cast<std::ptrdiff_t>(id), row->end(), kNegInf);
  }

  std::span<float> logits_;
  std::span<const float> maxima_;
  std::vector<std::pair<int32_t, float>>* changes_;
};

Sampler::Sampler(const SamplingParams& params, std::span<const int32_t> prompt_ids, int32_t end_id,
                 int32_t image_id)
    : params_(params),
      end_id_(end_id),
      image_id_(image_id),
      greedy_(params.temperature < kGreedyBelow),
      strict_(params.mode == SamplingMode::kStrict ||
              (params.mode == SamplingMode::kAuto && params.has_seed)),
      has_penalties_(params.repetition_penalty != 1.0f || params.frequency_penalty != 0.0f ||
                     params.presence_penalty != 0.0f) {
  if (params.repetition_penalty != 1.0f) {
    prompt_ids_.assign(prompt_ids.begin(), prompt_ids.end());
    std::sort(prompt_ids_.begin(), prompt_ids_.end());
    prompt_ids_.erase(std::unique(prompt_ids_.begin(), prompt_ids_.end()), prompt_ids_.end());
  }
  for (const auto& sequence : params.banned_sequences) {
    tail_length_ = std::max(tail_length_, sequence.size() - 1);
  }
}

template <typename BanId>
void Sampler::ForEachBan(std::span<const int32_t> pending, bool may_ban_ends, BanId ban) const {
  const int64_t num_tokens = num_committed_ + static_cast<int64_t>(pending.size());
  if (image_id_ >= 0) ban(image_id_);
  for (int32_t id : params_.banned_ids) ban(id);
  if (may_ban_ends && num_tokens < std::max(params_.min_tokens, params_.num_tokens_without_end)) {
    ban(end_id_);
  }
  if (may_ban_ends && num_tokens < params_.min_tokens) {
    for (int32_t id : params_.stop_token_ids) ban(id);
  }
  if (params_.banned_sequences.empty()) return;
  std::vector<int32_t> tail = output_tail_;
  tail.insert(tail.end(), pending.begin(), pending.end());
  for (const auto& sequence : params_.banned_sequences) {
    const std::span<const int32_t> before(sequence.data(), sequence.size() - 1);
    if (before.size() <= tail.size() && std::equal(before.rbegin(), before.rend(), tail.rbegin())) {
      ban(sequence.back());
    }
  }
}

bool Sampler::Ends(int32_t id) const {
  const auto& stops = params_.stop_token_ids;
  return id == end_id_ || std::find(stops.begin(), stops.end(), id) != stops.end();
}

bool Sampler::LeavesOnlyEnds(std::span<const uint32_t> mask) const {
  for (size_t word = 0; word < mask.size(); ++word) {
    for (uint32_t bits = mask[word]; bits != 0; bits &= bits - 1) {
      if (!Ends(static_cast<int32_t>(word * 32) + std::countr_zero(bits))) return false;
    }
  }
  return true;
}

bool Sampler::BansOnlyChoice(int32_t id) const {
  const auto& allowed = params_.allowed_ids;
  bool banned = !allowed.empty() && std::find(allowed.begin(), allowed.end(), id) == allowed.end();
  ForEachBan({}, !Ends(id), [&](int32_t other) { banned |= other == id; });
  return banned;
}

void Sampler::ApplyPenalties(std::span<const int32_t> pending, EditedRow* row) const {
  if (!has_penalties_) return;
  const auto repeat = [&](int32_t id) {
    const float z = (*row)[id];
    row->Set(id, z > 0.0f ? z / params_.repetition_penalty : z * params_.repetition_penalty);
  };
  const auto penalise = [&](int32_t id, int64_t count) {
    if (params_.repetition_penalty != 1.0f &&
        !std::binary_search(prompt_ids_.begin(), prompt_ids_.end(), id)) {
      repeat(id);
    }
    row->Set(id, (*row)[id] - (params_.frequency_penalty * static_cast<float>(count) +
                               params_.presence_penalty));
  };
  const auto num_pending = [&](int32_t id) {
    return std::count(pending.begin(), pending.end(), id);
  };
  for (int32_t id : prompt_ids_) repeat(id);
  for (const auto& [id, count] : output_counts_) penalise(id, count + num_pending(id));
  for (size_t i = 0; i < pending.size(); ++i) {
    const bool is_new =
        !output_counts_.contains(pending[i]) &&
        std::count(pending.begin(), pending.begin() + static_cast<std::ptrdiff_t>(i), pending[i]) ==
            0;
    if (is_new) penalise(pending[i], num_pending(pending[i]));
  }
}

void Sampler::Edit(const SampleRow& in, EditedRow* row) const {
  const int64_t num_tokens = num_committed_ + static_cast<int64_t>(in.pending.size());
  const bool bans_ends = num_tokens < std::max(params_.min_tokens, params_.num_tokens_without_end);
  ForEachBan(in.pending, bans_ends && (in.mask.empty() || !LeavesOnlyEnds(in.mask)),
             [row](int32_t id) { row->Set(id, kNegInf); });
  ApplyPenalties(in.pending, row);
  for (const auto& [id, bias] : params_.logit_bias) row->Set(id, (*row)[id] + bias);
}

int32_t Sampler::Draw(const LogitRow& row, uint64_t position, SamplerScratch* scratch) const {
  const bool filtered = !filters().off();
  if (filtered) {
    BuildSurvivors(row, filters(), &scratch->distribution, &scratch->survivors);
  }
  if (strict_) {
    return filtered ? DrawRace(scratch->survivors, params_.seed, position)
                    : DrawRace(row, params_.seed, position);
  }
  const uint64_t x = RandomBits(RandomBlock(params_.seed, position, RandomPurpose::kSample, 0));
  return filtered ? DrawCdf(scratch->survivors, x) : DrawCdf(row, x, &scratch->distribution);
}

Result<RowSummary> Sampler::Prepare(const SampleRow& in, EditedRow* row) const {
  Edit(in, row);
  const RowSummary summary = SummarizeRow(row->logits(), row->maxima());
  if (!summary.drawable) {
    row->Restore();
    if (!SummarizeRow(in.logits).drawable) return DataCorruption("a logit is NaN or infinite");
    return InvalidRequest("the penalties push a logit out of range");
  }
  if (summary.best < 0) return InvalidRequest("every token is banned at this position");
  return summary;
}

Result<SampledToken> Sampler::Sample(const SampleRow& in, SamplerScratch* scratch) const {
  SampledToken out;
  out.id = in.forced_id;
  const bool reports = params_.num_top_logprobs >= 0;
  if (out.id >= 0 && !reports) return out;
  EditedRow row(in, params_.allowed_ids, scratch);
  DI_ASSIGN_OR_RETURN(const RowSummary summary, Prepare(in, &row));
  if (out.id < 0 && greedy_) out.id = summary.best;
  if (out.id < 0) {
    out.id = Draw(MakeLogitRow(row.logits(), row.maxima(), summary, params_.temperature),
                  static_cast<uint64_t>(in.position), scratch);
  }
  if (!reports) return out;
  ReportEdited(row.logits(), summary, out.id, scratch, &out.logprobs);
  row.Restore();
  ReportRaw(in.logits, out.id, scratch, &out.logprobs);
  return out;
}

Status Sampler::Process(const SampleRow& in, SamplerScratch* scratch, Survivors* out) const {
  EditedRow row(in, params_.allowed_ids, scratch);
  DI_ASSIGN_OR_RETURN(const RowSummary summary, Prepare(in, &row));
  BuildSurvivors(MakeLogitRow(row.logits(), row.maxima(), summary, params_.temperature), filters(),
                 &scratch->distribution, out);
  return OkStatus();
}

Result<int32_t> Sampler::Draft(const SampleRow& in, int32_t k, SamplerScratch* scratch,
                               Survivors* q) const {
  if (!verifies_by_equality()) {
    DI_RETURN_IF_ERROR(Process(in, scratch, q));
    return DrawDraft(*q, params_.seed, static_cast<uint64_t>(in.position), k);
  }
  EditedRow row(in, params_.allowed_ids, scratch);
  DI_ASSIGN_OR_RETURN(const RowSummary summary, Prepare(in, &row));
  if (greedy_) return summary.best;
  return Draw(MakeLogitRow(row.logits(), row.maxima(), summary, params_.temperature),
              static_cast<uint64_t>(in.position), scratch);
}

void Sampler::Commit(int32_t id) {
  ++num_committed_;
  if (has_penalties_) ++output_counts_[id];
  if (tail_length_ == 0) return;
  if (output_tail_.size() == tail_length_) output_tail_.erase(output_tail_.begin());
  output_tail_.push_back(id);
}

}  // namespace deepinfer
