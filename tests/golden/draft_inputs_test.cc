// What the draft model will read from the target model: logits and hidden rows of decode steps
// after a prefill (numerics.md §2, f32_dspark).

#include <gtest/gtest.h>

#include "golden/compare.h"
#include "golden/golden_file.h"
#include "golden/tiny_model.h"

namespace deepinfer {
namespace {

constexpr int64_t kVocab = 512;

TEST(GoldenDraftInputs, DecodeStepsGiveTheRecordedLogitsAndHiddenRows) {
  for (const char* file : {"f32_dspark_L63", "f32_dspark_L129"}) {
    const GoldenFile golden(file);
    std::vector<int32_t> tokens = golden.Ints("prompt");
    const auto length = static_cast<int32_t>(tokens.size());
    const std::vector<int32_t> fed = golden.Ints("main_in");
    tokens.insert(tokens.end(), fed.begin(), fed.end());
    TinyModel model({});
    TestSequence sequence(model.get(), tokens);
    sequence.RunChunks({length});
    std::vector<float> logits, hidden;
    for (size_t s = 0; s < fed.size(); ++s) {
      const SequenceStep step = sequence.Rows(length + static_cast<int32_t>(s), 1);
      StepOutput out;
      ASSERT_TRUE(model->Step({&step, 1}, true, &out).ok());
      logits.insert(logits.end(), out.logits.begin(), out.logits.end());
      hidden.insert(hidden.end(), out.main_hidden.begin(), out.main_hidden.end());
    }
    const LogitDistance d = Compare(golden.Floats("main_logits"), logits, kVocab);
    EXPECT_LE(d.rms, 5e-2) << file;
    EXPECT_LE(d.mean_kl, 1e-3) << file;
    EXPECT_EQ(d.argmax_share, 1.0) << file;
    const std::vector<float> want = golden.Floats("main_hidden");
    EXPECT_LE(Compare(want, hidden, static_cast<int64_t>(want.size() / fed.size())).rms, 5e-2)
        << file;
  }
}

}  // namespace
}  // namespace deepinfer
