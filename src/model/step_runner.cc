#include "model/step_runner.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace deepinfer {

StepRunner::StepRunner(const StepContext& context, std::span<const SequenceStep> sequences,
                       bool want_main_hidden, StepProbe* probe)
    : context_(context),
      ops_(context.ops),
      config_(*context.config),
      linears_(context.ops, context.config, context.arithmetic, context.workspace),
      probe_(probe),
      want_main_hidden_(want_main_hidden),
      selections_(context.config->index_source_layers.size()) {
  int64_t decoder_rows = 0;
  for (const SequenceStep& s : sequences) {
    const int64_t rows = s.cut_in == nullptr ? s.num_rows : 0;
    runs_.push_back({&s, num_rows_, rows, s.start, OkStatus()});
    num_rows_ += rows;
    decoder_rows += s.num_rows;
  }
  most_rows_ = std::max(num_rows_, decoder_rows);
}

HcShape StepRunner::Hc() const {
  return {config_.hc_mult, config_.dim, config_.hc_sinkhorn_iters, config_.hc_eps, config_.rms_eps};
}

void StepRunner::Run(StepOutput* out) {
  out->main_hidden.clear();
  out->status.clear();
  out->expert_rows.assign(static_cast<size_t>(int64_t{config_.num_layers} * config_.num_experts),
                          0);
  expert_rows_ = out->expert_rows.data();
  Embed();
  for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
    // At the cut rows may come in.
    if (num_rows_ > 0 || layer == config_.decoder_start()) RunLayer(layer);
  }
  // Without a row the weights of the decoder are not asked for, which may not be there.
  if (num_rows_ > 0) {
    RunHead(out);
  } else {
    out->logits.clear();
    out->logit_maxima.clear();
  }
  for (const RowRun& run : runs_) out->status.push_back(run.status);
}

void StepRunner::Embed() {
  std::vector<int32_t> ids, positions;
  std::vector<uint8_t> is_image;
  for (const RowRun& run : runs_) {
    for (int64_t p = run.start; p < run.start + run.num_rows; ++p) {
      ids.push_back(run.sequence->tokens[p]);
      positions.push_back(static_cast<int32_t>(p));
      is_image.push_back(run.sequence->is_image == nullptr ? 0 : run.sequence->is_image[p]);
    }
  }
  const int64_t n = config_.hc_mult;
  int32_t* device_ids = context_.workspace->Array<int32_t>(num_rows_);
  positions_ = context_.workspace->Array<int32_t>(num_rows_);
  is_image_ = context_.workspace->Array<uint8_t>(num_rows_);
  ops_->CopyToDevice(device_ids, ids.data(), num_rows_ * 4);
  ops_->CopyToDevice(positions_, positions.data(), num_rows_ * 4);
  ops_->CopyToDevice(is_image_, is_image.data(), num_rows_);

  float* x = Floats(num_rows_ * config_.dim);
  ops_->Embed(num_rows_, device_ids, context_.weights->embed, config_.dim, x);
  Probe("embed", -1, x, num_rows_, config_.dim);
  h_ = Floats(most_rows_ * n * config_.dim);
  h_next_ = Floats(most_rows_ * n * config_.dim);
  u_ = Floats(most_rows_ * config_.dim);
  ops_->Replicate(num_rows_, x, config_.hc_mult, config_.dim, h_);
  // The first site reads copy 0 alone.
  std::vector<float> one_hot(static_cast<size_t>(num_rows_ * n), 0.0f);
  for (int64_t t = 0; t < num_rows_; ++t) one_hot[static_cast<size_t>(t * n)] = 1.0f;
  pre_ = Floats(most_rows_ * n);
  for (Selection& s : selections_) s = NewSelection(config_.index_topk);
  candidates_ = NewSelection(config_.candidate_topk_blocks);
  ops_->CopyToDevice(pre_, one_hot.data(), num_rows_ * n * 4);
}

void StepRunner::RunLayer(int32_t layer) {
  const BlockWeights& w = Weights(layer).block;
  const HcShape hc = Hc();
  const int64_t n = hc.num_copies, dim = hc.dim;
  Probe("h_in", layer, h_, num_rows_, n * dim);
  Probe("pre_in", layer, pre_, num_rows_, n);
  RunEngram(layer);
  AttentionInput(layer);
  // Global KV depends on the encoder only, so at the cut every row publishes before the rows
  // that are not kept leave the batch (model.md §3).
  if (config_.IsKvSource(layer)) PublishEntries(layer);
  if (layer == config_.decoder_start()) KeepDecoderRows(layer);
  if (num_rows_ == 0) return;
  RecordTarget(layer);

  // What crosses to the next layer was taken before this scope.
  const Workspace::Scope scope(context_.workspace);
  Probe("attn_in", layer, u_, num_rows_, dim);

  float* pre = Floats(num_rows_ * n);
  float* post = Floats(num_rows_ * n);
  float* comb = Floats(num_rows_ * n * n);
  float* o = Floats(num_rows_ * dim);
  ops_->HcMixes(num_rows_, h_, w.hc_attn, hc, pre, post, comb);
  Probe("hc_pre.attn", layer, pre, num_rows_, n);
  Probe("hc_post.attn", layer, post, num_rows_, n);
  Probe("hc_comb.attn", layer, comb, num_rows_, n * n);
  RunAttention(layer, o);
  Probe("attn_out", layer, o, num_rows_, dim);
  ops_->HcPost(num_rows_, o, h_, post, comb, hc, stream(), h_next_);

  ops_->HcPre(num_rows_, h_next_, pre, hc, stream(), u_);
  ops_->RmsNorm(num_rows_, u_, w.ffn_norm, dim, config_.rms_eps, stream(), u_);
  Probe("ffn_in", layer, u_, num_rows_, dim);
  ops_->HcMixes(num_rows_, h_next_, w.hc_ffn, hc, pre_, post, comb);
  Probe("hc_pre.ffn", layer, pre_, num_rows_, n);
  Probe("hc_post.ffn", layer, post, num_rows_, n);
  Probe("hc_comb.ffn", layer, comb, num_rows_, n * n);
  RunMoe(layer, o);
  Probe("ffn_out", layer, o, num_rows_, dim);
  ops_->HcPost(num_rows_, o, h_next_, post, comb, hc, stream(), h_);
  Probe("h", layer, h_, num_rows_, n * dim);
  Probe("pre", layer, pre_, num_rows_, n);
}

void StepRunner::AttentionInput(int32_t layer) {
  ops_->HcPre(num_rows_, h_, pre_, Hc(), stream(), u_);
  ops_->RmsNorm(num_rows_, u_, Weights(layer).block.attn_norm, config_.dim, config_.rms_eps,
                stream(), u_);
}

int64_t StepRunner::NumEncoderRows(const RowRun& run) {
  return std::clamp<int64_t>(run.sequence->decoder_from - run.start, 0, run.num_rows);
}

void StepRunner::SendCutRows(const RowRun& run) {
  const int64_t n = config_.hc_mult, width = n * config_.dim;
  float* to = run.sequence->cut_out;
  for (int64_t i = NumEncoderRows(run); i < run.num_rows; ++i, to += width + n) {
    ops_->CopyToHost(to, h_ + (run.first_row + i) * width, width * 4);
    ops_->CopyToHost(to + width, pre_ + (run.first_row + i) * n, n * 4);
  }
}

void StepRunner::InsertCutRows() {
  const int64_t n = config_.hc_mult, width = n * config_.dim;
  float* const pre = Floats(most_rows_ * n);
  uint8_t* const is_image = context_.workspace->Array<uint8_t>(most_rows_);
  float* const hidden =
      main_hidden_ == nullptr ? nullptr : Floats(most_rows_ * std::max<int64_t>(1, TargetsWidth()));
  std::vector<int32_t> positions;
  int64_t rows = 0;
  for (RowRun& run : runs_) {
    const SequenceStep& s = *run.sequence;
    if (s.cut_in == nullptr) {
      ops_->CopyOnDevice(h_next_ + rows * width, h_ + run.first_row * width,
                         run.num_rows * width * 4);
      ops_->CopyOnDevice(pre + rows * n, pre_ + run.first_row * n, run.num_rows * n * 4);
      ops_->CopyOnDevice(is_image + rows, is_image_ + run.first_row, run.num_rows);
      if (hidden != nullptr) {
        ops_->CopyOnDevice(hidden + rows * TargetsWidth(),
                           main_hidden_ + run.first_row * TargetsWidth(),
                           run.num_rows * TargetsWidth() * 4);
      }
    } else {
      run.num_rows = s.num_rows;
      const float* from = s.cut_in;
      for (int64_t i = 0; i < run.num_rows; ++i, from += width + n) {
        ops_->CopyToDevice(h_next_ + (rows + i) * width, from, width * 4);
        ops_->CopyToDevice(pre + (rows + i) * n, from + width, n * 4);
        const uint8_t flag = s.is_image == nullptr ? 0 : s.is_image[s.start + i];
        ops_->CopyToDevice(is_image + rows + i, &flag, 1);
      }
    }
    for (int64_t i = 0; i < run.num_rows; ++i) {
      positions.push_back(run.start + static_cast<int32_t>(i));
    }
    run.first_row = rows;
    rows += run.num_rows;
  }
  std::swap(h_, h_next_);
  pre_ = pre;
  is_image_ = is_image;
  main_hidden_ = hidden;
  positions_ = context_.workspace->Array<int32_t>(rows);
  ops_->CopyToDevice(positions_, positions.data(), rows * 4);
  num_rows_ = rows;
}

void StepRunner::KeepDecoderRows(int32_t layer) {
  const HcShape hc = Hc();
  in_decoder_ = true;
  int64_t rows = 0;
  bool inserts = false;
  const int64_t h_row = hc.num_copies * hc.dim * 4, pre_row = int64_t{hc.num_copies} * 4;
  const auto move = [&](auto* base, int64_t from, int64_t count, int64_t row_bytes) {
    auto* bytes = reinterpret_cast<std::byte*>(base);
    // Rows only move towards the front, one at a time, so overlap is harmless.
    for (int64_t i = 0; i < count && from != rows; ++i) {
      ops_->CopyOnDevice(bytes + (rows + i) * row_bytes, bytes + (from + i) * row_bytes, row_bytes);
    }
  };
  for (RowRun& run : runs_) {
    if (run.sequence->cut_out != nullptr) SendCutRows(run);
    const int64_t skip = run.sequence->cut_out == nullptr ? NumEncoderRows(run) : run.num_rows;
    const int64_t from = run.first_row + skip;
    run.start += static_cast<int32_t>(skip);
    run.num_rows -= skip;
    move(h_, from, run.num_rows, h_row);
    move(pre_, from, run.num_rows, pre_row);
    move(u_, from, run.num_rows, hc.dim * 4);
    move(positions_, from, run.num_rows, 4);
    move(is_image_, from, run.num_rows, 1);
    if (main_hidden_ != nullptr) move(main_hidden_, from, run.num_rows, TargetsWidth() * 4);
    run.first_row = rows;
    rows += run.num_rows;
    inserts = inserts || run.sequence->cut_in != nullptr;
  }
  num_rows_ = rows;
  if (!inserts) return;
  InsertCutRows();
  AttentionInput(layer);
}

void StepRunner::RecordTarget(int32_t layer) {
  const auto& targets = config_.dspark.target_layer_ids;
  const auto it = std::find(targets.begin(), targets.end(), layer);
  if (!want_main_hidden_ || it == targets.end()) return;
  if (main_hidden_ == nullptr) main_hidden_ = Floats(num_rows_ * TargetsWidth());
  ops_->HcMean(num_rows_, h_, Hc(), stream(), main_hidden_ + (it - targets.begin()) * config_.dim,
               TargetsWidth());
}

void StepRunner::RunHead(StepOutput* out) {
  const HcShape hc = Hc();
  const int64_t dim = hc.dim, vocab = config_.vocab_size;
  float* y = Floats(num_rows_ * dim);
  ops_->HcPre(num_rows_, h_, pre_, hc, stream(), y);
  Probe("final_in", -1, y, num_rows_, dim);
  ops_->RmsNorm(num_rows_, y, context_.weights->norm, dim, config_.rms_eps, stream(), y);
  Probe("final_normed", -1, y, num_rows_, dim);
  if (main_hidden_ != nullptr) {
    out->main_hidden.resize(static_cast<size_t>(num_rows_ * TargetsWidth()));
    ops_->CopyToHost(out->main_hidden.data(), main_hidden_,
                     static_cast<int64_t>(out->main_hidden.size()) * 4);
  }
  int64_t total = 0;
  for (const RowRun& run : runs_) {
    const int64_t rows = NumLogitRows(run);
    const int64_t first = run.first_row + run.num_rows - rows;
    for (int64_t i = 0; i < rows && first != total; ++i) {
      ops_->CopyOnDevice(y + (total + i) * dim, y + (first + i) * dim, dim * 4);
    }
    total += rows;
  }
  ComputeLogits(y, total, out);
  int64_t row = 0;
  const int64_t num_maxima = NumMaxima(vocab);
  for (RowRun& run : runs_) {
    const int64_t rows = NumLogitRows(run);
    const auto first = out->logit_maxima.begin() + row * num_maxima;
    const bool finite = std::none_of(first, first + rows * num_maxima,
                                     [](float largest) { return std::isnan(largest); });
    if (run.status.ok() && !finite) run.status = NotFinite("logits");
    row += rows;
  }
}

void StepRunner::ComputeLogits(const float* y, int64_t num_rows, StepOutput* out) {
  const WeightMatrix& head = context_.weights->head;
  const int64_t num_logits = num_rows * config_.vocab_size;
  const int64_t num_maxima = num_rows * NumMaxima(config_.vocab_size);
  out->logits.resize(static_cast<size_t>(num_logits));
  out->logit_maxima.resize(static_cast<size_t>(num_maxima));
  const bool direct = ops_->uses_host_memory();
  float* logits = direct ? out->logits.data() : Floats(num_logits);
  float* maxima = direct ? out->logit_maxima.data() : Floats(num_maxima);
  if (stream() == Rounding::kBf16) {
    ops_->Head(num_rows, y, head, logits, maxima);
  } else {
    ops_->LinearF32(num_rows, y, head, logits);
    ops_->BlockMaxima(num_rows, logits, config_.vocab_size, maxima);
  }
  if (direct) return;
  ops_->CopyToHost(out->logits.data(), logits, num_logits * 4);
  ops_->CopyToHost(out->logit_maxima.data(), maxima, num_maxima * 4);
}

int64_t StepRunner::NumLogitRows(const RowRun& run) {
  const int64_t first = run.sequence->logits_from - run.start;
  return run.num_rows - std::clamp<int64_t>(first, 0, run.num_rows);
}

StepRunner::Selection StepRunner::NewSelection(int32_t width) {
  return {context_.workspace->Array<int32_t>(most_rows_ * width),
          context_.workspace->Array<int32_t>(most_rows_), width};
}

Status StepRunner::NotFinite(std::string_view what) {
  return DataCorruption(std::string(what) +
                        " became NaN or infinite: the weights or the cache are damaged");
}

void StepRunner::CheckFinite(const float* x, int64_t cols, std::string_view what) {
  for (RowRun& run : runs_) {
    if (run.status.ok() && !ops_->AllFinite(run.num_rows * cols, x + run.first_row * cols)) {
      run.status = NotFinite(what);
    }
  }
}

void StepRunner::Probe(std::string_view name, int32_t layer, float* data, int64_t rows,
                       int64_t cols) {
  if (probe_ == nullptr) return;
  std::vector<float> host(static_cast<size_t>(rows * cols));
  ops_->CopyToHost(host.data(), data, rows * cols * 4);
  probe_->Visit(name, layer, host.data(), rows, cols);
  ops_->CopyToDevice(data, host.data(), rows * cols * 4);
}

void StepRunner::ProbeSelection(std::string_view name, int32_t layer, int32_t* indices,
                                int32_t* counts, int64_t rows, int64_t width) {
  if (probe_ == nullptr) return;
  std::vector<int32_t> host(static_cast<size_t>(rows * width));
  std::vector<int32_t> host_counts(counts == nullptr ? 0 : static_cast<size_t>(rows));
  ops_->CopyToHost(host.data(), indices, rows * width * 4);
  if (counts != nullptr) ops_->CopyToHost(host_counts.data(), counts, rows * 4);
  probe_->VisitSelection(name, layer, host.data(), counts == nullptr ? nullptr : host_counts.data(),
                         rows, width);
  ops_->CopyToDevice(indices, host.data(), rows * width * 4);
  if (counts != nullptr) ops_->CopyToDevice(counts, host_counts.data(), rows * 4);
}

}  // namespace deepinfer
