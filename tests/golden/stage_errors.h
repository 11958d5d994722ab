// Teacher forcing (numerics.md §4.2): a probe that compares every stage of a step with golden
// arrays and feeds the golden stream, mix, latents, scores and, in a mode that rounds, the experts
// back. Thread rule: test thread.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "golden/golden_file.h"
#include "golden/tiny_model.h"
#include "kernels/ops.h"
#include "kernels/reference/kv_rows.h"
#include "model/config.h"
#include "model/step.h"
#include "tensor/codecs.h"

namespace deepinfer {

// Limits of numerics.md §3 for a stage array.
inline constexpr double kRowTolerance = 1e-4;
inline constexpr double kShareAbove = 0.02;
inline constexpr double kMaxError = 5e-2;

inline std::string Key(std::string_view name, int32_t layer) {
  return layer < 0 ? std::string(name) : std::string(name) + "." + std::to_string(layer);
}

// Errors of the rows of one array, collected over the chunks of a run.
class RowErrors {
 public:
  void Add(const float* want, const float* got, int64_t n) {
    double max = 0;
    for (int64_t i = 0; i < n; ++i) {
      if (want[i] == got[i] && std::isinf(want[i])) continue;
      const double e = std::fabs(double{want[i]} - double{got[i]});
      max = std::isnan(max) || e <= max ? max : e;  // a NaN stays
      square_error_ += e * e;
      square_ += double{want[i]} * want[i];
    }
    max_ = std::isnan(max_) || max <= max_ ? max_ : max;
    above_ += !(max <= kRowTolerance);
    ++rows_;
  }
  // The limits of a mode that has recorded arrays of its own.
  void Check(const std::string& name) const {
    EXPECT_LE(max_, kMaxError) << name;
    EXPECT_LE(above_, kShareAbove * static_cast<double>(rows_)) << name << ", " << rows_ << " rows";
  }
  double max() const { return max_; }
  // Root of the summed squares of errors over that of the wanted values.
  double RelativeRms() const { return std::sqrt(square_error_ / square_); }

 private:
  double max_ = 0;
  double above_ = 0;
  double square_error_ = 0;
  double square_ = 0;
  int64_t rows_ = 0;
};

// Compares what the golden files hold and feeds the golden values back.
class ForcingProbe : public StepProbe {
 public:
  // run: the end-to-end file of the same prompt, with selections and router results. rounding:
  // what the mode rounds its stream to; golden values fed to it are rounded likewise.
  ForcingProbe(const GoldenFile& stages, const GoldenFile& run, const ModelConfig& config,
               Rounding rounding = Rounding::kNone)
      : stages_(stages), run_(run), config_(config), rounding_(rounding) {}

  // First position of the next step.
  void set_start(int64_t start) { start_ = start; }

  void Visit(std::string_view name, int32_t layer, float* data, int64_t rows,
             int64_t cols) override {
    if (name == "h_in") return ForceStream(layer, data, rows, cols);
    if (name == "pre_in") return ForceMix(layer, data, rows, cols);
    if (name == "gate_w" && rounding_ != Rounding::kNone) {
      return ForceExpertWeights(layer, data, rows * cols);
    }
    // Entries of a latent are those of closed groups; other arrays have a row per position.
    const int64_t first = name == "latent" ? start_ / config_.ratio(layer) : start_;
    const std::string key = Key(name, layer);
    const GoldenFile& file = name == "gate_w" ? run_ : stages_;
    if (!file.Has(key)) return;
    const std::vector<float>& want = Array(file, key);
    const int64_t width = Width(name, key, cols);
    const bool is_stream = Forces(name);
    for (int64_t r = 0; r < rows; ++r) {
      const float* row = want.data() + (first + r) * width;
      const int64_t n = std::min(cols, width);
      errors_[key].Add(row, data + r * cols, n);
      if (is_stream || name == "index_score") std::copy(row, row + n, data + r * cols);
    }
    if (is_stream) RoundStream(data, rows * cols);
  }

  void VisitSelection(std::string_view name, int32_t layer, int32_t* indices, int32_t* counts,
                      int64_t rows, int64_t width) override {
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t n = counts == nullptr ? width : counts[r];
      const std::vector<int32_t> got(indices + r * width, indices + r * width + n);
      // Scores were replaced by golden ones, so selections must be exact.
      if (name == "topk") {
        EXPECT_EQ(got, WantTopK(layer, start_ + r)) << layer << " row " << r;
      }
      if (name == "candidates") CheckCandidates(got, start_ + r);
      if (name == "gate_i") CountRouter(layer, got, r, indices + r * width);
    }
  }

  // By name of the array.
  const std::map<std::string, RowErrors>& errors() const { return errors_; }
  // Share of rows whose experts are others than the golden ones.
  double router_share() const { return router_differs_ / static_cast<double>(router_rows_); }

 private:
  const std::vector<float>& Array(const GoldenFile& file, const std::string& key) {
    auto [it, is_new] = arrays_.try_emplace(key);
    if (is_new) it->second = file.Floats(key);
    return it->second;
  }

  // A mode that rounds is fed every stage: else the flips of one quantiser's codes are the errors
  // of the next one's input.
  bool Forces(std::string_view name) const {
    if (name == "engram_out" || name == "latent") return true;
    if (rounding_ == Rounding::kNone) return false;
    return name == "attn_in" || name == "qr" || name == "q" || name == "o_rot" ||
           name == "attn_out" || name == "ffn_in" || name == "ffn_out" || name == "final_in";
  }

  // Golden scores cover the whole prompt, a step only what its rows see.
  int64_t Width(std::string_view name, const std::string& key, int64_t cols) const {
    if (name != "index_score") return cols;
    const int64_t length = static_cast<int64_t>(run_.Ints("tokens").size());
    return static_cast<int64_t>(arrays_.at(key).size()) / length;
  }

  void ForceStream(int32_t layer, float* data, int64_t rows, int64_t cols) {
    if (layer > 0) {
      const std::vector<float>& h = Array(stages_, Key("h", layer - 1));
      std::copy_n(h.data() + start_ * cols, rows * cols, data);
      RoundStream(data, rows * cols);
      return;
    }
    const std::vector<float>& embed = Array(stages_, "embed");
    const int64_t dim = config_.dim;
    for (int64_t r = 0; r < rows; ++r) {
      for (int32_t c = 0; c < config_.hc_mult; ++c) {
        std::copy_n(embed.data() + (start_ + r) * dim, dim, data + r * cols + c * dim);
      }
    }
  }

  void RoundStream(float* data, int64_t n) const {
    if (rounding_ == Rounding::kNone) return;
    for (int64_t i = 0; i < n; ++i) data[i] = RoundToBf16(data[i]);
  }

  void ForceMix(int32_t layer, float* data, int64_t rows, int64_t cols) {
    if (layer > 0) {
      const std::vector<float>& pre = Array(stages_, Key("pre", layer - 1));
      std::copy_n(pre.data() + start_ * cols, rows * cols, data);
      return;
    }
    for (int64_t r = 0; r < rows; ++r) {
      EXPECT_EQ(data[r * cols], 1.0f);
      for (int64_t c = 1; c < cols; ++c) EXPECT_EQ(data[r * cols + c], 0.0f);
    }
  }

  std::vector<int32_t> WantTopK(int32_t layer, int64_t position) const {
    const std::vector<int32_t> all = run_.Ints(Key("topk", layer));
    std::vector<int32_t> list;
    for (int64_t i = 0; i < config_.index_topk; ++i) {
      const int32_t j = all[static_cast<size_t>(position * config_.index_topk + i)];
      if (j >= 0) list.push_back(j);
    }
    return list;
  }

  // The golden mask marks every entry of a kept block, whether it is visible yet or not.
  void CheckCandidates(const std::vector<int32_t>& blocks, int64_t position) const {
    const std::vector<uint8_t> mask = run_.Get<uint8_t>("candidates");
    const int64_t length = static_cast<int64_t>(run_.Ints("tokens").size());
    std::vector<uint8_t> got(static_cast<size_t>(length), 0);
    for (int32_t b : blocks) {
      const int64_t begin = int64_t{b} * config_.candidate_block_size;
      for (int64_t j = begin; j < std::min(begin + config_.candidate_block_size, length); ++j) {
        got[static_cast<size_t>(j)] = 1;
      }
    }
    EXPECT_TRUE(std::equal(got.begin(), got.end(), mask.begin() + position * length)) << position;
  }

  // Rounding moves rows next to a tie to another expert, which says nothing about the experts'
  // arithmetic: weights are compared where the experts agree, and both are forced.
  void ForceExpertWeights(int32_t layer, float* data, int64_t n) {
    expert_weights_.assign(data, data + n);
    const std::vector<float>& want = Array(run_, Key("gate_w", layer));
    std::copy_n(want.data() + start_ * config_.experts_per_token, n, data);
  }

  void CountRouter(int32_t layer, const std::vector<int32_t>& got, int64_t row, int32_t* indices) {
    const std::vector<int32_t> want = run_.Ints(Key("gate_i", layer));
    const int64_t n = static_cast<int64_t>(got.size()), at = (start_ + row) * n;
    const bool same = std::equal(got.begin(), got.end(), want.begin() + at);
    ++router_rows_;
    router_differs_ += !same;
    if (rounding_ == Rounding::kNone) return;
    const std::string key = Key("gate_w", layer);
    if (same) errors_[key].Add(Array(run_, key).data() + at, expert_weights_.data() + row * n, n);
    std::copy_n(want.data() + at, n, indices);
  }

  const GoldenFile& stages_;
  const GoldenFile& run_;
  const ModelConfig& config_;
  Rounding rounding_;
  int64_t start_ = 0;
  std::map<std::string, std::vector<float>> arrays_;
  std::map<std::string, RowErrors> errors_;
  std::vector<float> expert_weights_;  // of the layer's rows, before they were replaced
  int64_t router_rows_ = 0;
  double router_differs_ = 0;
};

// Errors of every stage array of a teacher-forced run, by name; those of main_hidden, of window
// rows (win_kv) and of the entries and keys stored from golden latents (comp_kv, index_k) among
// them.
struct StageErrors {
  std::map<std::string, RowErrors> arrays;
  double router_share = 0;
};

// Window rows of a step, as the rings hold them after it.
inline void AddWindowRows(Model* model, const GoldenFile& stages, const SequenceStep& step,
                          StageErrors* errors) {
  const KvLayout& layout = model->layout();
  const int64_t d = model->config().head_dim;
  std::vector<float> row(static_cast<size_t>(d));
  for (int32_t layer = 0; layer < model->config().num_layers; ++layer) {
    const std::vector<float> want = stages.Floats(Key("win_kv", layer));
    const int32_t end = step.start + step.num_rows;
    for (int32_t p = std::max(step.start, end - layout.ring_rows); p < end; ++p) {
      const std::byte* stored =
          layout.Ring(step.slot, layer) + p % layout.ring_rows * layout.window_row_bytes;
      LoadWindowRow(layout.format, stored, d, row.data());
      errors->arrays[Key("win_kv", layer)].Add(want.data() + p * d, row.data(), d);
    }
  }
}

inline void AddEntries(Model* model, const GoldenFile& stages, const SequenceStep& step,
                       StageErrors* errors) {
  const ModelConfig& c = model->config();
  const KvLayout& layout = model->layout();
  for (size_t s = 0; s < c.kv_source_layers.size(); ++s) {
    const int32_t layer = c.kv_source_layers[s];
    const KvPages pages = layout.Pages(static_cast<int32_t>(s), step.pool, step.block_table);
    const std::vector<float> main = stages.Floats(Key("comp_kv", layer));
    const std::vector<float> keys = stages.Floats(Key("index_k", layer));
    std::vector<float> row(static_cast<size_t>(c.head_dim));
    const int64_t entries = static_cast<int64_t>(main.size()) / c.head_dim;
    EXPECT_EQ(entries, (step.start + step.num_rows) / c.ratio(layer));
    for (int64_t j = 0; j < entries; ++j) {
      LoadCompressedRow(layout.format, pages.MainRow(j), c.head_dim, row.data());
      errors->arrays[Key("comp_kv", layer)].Add(main.data() + j * c.head_dim, row.data(),
                                                c.head_dim);
      LoadIndexKey(layout.format, pages, j, c.index_head_dim, row.data());
      errors->arrays[Key("index_k", layer)].Add(keys.data() + j * c.index_head_dim, row.data(),
                                                c.index_head_dim);
    }
  }
}

// Runs the prompt of the files in steps of the given lengths.
inline StageErrors RunStages(Model* model, const GoldenFile& stages, const GoldenFile& run,
                             const std::vector<int32_t>& chunks, Rounding rounding) {
  const ModelConfig& config = model->config();
  const std::vector<int32_t> tokens = stages.Ints("tokens");
  EXPECT_EQ(tokens, run.Ints("tokens"));
  EXPECT_EQ(std::accumulate(chunks.begin(), chunks.end(), 0), static_cast<int>(tokens.size()));
  ForcingProbe probe(stages, run, config, rounding);
  TestSequence sequence(model, tokens);
  const std::vector<float> main_hidden = stages.Floats("main_hidden");
  const int64_t width = static_cast<int64_t>(config.dspark.target_layer_ids.size()) * config.dim;
  StageErrors errors;
  SequenceStep step;
  int32_t start = 0;
  for (int32_t n : chunks) {
    step = sequence.Rows(start, n);
    probe.set_start(start);
    StepOutput out;
    EXPECT_TRUE(model->Step({&step, 1}, true, &out, &probe).ok());
    EXPECT_TRUE(out.status[0].ok()) << out.status[0].ToString();
    EXPECT_EQ(out.main_hidden.size(), static_cast<size_t>(n * width));
    for (int64_t r = 0; r < n; ++r) {
      errors.arrays["main_hidden"].Add(main_hidden.data() + (start + r) * width,
                                       out.main_hidden.data() + r * width, width);
    }
    AddWindowRows(model, stages, step, &errors);
    start += n;
  }
  AddEntries(model, stages, step, &errors);
  errors.arrays.insert(probe.errors().begin(), probe.errors().end());
  errors.router_share = probe.router_share();
  return errors;
}

// The comparison is only worth something if it saw the arrays.
inline void ExpectEveryStage(const StageErrors& errors, const GoldenFile& stages,
                             const ModelConfig& config) {
  for (const char* name :
       {"attn_in", "attn_out", "ffn_in", "ffn_out", "h", "pre", "gate_w", "win_kv"}) {
    for (int32_t l = 0; l < config.num_layers; ++l) {
      EXPECT_TRUE(errors.arrays.contains(Key(name, l))) << name << " " << l;
    }
  }
  std::vector<std::string> names = {"embed",        "final_in",  "final_normed",  "engram_out.1",
                                    "engram_out.4", "latent.2",  "latent.4",      "latent.5",
                                    "comp_kv.2",    "index_k.5", "index_score.7", "main_hidden"};
  if (stages.Has("q.0")) {
    for (const char* name : {"qr.3", "q.3", "o_rot.3", "hc_comb.attn.3", "hc_comb.ffn.3"}) {
      names.push_back(name);
    }
  }
  for (const std::string& name : names) EXPECT_TRUE(errors.arrays.contains(name)) << name;
}

}  // namespace deepinfer
