// One model, equal bits on every backend: CPU operators of every instruction set and number of
// threads against the reference operators (numerics.md §1, §7).

#include <gtest/gtest.h>

#include "golden/golden_file.h"
#include "golden/tiny_model.h"

namespace deepinfer {
namespace {

// All that a step leaves behind. The garbage that fills unused memory is seeded, so whole buffers
// compare.
struct Outcome {
  std::vector<float> logits, main_hidden;
  std::vector<std::byte> pool, slot;
  bool operator==(const Outcome&) const = default;
};

// A prefill of 200 tokens, two decode-sized steps and a prefill beside them.
Outcome RunModel(const TinyModelOptions& options) {
  TinyModel model(options);
  const std::vector<int32_t> tokens = GoldenFile("f32_L300").Ints("tokens");
  TestSequence first(model.get(), tokens, 1), second(model.get(), tokens, 2);
  Outcome outcome;
  const auto step = [&](std::vector<SequenceStep> steps) {
    StepOutput out;
    ASSERT_TRUE(model->Step(steps, true, &out).ok());
    for (const Status& s : out.status) ASSERT_TRUE(s.ok()) << s.ToString();
    outcome.logits.insert(outcome.logits.end(), out.logits.begin(), out.logits.end());
    outcome.main_hidden.insert(outcome.main_hidden.end(), out.main_hidden.begin(),
                               out.main_hidden.end());
  };
  step({first.Rows(0, 199)});
  step({first.Rows(199, 1), second.Rows(0, 33)});
  step({second.Rows(33, 1), first.Rows(200, 6)});
  outcome.pool = first.pool();
  outcome.slot = first.slot();
  return outcome;
}

class Backend : public ::testing::TestWithParam<Numerics> {
 protected:
  static TinyModelOptions Options(int threads, IsaLevel isa) {
    return {.numerics = GetParam(), .threads = threads, .isa = isa};
  }
};

TEST_P(Backend, EveryLevelAndThreadCountGivesTheBitsOfTheReference) {
  const Outcome reference = RunModel(Options(0, IsaLevel::kScalar));
  ASSERT_EQ(reference.logits.size(), (199u + 34u + 7u) * 512u);
  for (const IsaLevel isa : {IsaLevel::kAvx2, IsaLevel::kAvx512, IsaLevel::kAvx512Bf16}) {
    if (isa > DetectIsaLevel()) continue;
    for (const int threads : {1, 2, 3, 4}) {
      EXPECT_TRUE(RunModel(Options(threads, isa)) == reference)
          << IsaLevelName(isa) << ", " << threads << " threads";
    }
  }
}

TEST_P(Backend, WithoutCacheQuantisationToo) {
  TinyModelOptions options = Options(0, DetectIsaLevel());
  options.kv_format = KvFormat::kFloat32;
  const Outcome reference = RunModel(options);
  options.threads = 2;
  EXPECT_TRUE(RunModel(options) == reference);
}

INSTANTIATE_TEST_SUITE_P(Modes, Backend,
                         ::testing::Values(Numerics::kRef, Numerics::kRefActq, Numerics::kProd),
                         [](const auto& p) { return std::string(NumericsName(p.param)); });

}  // namespace
}  // namespace deepinfer
