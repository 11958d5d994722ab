// Teacher-forced stages (numerics.md §4.2): every layer gets the golden stream, mix, latents,
// scores and top-k lists, so a deviation names the operator that made it.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "golden/golden_file.h"
#include "golden/tiny_model.h"
#include "kernels/reference/kv_rows.h"

namespace deepinfer {
namespace {

// Limits of numerics.md §3 for a stage array.
constexpr double kRowTolerance = 1e-4;
constexpr double kShareAbove = 0.02;
constexpr double kMaxError = 5e-2;

std::string Key(std::string_view name, int32_t layer) {
  return layer < 0 ? std::string(name) : std::string(name) + "." + std::to_string(layer);
}

// Largest error of each row, collected over the chunks of a run.
class RowErrors {
 public:
  void Add(double error) {
    max_ = error <= max_ ? max_ : error;  // a NaN stays
    above_ += !(error <= kRowTolerance);
    ++rows_;
  }
  void Check(const std::string& name) const {
    EXPECT_LE(max_, kMaxError) << name;
    EXPECT_LE(above_, kShareAbove * static_cast<double>(rows_)) << name << ", " << rows_ << " rows";
  }

 private:
  double max_ = 0;
  double above_ = 0;
  int64_t rows_ = 0;
};

double RowError(const float* want, const float* got, int64_t n) {
  double max = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (want[i] == got[i]) continue;  // equal infinities too
    const double e = std::fabs(double{want[i]} - double{got[i]});
    max = e <= max ? max : e;
  }
  return max;
}

// Compares what the golden files hold and feeds the golden values back.
class ForcingProbe : public StepProbe {
 public:
  // run: the end-to-end file of the same prompt, with selections and router results.
  ForcingProbe(const GoldenFile& stages, const GoldenFile& run, const ModelConfig& config)
      : stages_(stages), run_(run), config_(config) {}

  // First position of the next step.
  void set_start(int64_t start) { start_ = start; }

  void Visit(std::string_view name, int32_t layer, float* data, int64_t rows,
             int64_t cols) override {
    if (name == "h_in") return ForceStream(layer, data, rows, cols);
    if (name == "pre_in") return ForceMix(layer, data, rows, cols);
    // Entries of a latent are those of closed groups; other arrays have a row per position.
    const int64_t first = name == "latent" ? start_ / config_.ratio(layer) : start_;
    const std::string key = Key(name, layer);
    const GoldenFile& file = name == "gate_w" ? run_ : stages_;
    if (!file.Has(key)) return;
    const std::vector<float>& want = Array(file, key);
    const int64_t width = Width(name, key, cols);
    for (int64_t r = 0; r < rows; ++r) {
      const float* row = want.data() + (first + r) * width;
      errors_[key].Add(RowError(row, data + r * cols, std::min(cols, width)));
      const bool force = name == "engram_out" || name == "latent" || name == "index_score";
      if (force) std::copy(row, row + std::min(cols, width), data + r * cols);
    }
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
      if (name == "gate_i") CountRouter(layer, got, start_ + r);
    }
  }

  void CheckAll() const {
    for (const auto& [key, errors] : errors_) errors.Check(key);
    EXPECT_LE(router_differs_, kShareAbove * router_rows_);
  }
  // Names of all compared arrays, to see that none was skipped.
  std::set<std::string> compared() const {
    std::set<std::string> names;
    for (const auto& [key, errors] : errors_) names.insert(key);
    return names;
  }

 private:
  const std::vector<float>& Array(const GoldenFile& file, const std::string& key) {
    auto [it, is_new] = arrays_.try_emplace(key);
    if (is_new) it->second = file.Floats(key);
    return it->second;
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

  void CountRouter(int32_t layer, const std::vector<int32_t>& got, int64_t position) {
    const std::vector<int32_t> want = run_.Ints(Key("gate_i", layer));
    const int64_t n = static_cast<int64_t>(got.size());
    ++router_rows_;
    router_differs_ += !std::equal(got.begin(), got.end(), want.begin() + position * n);
  }

  const GoldenFile& stages_;
  const GoldenFile& run_;
  const ModelConfig& config_;
  int64_t start_ = 0;
  std::map<std::string, std::vector<float>> arrays_;
  std::map<std::string, RowErrors> errors_;
  int64_t router_rows_ = 0;
  double router_differs_ = 0;
};

struct StagesCase {
  const char* stages;
  const char* run;
  Numerics numerics;
  std::vector<int32_t> chunks;
};

class Stages : public ::testing::TestWithParam<StagesCase> {
 protected:
  Stages()
      : stages_(GetParam().stages),
        run_(GetParam().run),
        model_({"tiny_fp8fp4", GetParam().numerics}),
        tokens_(stages_.Ints("tokens")) {}

  // Window rows [start, start + n) of every layer, as the ring holds them after a step.
  void CheckWindowRows(const SequenceStep& step, std::map<int32_t, RowErrors>* errors) {
    const KvLayout& layout = model_->layout();
    const int64_t d = model_->config().head_dim;
    std::vector<float> row(static_cast<size_t>(d));
    for (int32_t layer = 0; layer < model_->config().num_layers; ++layer) {
      const std::vector<float> want = stages_.Floats(Key("win_kv", layer));
      const int32_t end = step.start + step.num_rows;
      for (int32_t p = std::max(step.start, end - layout.ring_rows); p < end; ++p) {
        const std::byte* stored =
            layout.Ring(step.slot, layer) + p % layout.ring_rows * layout.window_row_bytes;
        LoadWindowRow(layout.format, stored, d, row.data());
        (*errors)[layer].Add(RowError(want.data() + p * d, row.data(), d));
      }
    }
  }

  // Stored entries and index keys, made from golden latents: equal bit for bit.
  void CheckEntries(const SequenceStep& step) {
    const ModelConfig& c = model_->config();
    const KvLayout& layout = model_->layout();
    for (size_t s = 0; s < c.kv_source_layers.size(); ++s) {
      const int32_t layer = c.kv_source_layers[s];
      const KvPages pages = layout.Pages(static_cast<int32_t>(s), step.pool, step.block_table);
      const std::vector<float> main = stages_.Floats(Key("comp_kv", layer));
      const std::vector<float> keys = stages_.Floats(Key("index_k", layer));
      std::vector<float> row(static_cast<size_t>(c.head_dim));
      const int64_t entries = static_cast<int64_t>(main.size()) / c.head_dim;
      ASSERT_EQ(entries, static_cast<int64_t>(tokens_.size()) / c.ratio(layer));
      for (int64_t j = 0; j < entries; ++j) {
        LoadCompressedRow(layout.format, pages.MainRow(j), c.head_dim, row.data());
        EXPECT_EQ(RowError(main.data() + j * c.head_dim, row.data(), c.head_dim), 0.0)
            << "comp_kv." << layer << " entry " << j;
        LoadIndexKey(layout.format, pages, j, c.index_head_dim, row.data());
        EXPECT_EQ(RowError(keys.data() + j * c.index_head_dim, row.data(), c.index_head_dim), 0.0)
            << "index_k." << layer << " entry " << j;
      }
    }
  }

  GoldenFile stages_;
  GoldenFile run_;
  TinyModel model_;
  std::vector<int32_t> tokens_;
};

TEST_P(Stages, EveryStageMatchesWhenFedGoldenInputs) {
  ASSERT_EQ(tokens_, run_.Ints("tokens"));
  const ModelConfig& config = model_->config();
  ForcingProbe probe(stages_, run_, config);
  TestSequence sequence(model_.get(), tokens_);
  const std::vector<float> main_hidden = stages_.Floats("main_hidden");
  RowErrors hidden_errors;
  std::map<int32_t, RowErrors> window_errors;
  SequenceStep step;
  int32_t start = 0;
  for (int32_t n : GetParam().chunks) {
    step = sequence.Rows(start, n);
    probe.set_start(start);
    StepOutput out;
    ASSERT_TRUE(model_->Step({&step, 1}, true, &out, &probe).ok());
    ASSERT_TRUE(out.status[0].ok()) << out.status[0].ToString();
    const int64_t width = static_cast<int64_t>(config.dspark.target_layer_ids.size()) * config.dim;
    ASSERT_EQ(out.main_hidden.size(), static_cast<size_t>(n * width));
    for (int64_t r = 0; r < n; ++r) {
      hidden_errors.Add(RowError(main_hidden.data() + (start + r) * width,
                                 out.main_hidden.data() + r * width, width));
    }
    CheckWindowRows(step, &window_errors);
    start += n;
  }
  ASSERT_EQ(start, static_cast<int32_t>(tokens_.size()));
  probe.CheckAll();
  hidden_errors.Check("main_hidden");
  for (const auto& [layer, errors] : window_errors) errors.Check(Key("win_kv", layer));
  CheckEntries(step);

  // The comparison is only worth something if it saw the arrays.
  const std::set<std::string> compared = probe.compared();
  for (const char* name : {"attn_in", "attn_out", "ffn_in", "ffn_out", "h", "pre", "gate_w"}) {
    for (int32_t l = 0; l < config.num_layers; ++l) EXPECT_TRUE(compared.contains(Key(name, l)));
  }
  for (const char* name : {"embed", "final_in", "final_normed", "engram_out.1", "engram_out.4",
                           "latent.2", "latent.4", "latent.5", "index_score.7"}) {
    EXPECT_TRUE(compared.contains(name)) << name;
  }
  if (stages_.Has("q.0")) {
    for (const char* name : {"qr.3", "q.3", "o_rot.3", "hc_comb.attn.3", "hc_comb.ffn.3"}) {
      EXPECT_TRUE(compared.contains(name)) << name;
    }
  }
}

// The whole prompt in one step, and cut where a ratio-2 group stays open.
INSTANTIATE_TEST_SUITE_P(
    Golden, Stages,
    ::testing::Values(StagesCase{"f32_L63_stages", "f32_L63", Numerics::kRef, {63}},
                      StagesCase{"f32_L63_stages", "f32_L63", Numerics::kRef, {17, 1, 45}},
                      StagesCase{"f32_L129_stages", "f32_L129", Numerics::kRef, {129}},
                      StagesCase{"f32_L129_stages", "f32_L129", Numerics::kRef, {64, 65}},
                      StagesCase{"f32_actq_L63_stages", "f32_actq_L63", Numerics::kRefActq, {63}}),
    [](const auto& param_info) {
      return std::string(param_info.param.stages) + "_in_" +
             std::to_string(param_info.param.chunks.size());
    });

}  // namespace
}  // namespace deepinfer
