// The serving arithmetic against the one whose runs are recorded (numerics.md §4.7).

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "golden/stage_errors.h"

namespace deepinfer {
namespace {

constexpr ProdDeviations kAllOff = {false, false, false, false};

// All that one step over a prompt leaves behind.
struct Outcome {
  std::vector<float> logits, main_hidden;
  std::vector<std::byte> pool, slot;
  bool operator==(const Outcome&) const = default;
};

Outcome RunPrompt(const char* file, Numerics numerics, const ProdDeviations& deviations,
                  int threads = 1) {
  TinyModelOptions options;
  options.numerics = numerics;
  options.prod_deviations = deviations;
  options.threads = threads;
  TinyModel model(options);
  const std::vector<int32_t> tokens = GoldenFile(file).Ints("tokens");
  TestSequence sequence(model.get(), tokens);
  const SequenceStep step = sequence.Rows(0, static_cast<int32_t>(tokens.size()));
  StepOutput out;
  EXPECT_TRUE(model->Step({&step, 1}, true, &out).ok());
  EXPECT_TRUE(out.status[0].ok()) << out.status[0].ToString();
  return {out.logits, out.main_hidden, sequence.pool(), sequence.slot()};
}

// The recorded runs bound kRefActq (prefill_test), so they bound equal bits too.
TEST(Prod, WithoutItsDeviationsItHasTheBitsOfRefActq) {
  for (const char* file : {"f32_actq_L5", "f32_actq_L63"}) {
    EXPECT_TRUE(RunPrompt(file, Numerics::kProd, kAllOff, 0) ==
                RunPrompt(file, Numerics::kRefActq, {}, 0))
        << file;
  }
  for (const char* file : {"f32_actq_L129", "f32_actq_L300", "f32_L129_imagemask"}) {
    EXPECT_TRUE(RunPrompt(file, Numerics::kProd, kAllOff) ==
                RunPrompt(file, Numerics::kRefActq, {}))
        << file;
  }
}

TEST(Prod, EveryDeviationHasAnEffect) {
  const Outcome none = RunPrompt("f32_L129", Numerics::kProd, kAllOff);
  const Outcome stream = RunPrompt("f32_L129", Numerics::kProd, {true, false, false, false});
  EXPECT_FALSE(stream == none);
  EXPECT_FALSE(RunPrompt("f32_L129", Numerics::kProd, {true, true, false, false}) == stream);
  EXPECT_FALSE(RunPrompt("f32_L129", Numerics::kProd, {true, false, true, false}) == stream);
  EXPECT_FALSE(RunPrompt("f32_L129", Numerics::kProd, {false, true, false, false}) == none);
}

// Limit of the relative rms of a stage array: by the quantisers between the input fed and it.
double LimitOf(std::string_view key) {
  const std::string_view name = key.substr(0, key.rfind('.'));
  const auto any_of = [name](std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (any_of({"qr", "q"})) return 2e-2;
  if (any_of({"win_kv", "o_rot", "attn_out", "ffn_out"})) return 5e-2;
  if (any_of({"comp_kv", "index_k"})) return 6e-2;
  if (name == "index_score") return 1e-1;
  return 5e-3;
}

TEST(Prod, StagesStayCloseToTheRecordedOnes) {
  const GoldenFile stages("f32_actq_L63_stages"), run("f32_actq_L63");
  TinyModelOptions options;
  options.numerics = Numerics::kProd;
  TinyModel model(options);
  const StageErrors errors = RunStages(model.get(), stages, run, {63}, Rounding::kBf16);
  std::map<double, double> largest;  // of the arrays with one limit
  for (const auto& [name, array] : errors.arrays) {
    const double rms = array.RelativeRms(), limit = LimitOf(name);
    EXPECT_LE(rms, limit) << name;
    largest[limit] = std::max(largest[limit], rms);
  }
  for (const auto& [limit, rms] : largest) {
    std::printf("limit %.0e: largest relative rms %.2e\n", limit, rms);
    EXPECT_GE(rms, limit / 4) << "an array of this kind should have been rounded";
  }
  EXPECT_LE(errors.router_share, 0.05);
  ExpectEveryStage(errors, stages, model->config());
}

// Arrays that R makes must hold bf16 values, and what stays fp32 must not.
class Bf16Probe : public StepProbe {
 public:
  void Visit(std::string_view name, int32_t layer, float* data, int64_t rows,
             int64_t cols) override {
    const bool is_bf16 =
        std::all_of(data, data + rows * cols, [](float x) { return x == RoundToBf16(x); });
    const bool stays_fp32 = name == "o_rot" || name == "gate_w" || name == "index_score" ||
                            name.starts_with("pre") || name.starts_with("hc_");
    // The one-hot mix of the first layer is no result.
    if (name == "pre_in" && layer == 0) return;
    EXPECT_EQ(is_bf16, !stays_fp32) << name << " " << layer;
    names_.insert(std::string(name));
  }
  void VisitSelection(std::string_view, int32_t, int32_t*, int32_t*, int64_t, int64_t) override {}
  const std::set<std::string>& names() const { return names_; }

 private:
  std::set<std::string> names_;
};

TEST(Prod, StreamAndResultsAreBf16Values) {
  TinyModelOptions options;
  options.numerics = Numerics::kProd;
  options.threads = 1;
  TinyModel model(options);
  Bf16Probe probe;
  TestSequence(model.get(), GoldenFile("f32_L129").Ints("tokens")).RunChunks({128, 1}, &probe);
  for (const char* name : {"h_in", "attn_in", "qr", "q", "o_rot", "attn_out", "ffn_in", "ffn_out",
                           "h", "latent", "latent_rotated", "index_key_rotated", "engram_out",
                           "final_in", "final_normed", "pre", "gate_w", "index_score"}) {
    EXPECT_TRUE(probe.names().contains(name)) << name;
  }
}

TEST(Prod, BothCheckpointFormsGiveEqualBits) {
  TinyModelOptions options;
  options.numerics = Numerics::kProd;
  options.threads = 1;
  const std::vector<int32_t> tokens = GoldenFile("f32_L129").Ints("tokens");
  const auto logits = [&](const char* checkpoint) {
    options.checkpoint = checkpoint;
    TinyModel model(options);
    return TestSequence(model.get(), tokens).RunChunks({129});
  };
  EXPECT_EQ(logits("tiny_fp8fp4"), logits("tiny_bf16"));
}

}  // namespace
}  // namespace deepinfer
