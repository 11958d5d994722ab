// Sequences of a batch do not disturb each other: golden runs batched together, damaged weights
// and damaged caches fail only the sequence that reads them (model.md §16.2, numerics.md §1).

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>

#include "golden/compare.h"
#include "golden/golden_file.h"
#include "golden/tiny_model.h"
#include "support/checkpoint_copy.h"
#include "tensor/codecs.h"

namespace deepinfer {
namespace {

constexpr int64_t kVocab = 512;

// A changed copy of the tiny checkpoint on disk.
class ChangedCheckpoint {
 public:
  explicit ChangedCheckpoint(const std::function<void(CheckpointCopy*)>& change) {
    CheckpointCopy copy(GoldenPath("tiny_fp8fp4"));
    change(&copy);
    copy.Write(dir_);
  }
  const TempDir& dir() const { return dir_; }

 private:
  TempDir dir_;
};

TEST(BatchIsolation, GoldenPromptsHoldInOneBatch) {
  TinyModel model({.threads = 2});
  struct Entry {
    const char* file;
    double max_rms;
  };
  const Entry entries[] = {
      {"f32_L63", 2e-2}, {"f32_L129_imagemask", 5e-2}, {"f32_L5", 1e-4}, {"f32_L129", 5e-2}};
  std::vector<std::unique_ptr<TestSequence>> sequences;
  std::vector<SequenceStep> steps;
  std::vector<std::vector<float>> alone;
  for (const Entry& e : entries) {
    const GoldenFile golden(e.file);
    const std::vector<int32_t> tokens = golden.Ints("tokens");
    std::vector<uint8_t> flags;
    if (golden.Has("token_types")) {
      for (int32_t type : golden.Ints("token_types")) flags.push_back(type == 0);
    }
    for (const bool batched : {false, true}) {
      auto sequence = std::make_unique<TestSequence>(model.get(), tokens);
      sequence->set_image_flags(flags);
      const int32_t length = static_cast<int32_t>(tokens.size());
      if (!batched) {
        alone.push_back(sequence->RunChunks({length}));
        continue;
      }
      steps.push_back(sequence->Rows(0, length));
      sequences.push_back(std::move(sequence));
    }
  }
  StepOutput out;
  ASSERT_TRUE(model->Step(steps, false, &out).ok());
  auto got = out.logits.begin();
  for (size_t i = 0; i < steps.size(); ++i) {
    ASSERT_TRUE(out.status[i].ok());
    const std::vector<float> logits(got, got + steps[i].num_rows * kVocab);
    got += steps[i].num_rows * kVocab;
    EXPECT_EQ(logits, alone[i]) << entries[i].file;
    const LogitDistance d = Compare(GoldenFile(entries[i].file).Floats("logits"), logits, kVocab);
    EXPECT_LE(d.rms, entries[i].max_rms) << entries[i].file;
    EXPECT_GE(d.argmax_share, 0.99) << entries[i].file;
  }
  EXPECT_EQ(got, out.logits.end());
}

class Damage : public ::testing::TestWithParam<Numerics> {
 protected:
  TinyModelOptions Options(const std::string& checkpoint = "tiny_fp8fp4") const {
    TinyModelOptions o;
    o.checkpoint = checkpoint;
    o.numerics = GetParam();
    o.threads = 1;
    return o;
  }

  // An id that no golden prompt of 129 uses.
  static int32_t UnusedId(const std::vector<int32_t>& tokens) {
    for (int32_t id = 100;; ++id) {
      if (std::find(tokens.begin(), tokens.end(), id) == tokens.end()) return id;
    }
  }
};

TEST_P(Damage, ANanEmbeddingFailsOnlyTheSequenceThatUsesIt) {
  const std::vector<int32_t> tokens = GoldenFile("f32_L129").Ints("tokens");
  const int32_t bad_id = UnusedId(tokens);
  const ChangedCheckpoint changed([&](CheckpointCopy* c) {
    auto& t = c->At("embed.weight");
    const uint16_t nan = FloatToBf16(NAN);
    std::memcpy(t.bytes.data() + (bad_id * t.shape[1] + 5) * 2, &nan, 2);
  });
  TinyModel model(Options(changed.dir().path()));
  std::vector<int32_t> hit = tokens;
  hit[70] = bad_id;
  TestSequence before(model.get(), tokens, 1), damaged(model.get(), hit, 2),
      after(model.get(), tokens, 3);
  std::vector<SequenceStep> steps = {before.Rows(0, 90), damaged.Rows(0, 80), after.Rows(0, 129)};
  StepOutput out;
  ASSERT_TRUE(model->Step(steps, true, &out).ok());
  ASSERT_EQ(out.status.size(), 3u);
  EXPECT_TRUE(out.status[0].ok());
  EXPECT_TRUE(out.status[2].ok());
  EXPECT_EQ(out.status[1].code(), StatusCode::kDataCorruption) << out.status[1].ToString();

  TinyModel sound(Options());
  const std::vector<float> want = TestSequence(sound.get(), tokens).RunChunks({129});
  EXPECT_TRUE(std::equal(want.begin(), want.begin() + 90 * kVocab, out.logits.begin()));
  EXPECT_TRUE(std::equal(want.begin(), want.end(), out.logits.begin() + (90 + 80) * kVocab));
  // The healthy ones go on as if nothing had happened.
  steps = {before.Rows(90, 1)};
  ASSERT_TRUE(model->Step(steps, false, &out).ok());
  ASSERT_TRUE(out.status[0].ok());
  EXPECT_TRUE(std::equal(out.logits.begin(), out.logits.end(), want.begin() + 90 * kVocab));
}

// Every kind of cached row, damaged after a prefill in one of two sequences that then decode
// together.
TEST_P(Damage, ADamagedCacheFailsOnlyItsOwner) {
  TinyModel model(Options());
  const KvLayout& layout = model->layout();
  const ModelConfig& config = model->config();
  const std::vector<int32_t> tokens = GoldenFile("f32_L129").Ints("tokens");
  const std::vector<float> want = TestSequence(model.get(), tokens).RunChunks({129});
  constexpr int32_t kPrompt = 126;
  struct Case {
    const char* what;
    std::function<void(const SequenceStep&)> damage;
  };
  const auto nan_bytes = [](std::byte* at, int64_t count, uint8_t code) {
    std::fill(at, at + count, std::byte{code});
  };
  std::vector<Case> cases;
  for (int32_t s = 0; s < 3; ++s) {
    cases.push_back({"index key", [=, &layout](const SequenceStep& step) {
                       const KvPages p = layout.Pages(s, step.pool, step.block_table);
                       nan_bytes(p.IndexScales(7), layout.index_scale_bytes, kE8m0Nan);
                     }});
    cases.push_back({"compressed entries", [=, &layout, &config](const SequenceStep& step) {
                       const KvPages p = layout.Pages(s, step.pool, step.block_table);
                       for (int64_t j = 0; j < kPrompt / layout.sections[s].ratio; ++j) {
                         nan_bytes(p.MainRow(j) + config.head_dim / 2, config.head_dim / 16,
                                   kE4m3Nan);
                       }
                     }});
  }
  for (int32_t layer : {0, 3, 7}) {
    cases.push_back({"window row", [=, &layout, &config](const SequenceStep& step) {
                       std::byte* row = layout.Ring(step.slot, layer) +
                                        100 % layout.ring_rows * layout.window_row_bytes;
                       nan_bytes(row + config.head_dim, config.head_dim / 32, kE8m0Nan);
                     }});
  }
  for (const Case& c : cases) {
    TestSequence damaged(model.get(), tokens, 5), healthy(model.get(), tokens, 6);
    damaged.RunChunks({kPrompt});
    healthy.RunChunks({kPrompt});
    std::vector<SequenceStep> steps = {damaged.Rows(kPrompt, 3), healthy.Rows(kPrompt, 3)};
    c.damage(steps[0]);
    StepOutput out;
    ASSERT_TRUE(model->Step(steps, false, &out).ok());
    EXPECT_EQ(out.status[0].code(), StatusCode::kDataCorruption) << c.what;
    EXPECT_TRUE(out.status[1].ok()) << c.what << ": " << out.status[1].ToString();
    EXPECT_TRUE(std::equal(out.logits.begin() + 3 * kVocab, out.logits.end(),
                           want.begin() + kPrompt * kVocab))
        << c.what;
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, Damage,
                         ::testing::Values(Numerics::kRef, Numerics::kRefActq, Numerics::kProd),
                         [](const auto& p) { return std::string(NumericsName(p.param)); });

TEST(EmptySteps, NoSequencesAndNoRowsAreFine) {
  TinyModel model({.threads = 1});
  StepOutput out;
  ASSERT_TRUE(model->Step({}, true, &out).ok());
  EXPECT_TRUE(out.logits.empty() && out.main_hidden.empty() && out.status.empty());
  const std::vector<int32_t> tokens = GoldenFile("f32_L63").Ints("tokens");
  const std::vector<float> want = TestSequence(model.get(), tokens).RunChunks({63});
  TestSequence first(model.get(), tokens, 2), idle(model.get(), tokens, 3);
  const std::vector<SequenceStep> steps = {idle.Rows(0, 0), first.Rows(0, 63), idle.Rows(9, 0)};
  ASSERT_TRUE(model->Step(steps, true, &out).ok());
  EXPECT_EQ(out.status.size(), 3u);
  EXPECT_EQ(out.logits, want);
}

TEST(DraftRecords, AreThoseOfTheDecoderRowsWhicheverSideTheTargetsLieOn) {
  for (const bool encoder_targets : {false, true}) {
    ChangedCheckpoint changed([](CheckpointCopy*) {});
    if (encoder_targets) {
      std::ifstream in(changed.dir().File("config.json"));
      std::string text(std::istreambuf_iterator<char>(in), {});
      const size_t key = text.find("dspark_target_layer_ids");
      const size_t begin = text.find('[', key), end = text.find(']', key);
      text.replace(begin, end - begin, "[1, 2, 4");
      changed.dir().Write("config.json", text);
    }
    TinyModel model({.checkpoint = changed.dir().path(), .threads = 1});
    const std::vector<int32_t> tokens = GoldenFile("f32_L129").Ints("tokens");
    const auto records = [&](int32_t from) {
      TestSequence a(model.get(), tokens, 2), b(model.get(), tokens, 3);
      std::vector<SequenceStep> steps = {a.Rows(0, 129), b.Rows(0, 100)};
      for (SequenceStep& s : steps) s.decoder_from = s.logits_from = from;
      StepOutput out;
      EXPECT_TRUE(model->Step(steps, true, &out).ok());
      return out.main_hidden;
    };
    // Targets at layer 5, the cut, and before it see no decoder window, so rows compare exactly.
    const size_t width = 3 * 128;
    const std::vector<float> all = records(0), tail = records(90);
    ASSERT_EQ(all.size(), (129 + 100) * width);
    ASSERT_EQ(tail.size(), (39 + 10) * width);
    const size_t exact = encoder_targets ? width : 128;
    for (size_t r = 0; r < 49; ++r) {
      const float* got = tail.data() + r * width;
      const float* want = all.data() + (r < 39 ? 90 + r : 129 + 90 + r - 39) * width;
      EXPECT_TRUE(std::equal(got, got + exact, want)) << encoder_targets << " row " << r;
    }
  }
}

// A one-byte tensor in front puts every other tensor at an odd address.
void WriteShifted(CheckpointCopy* copy, const TempDir& dir) {
  for (auto& [name, t] : copy->tensors) t.shard = 0;
  std::string header = "{\"vision.pad\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}";
  std::string data(1, '\0');
  for (const auto& [name, t] : copy->tensors) {
    std::string shape = t.shape.ToString();
    header += ",\"" + name + "\":{\"dtype\":\"" + std::string(DTypeName(t.dtype)) +
              "\",\"shape\":" + shape + ",\"data_offsets\":[" + std::to_string(data.size()) + "," +
              std::to_string(data.size() + t.bytes.size()) + "]}";
    data.append(t.bytes.begin(), t.bytes.end());
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string image(8, '\0');
  const uint64_t size = header.size();
  std::memcpy(image.data(), &size, 8);
  dir.Write("model.safetensors", image + header + data);
  std::filesystem::copy_file(GoldenPath("tiny_fp8fp4/config.json"), dir.File("config.json"));
}

TEST(ShiftedCheckpoint, OddAddressesChangeNoBits) {
  CheckpointCopy copy(GoldenPath("tiny_fp8fp4"));
  const TempDir dir;
  WriteShifted(&copy, dir);
  TinyModel shifted({.checkpoint = dir.path(), .threads = 1}), plain({.threads = 1});
  const std::vector<int32_t> tokens = GoldenFile("f32_L63").Ints("tokens");
  EXPECT_EQ(TestSequence(shifted.get(), tokens).RunChunks({63}),
            TestSequence(plain.get(), tokens).RunChunks({63}));
}

}  // namespace
}  // namespace deepinfer
