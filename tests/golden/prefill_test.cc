// End to end prefill against the golden runs (numerics.md §3, §4.3).

#include <gtest/gtest.h>

#include <map>

#include "golden/compare.h"
#include "golden/golden_file.h"
#include "golden/tiny_model.h"

namespace deepinfer {
namespace {

constexpr int64_t kVocab = 512;

// Collects selections and router results of a one-step run.
class SelectionProbe : public StepProbe {
 public:
  void Visit(std::string_view name, int32_t layer, float* data, int64_t rows,
             int64_t cols) override {
    if (name == "gate_w") gate_w[layer].assign(data, data + rows * cols);
  }
  void VisitSelection(std::string_view name, int32_t layer, int32_t* indices, int32_t* counts,
                      int64_t rows, int64_t width) override {
    std::vector<std::vector<int32_t>> lists;
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t n = counts == nullptr ? width : counts[r];
      lists.emplace_back(indices + r * width, indices + r * width + n);
    }
    if (name == "topk") topk[layer] = lists;
    if (name == "gate_i") gate_i[layer] = lists;
    if (name == "candidates") candidates = lists;
  }

  std::map<int32_t, std::vector<std::vector<int32_t>>> topk, gate_i;
  std::vector<std::vector<int32_t>> candidates;
  std::map<int32_t, std::vector<float>> gate_w;
};

// Share of rows whose top-k list differs; -1 entries of the golden list mean "none".
double DifferingTopK(const GoldenFile& golden, const SelectionProbe& probe) {
  int rows = 0, differing = 0;
  for (const auto& [layer, lists] : probe.topk) {
    const std::vector<int32_t> want = golden.Ints("topk." + std::to_string(layer));
    const size_t width = want.size() / lists.size();
    for (size_t r = 0; r < lists.size(); ++r) {
      std::vector<int32_t> list;
      for (size_t i = 0; i < width; ++i) {
        if (want[r * width + i] >= 0) list.push_back(want[r * width + i]);
      }
      ++rows;
      differing += list != lists[r];
    }
  }
  return static_cast<double>(differing) / rows;
}

double DifferingRouter(const GoldenFile& golden, const SelectionProbe& probe) {
  int rows = 0, differing = 0;
  for (const auto& [layer, lists] : probe.gate_i) {
    const std::vector<int32_t> want = golden.Ints("gate_i." + std::to_string(layer));
    const size_t width = want.size() / lists.size();
    for (size_t r = 0; r < lists.size(); ++r) {
      ++rows;
      differing += !std::equal(lists[r].begin(), lists[r].end(), want.begin() + r * width);
    }
  }
  return static_cast<double>(differing) / rows;
}

// Share of rows whose candidate blocks differ; the golden mask marks whole blocks.
double DifferingCandidates(const GoldenFile& golden, const SelectionProbe& probe, int32_t size) {
  const std::vector<uint8_t> mask = golden.Get<uint8_t>("candidates");
  const size_t length = probe.candidates.size();
  EXPECT_EQ(mask.size(), length * length);
  int differing = 0;
  for (size_t r = 0; r < length; ++r) {
    std::vector<uint8_t> got(length, 0);
    for (int32_t b : probe.candidates[r]) {
      const size_t begin = static_cast<size_t>(b * size);
      for (size_t j = begin; j < std::min(begin + static_cast<size_t>(size), length); ++j) {
        got[j] = 1;
      }
    }
    differing += !std::equal(got.begin(), got.end(), mask.begin() + r * length);
  }
  return static_cast<double>(differing) / static_cast<double>(length);
}

struct Case {
  const char* file;
  Numerics numerics;
  KvFormat kv_format;
};

struct PrefillRun {
  LogitDistance distance;
  double topk = 0, router = 0, candidates = 0;
  std::vector<float> logits;
};

PrefillRun RunPrefill(const Case& c, const std::string& checkpoint = "tiny_fp8fp4") {
  const GoldenFile golden(c.file);
  const std::vector<int32_t> tokens = golden.Ints("tokens");
  // The reference operators take the short prompts, the CPU operators the long ones.
  const int threads = tokens.size() > 128 ? 1 : 0;
  TinyModel model({checkpoint, c.numerics, c.kv_format, threads});
  TestSequence sequence(model.get(), tokens);
  if (golden.Has("token_types")) {
    std::vector<uint8_t> flags;
    for (int32_t type : golden.Ints("token_types")) flags.push_back(type == 0);
    sequence.set_image_flags(flags);
  }
  SelectionProbe probe;
  PrefillRun run;
  run.logits = sequence.RunChunks({static_cast<int32_t>(tokens.size())}, &probe);
  run.distance = Compare(golden.Floats("logits"), run.logits, kVocab);
  run.topk = DifferingTopK(golden, probe);
  run.router = DifferingRouter(golden, probe);
  run.candidates = DifferingCandidates(golden, probe, model->config().candidate_block_size);
  for (int layer : {1, 4}) {
    const auto want = golden.Ints("engram_ids." + std::to_string(layer));
    std::vector<int64_t> ids(want.size());
    std::vector<uint8_t> flags(tokens.size(), 0);
    if (golden.Has("token_types")) {
      const auto types = golden.Ints("token_types");
      for (size_t i = 0; i < flags.size(); ++i) flags[i] = types[i] == 0;
    }
    model->engram_hasher().RowIds(layer == 1 ? 0 : 1, tokens.data(), flags.data(), 0,
                                  static_cast<int64_t>(tokens.size()), ids.data());
    EXPECT_TRUE(std::equal(ids.begin(), ids.end(), want.begin(), want.end())) << layer;
  }
  std::printf("%-22s max %.2e rms %.2e kl %.2e argmax %.3f lead %d topk %.4f router %.4f\n", c.file,
              run.distance.max, run.distance.rms, run.distance.mean_kl, run.distance.argmax_share,
              run.distance.leading_rows, run.topk, run.router);
  return run;
}

TEST(GoldenPrefill, WithoutCacheQuantisationTheLogitsAreSmoothAndSelectionsEqual) {
  for (const char* file : {"f32_nokvq_L63", "f32_nokvq_L129", "f32_nokvq_L300"}) {
    const PrefillRun run = RunPrefill({file, Numerics::kRef, KvFormat::kFloat32});
    EXPECT_LE(run.distance.max, 1e-3) << file;
    EXPECT_EQ(run.distance.argmax_share, 1.0) << file;
    EXPECT_EQ(run.topk, 0.0) << file;
    EXPECT_EQ(run.router, 0.0) << file;
    EXPECT_EQ(run.candidates, 0.0) << file;
  }
}

TEST(GoldenPrefill, RefShortPromptsAreTight) {
  const PrefillRun l5 = RunPrefill({"f32_L5", Numerics::kRef, KvFormat::kQuantized});
  EXPECT_LE(l5.distance.max, 1e-4);
  EXPECT_EQ(l5.candidates, 0.0);
  EXPECT_EQ(l5.distance.argmax_share, 1.0);
  const PrefillRun l63 = RunPrefill({"f32_L63", Numerics::kRef, KvFormat::kQuantized});
  EXPECT_LE(l63.distance.max, 2e-2);
  EXPECT_EQ(l63.distance.argmax_share, 1.0);
}

TEST(GoldenPrefill, RefLongPromptsAndImages) {
  for (const char* file : {"f32_L129", "f32_L300", "f32_L129_imagemask"}) {
    const PrefillRun run = RunPrefill({file, Numerics::kRef, KvFormat::kQuantized});
    EXPECT_LE(run.distance.rms, 5e-2) << file;
    EXPECT_LE(run.distance.mean_kl, 1e-3) << file;
    EXPECT_GE(run.distance.argmax_share, 0.99) << file;
    EXPECT_LE(run.distance.rows_above_tenth, 0.15) << file;
    EXPECT_GE(run.distance.leading_rows, 8) << file;
    EXPECT_LE(run.topk, 0.03) << file;
    EXPECT_LE(run.candidates, 0.03) << file;
  }
}

TEST(GoldenPrefill, RefActq) {
  const PrefillRun l5 = RunPrefill({"f32_actq_L5", Numerics::kRefActq, KvFormat::kQuantized});
  EXPECT_LE(l5.distance.max, 2e-4);
  const PrefillRun l63 = RunPrefill({"f32_actq_L63", Numerics::kRefActq, KvFormat::kQuantized});
  EXPECT_LE(l63.distance.rms, 0.35);
  EXPECT_LE(l63.distance.mean_kl, 0.045);
  EXPECT_GE(l63.distance.argmax_share, 0.90);
  EXPECT_GE(l63.distance.leading_rows, 8);
  for (const char* file : {"f32_actq_L129", "f32_actq_L300"}) {
    const PrefillRun run = RunPrefill({file, Numerics::kRefActq, KvFormat::kQuantized});
    EXPECT_LE(run.distance.rms, 0.38) << file;
    EXPECT_LE(run.distance.mean_kl, 0.045) << file;
    EXPECT_GE(run.distance.argmax_share, 0.87) << file;
    EXPECT_GE(run.distance.leading_rows, 1) << file;
  }
}

TEST(GoldenPrefill, BothCheckpointFormsGiveEqualBits) {
  for (const Numerics numerics : {Numerics::kRef, Numerics::kRefActq}) {
    for (const char* file : {"f32_L63", "f32_L129"}) {
      const Case c{file, numerics, KvFormat::kQuantized};
      EXPECT_EQ(RunPrefill(c, "tiny_fp8fp4").logits, RunPrefill(c, "tiny_bf16").logits) << file;
    }
  }
}

}  // namespace
}  // namespace deepinfer
