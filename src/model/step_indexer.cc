// Index queries, scores and selections (model.md §8).

#include <algorithm>
#include <cmath>

#include "model/step_runner.h"

namespace deepinfer {

namespace {
// Bound of the score buffer; more rows are scored in groups, which changes no bits.
constexpr int64_t kScoreBufferBytes = int64_t{64} << 20;
}  // namespace

void StepRunner::RunIndexer(int32_t layer, float* q) {
  const IndexerWeights& w = Weights(layer).indexer;
  const int64_t t = num_rows_, heads = config_.index_num_heads, d = config_.index_head_dim;
  const size_t index = static_cast<size_t>(config_.IndexSourceOf(layer));
  const bool is_candidate_source = layer == config_.candidate_source_layer;

  const Selection& selection = selections_[index];
  const Workspace::Scope scope(context_.workspace);
  ops_->Rope(t, q, config_.index_num_heads, config_.index_head_dim, positions_, Rope(layer), false,
             stream());
  if (context_.layout->format == KvFormat::kQuantized) ops_->QdqFp4Group32(t * heads, q, d);
  float* weights = Floats(t * heads);
  linears_.Bf16(u_, t, w.weights_proj, stream(), weights);
  ops_->Scale(t * heads,
              static_cast<float>(1.0 / std::sqrt(static_cast<double>(d)) /
                                 std::sqrt(static_cast<double>(heads))),
              weights);
  CheckFinite(q, heads * d, "index queries");
  CheckFinite(weights, heads, "index weights");

  SetIndexRows(layer);
  int32_t longest = 1;
  for (const IndexRow& r : index_rows_) longest = std::max(longest, r.num_visible);
  const int64_t group = std::max<int64_t>(1, kScoreBufferBytes / 4 / longest);
  for (int64_t first = 0; first < t; first += group) {
    const int64_t count = std::min(group, t - first);
    ScoreAndSelect(layer, {index_rows_.data() + first, static_cast<size_t>(count)},
                   q + first * heads * d, weights + first * heads, first);
  }
  ProbeSelection("topk", layer, selection.indices, selection.counts, t, selection.width);
  if (is_candidate_source) {
    ProbeSelection("candidates", layer, candidates_.indices, candidates_.counts, t,
                   candidates_.width);
  }
}

void StepRunner::SetIndexRows(int32_t layer) {
  const int32_t ratio = config_.ratio(layer), source = config_.KvSourceOf(layer);
  // Layers behind the candidate source search its blocks only; the source itself searches all.
  const bool restricted = layer > config_.candidate_source_layer;
  index_rows_.clear();
  for (const RowRun& run : runs_) {
    const SequenceStep& s = *run.sequence;
    for (int64_t i = 0; i < run.num_rows; ++i) {
      IndexRow row;
      row.pages = context_.layout->Pages(source, s.pool, s.block_table);
      row.num_visible = (run.start + static_cast<int32_t>(i) + 1) / ratio;
      if (restricted) {
        row.candidate_blocks = candidates_.indices + (run.first_row + i) * candidates_.width;
        row.num_candidate_blocks = candidates_.counts + run.first_row + i;
      }
      index_rows_.push_back(row);
    }
  }
}

void StepRunner::ScoreAndSelect(int32_t layer, std::span<const IndexRow> rows, const float* q,
                                const float* w, int64_t first_row) {
  const Workspace::Scope scope(context_.workspace);
  const IndexShape shape{context_.layout->format, config_.index_num_heads,
                         config_.index_head_dim,  config_.candidate_block_size,
                         config_.index_topk,      config_.candidate_topk_blocks};
  int32_t stride = 1;
  for (const IndexRow& r : rows) stride = std::max(stride, r.num_visible);
  float* scores = Floats(static_cast<int64_t>(rows.size()) * stride);
  ops_->IndexScores(rows, q, w, shape, stride, scores);
  Probe("index_score", layer, scores, static_cast<int64_t>(rows.size()), stride);
  CheckScores(scores, stride, first_row, static_cast<int64_t>(rows.size()));
  if (layer == config_.candidate_source_layer) {
    ops_->SelectCandidates(rows, scores, stride, shape,
                           candidates_.indices + first_row * candidates_.width,
                           candidates_.counts + first_row);
  }
  const Selection& selection = selections_[static_cast<size_t>(config_.IndexSourceOf(layer))];
  ops_->SelectTopK(rows, scores, stride, shape, selection.indices + first_row * selection.width,
                   selection.counts + first_row);
}

// A damaged key makes its own scores NaN, which the selection would silently drop.
void StepRunner::CheckScores(const float* scores, int64_t stride, int64_t first_row,
                             int64_t num_rows) {
  for (RowRun& run : runs_) {
    const int64_t begin = std::max(run.first_row, first_row);
    const int64_t end = std::min(run.first_row + run.num_rows, first_row + num_rows);
    if (begin >= end || !run.status.ok()) continue;
    if (!ops_->ScoresFinite((end - begin) * stride, scores + (begin - first_row) * stride)) {
      run.status = NotFinite("index scores");
    }
  }
}

}  // namespace deepinfer
