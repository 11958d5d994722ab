// What the cases are worth: with a mechanism switched off the answers must go wrong. If these
// tests fail, the passing of the others proves nothing about that mechanism.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "golden/tiny_model.h"
#include "integration/demo_model/demo_cases.h"
#include "support/checkpoint_copy.h"

namespace deepinfer {
namespace {

constexpr int32_t kWindow = 128;

// Writes the demo model with every tensor of that name ending zeroed; the number of them.
int WriteZeroed(std::string_view ending, const TempDir& dir) {
  CheckpointCopy copy(DemoModelPath());
  int num_zeroed = 0;
  for (auto& [name, tensor] : copy.tensors) {
    if (!name.ends_with(ending)) continue;
    std::fill(tensor.bytes.begin(), tensor.bytes.end(), uint8_t{0});
    ++num_zeroed;
  }
  copy.Write(dir);
  std::filesystem::copy_file(DemoModelPath() + "/tokenizer.json", dir.File("tokenizer.json"));
  return num_zeroed;
}

// The norm of the compressor scales every latent, so a zero there zeroes what is cached: latents
// and the index keys made from them.
int WriteWithoutCompressedCache(const TempDir& dir) {
  return WriteZeroed(".compressor.norm.weight", dir);
}

int WriteWithoutEngram(const TempDir& dir) { return WriteZeroed(".engram.embed.weight", dir); }

// Tokens from the end of the needle to the end of the prompt.
int32_t NeedleDistance(const Tokenizer& tokenizer, const DemoCase& c) {
  const size_t at = c.prompt.find(c.expect);
  if (at == std::string::npos) return -1;
  std::vector<int32_t> head;
  tokenizer.EncodeWithSpecials(c.prompt.substr(0, at + c.expect.size()), &head);
  return static_cast<int32_t>(c.prompt_ids.size() - head.size());
}

class ZeroEntries final : public StepProbe {
 public:
  void Visit(std::string_view name, int32_t, float* data, int64_t rows, int64_t cols) override {
    if (name != "latent_rotated" && name != "index_key_rotated") return;
    std::fill(data, data + rows * cols, 0.0f);
    ++count;
  }
  void VisitSelection(std::string_view, int32_t, int32_t*, int32_t*, int64_t, int64_t) override {}
  int count = 0;
};

TEST(DemoModelFaults, AZeroNormEqualsAZeroedCompressedCache) {
  const TempDir dir;
  ASSERT_EQ(WriteWithoutCompressedCache(dir), 2);
  DemoRunner intact(DemoModelPath()), edited(dir.path());
  ASSERT_TRUE(intact.ok() && edited.ok());
  const std::vector<DemoCase> cases = LoadDemoCases();
  const auto it = std::find_if(cases.begin(), cases.end(), [](const DemoCase& c) {
    return c.task == "needle" && c.prompt_ids.size() > 200;
  });
  ASSERT_NE(it, cases.end());
  const auto length = static_cast<int32_t>(it->prompt_ids.size());
  ZeroEntries probe;
  const std::vector<float> zeroed =
      TestSequence(intact.model(), it->prompt_ids).RunChunks({length}, &probe);
  EXPECT_EQ(probe.count, 4);
  EXPECT_EQ(TestSequence(edited.model(), it->prompt_ids).RunChunks({length}), zeroed);
  EXPECT_NE(TestSequence(intact.model(), it->prompt_ids).RunChunks({length}), zeroed);
}

TEST(DemoModelFaults, WithoutTheCompressedCacheFactsBehindTheWindowAreLost) {
  const TempDir dir;
  ASSERT_EQ(WriteWithoutCompressedCache(dir), 2);
  DemoRunner intact(DemoModelPath()), edited(dir.path());
  ASSERT_TRUE(intact.ok() && edited.ok());
  const std::vector<DemoCase> far = Where(LoadDemoCases(), [&](const DemoCase& c) {
    return c.task == "needle" && NeedleDistance(intact.tokenizer(), c) > kWindow;
  });
  ASSERT_GE(far.size(), 6u);
  const Share without = ShareByTask(far, edited.Answer(far))["needle"];
  const Share with = ShareByTask(far, intact.Answer(far))["needle"];
  RecordProperty("far_total", with.total);
  RecordProperty("far_right", with.right);
  RecordProperty("far_right_without", without.right);
  EXPECT_GE(with.value(), 0.75);
  EXPECT_LE(without.value(), 0.1);
}

// Half of the chat cases, eight of each task.
TEST(DemoModelFaults, WithoutEngramTablesMostAnswersAreWrong) {
  const TempDir dir;
  ASSERT_EQ(WriteWithoutEngram(dir), 2);
  DemoRunner edited(dir.path());
  ASSERT_TRUE(edited.ok());
  std::map<std::string, int> taken;
  const std::vector<DemoCase> half =
      Where(LoadDemoCases(), [&](const DemoCase& c) { return !c.thinking && taken[c.task]++ < 8; });
  ASSERT_EQ(half.size(), 120u);
  const std::vector<bool> right = edited.Answer(half);
  const auto num_right = std::count(right.begin(), right.end(), true);
  RecordProperty("right_without", static_cast<int>(num_right));
  EXPECT_LE(static_cast<double>(num_right) / 120.0, 0.2);
}

}  // namespace
}  // namespace deepinfer
