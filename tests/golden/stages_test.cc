// Teacher-forced stages (numerics.md §4.2): every layer gets the golden stream, mix, latents,
// scores and top-k lists, so a deviation names the operator that made it.

#include <gtest/gtest.h>

#include "golden/stage_errors.h"

namespace deepinfer {
namespace {

struct StagesCase {
  const char* stages;
  const char* run;
  Numerics numerics;
  std::vector<int32_t> chunks;
};

class Stages : public ::testing::TestWithParam<StagesCase> {};

TEST_P(Stages, EveryStageMatchesWhenFedGoldenInputs) {
  const GoldenFile stages(GetParam().stages), run(GetParam().run);
  TinyModel model({"tiny_fp8fp4", GetParam().numerics});
  const StageErrors errors =
      RunStages(model.get(), stages, run, GetParam().chunks, Rounding::kNone);
  for (const auto& [name, array] : errors.arrays) {
    // Entries and index keys come from golden latents: equal bit for bit.
    if (name.starts_with("comp_kv") || name.starts_with("index_k")) {
      EXPECT_EQ(array.max(), 0.0) << name;
    } else {
      array.Check(name);
    }
  }
  EXPECT_LE(errors.router_share, kShareAbove);
  ExpectEveryStage(errors, stages, model->config());
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
