// Equal bits however a sequence is cut into steps, batched, paged or truncated (numerics.md §4.4,
// §4.5), and greedy generation with a cache against fresh prefills.

#include <gtest/gtest.h>

#include <numeric>

#include "golden/compare.h"
#include "golden/golden_file.h"
#include "golden/tiny_model.h"

namespace deepinfer {
namespace {

constexpr int64_t kVocab = 512;

std::vector<int32_t> EqualChunks(int32_t length, int32_t size) {
  std::vector<int32_t> chunks;
  for (; length > 0; length -= size) chunks.push_back(std::min(length, size));
  return chunks;
}

class Chunking : public ::testing::TestWithParam<Numerics> {
 protected:
  TinyModelOptions Options() const {
    TinyModelOptions o;
    o.numerics = GetParam();
    o.threads = 1;
    return o;
  }
};

TEST_P(Chunking, AnySplitGivesTheSameBits) {
  TinyModel model(Options());
  const std::vector<int32_t> tokens = GoldenFile("f32_L300").Ints("tokens");
  const std::vector<float> whole = TestSequence(model.get(), tokens).RunChunks({300});
  std::vector<std::vector<int32_t>> splits;
  for (int32_t size : {1, 2, 7, 64, 128}) splits.push_back(EqualChunks(300, size));
  splits.push_back({299, 1});
  splits.push_back({128, 128, 44});
  splits.push_back({37, 1, 63, 28, 171});
  uint32_t seed = 2;
  for (const auto& chunks : splits) {
    EXPECT_EQ(TestSequence(model.get(), tokens, seed++).RunChunks(chunks), whole)
        << "first chunk " << chunks[0];
  }
}

TEST_P(Chunking, DecodeEqualsPrefillInBothParities) {
  TinyModel model(Options());
  for (const char* file : {"f32_L63", "f32_L129", "f32_L300"}) {
    const std::vector<int32_t> tokens = GoldenFile(file).Ints("tokens");
    const int32_t length = static_cast<int32_t>(tokens.size());
    const std::vector<float> whole = TestSequence(model.get(), tokens).RunChunks({length});
    for (int32_t k : {1, 62, 63, 64, 128}) {
      if (k >= length) continue;
      std::vector<int32_t> chunks = {k};
      chunks.insert(chunks.end(), static_cast<size_t>(length - k), 1);
      EXPECT_EQ(TestSequence(model.get(), tokens).RunChunks(chunks), whole) << file << " k " << k;
    }
  }
}

TEST_P(Chunking, RowsDoNotDependOnTheirBatch) {
  TinyModel model(Options());
  const std::vector<int32_t> tokens = GoldenFile("f32_L300").Ints("tokens");
  const std::vector<float> whole = TestSequence(model.get(), tokens).RunChunks({300});
  // Eight sequences with different prefixes of the same prompt; mixed prefill and decode rows.
  std::vector<std::unique_ptr<TestSequence>> sequences;
  std::vector<SequenceStep> steps;
  std::vector<int32_t> starts;
  for (int32_t i = 0; i < 8; ++i) {
    sequences.push_back(
        std::make_unique<TestSequence>(model.get(), tokens, static_cast<uint32_t>(100 + i)));
    starts.push_back(17 * i);
    if (starts.back() > 0) sequences.back()->RunChunks({starts.back()});
    steps.push_back(sequences.back()->Rows(starts.back(), i % 2 == 0 ? 1 : 40 + i));
  }
  StepOutput out;
  ASSERT_TRUE(model->Step(steps, false, &out).ok());
  const float* got = out.logits.data();
  for (const SequenceStep& s : steps) {
    const float* want = whole.data() + s.start * kVocab;
    ASSERT_TRUE(std::equal(want, want + s.num_rows * kVocab, got)) << s.start;
    got += s.num_rows * kVocab;
  }
}

TEST_P(Chunking, CompactTailEqualsMaskedTailOnKeptRows) {
  TinyModel model(Options());
  const std::vector<int32_t> tokens = GoldenFile("f32_L300").Ints("tokens");
  const int32_t prompt = 280;
  const int32_t k0 = prompt - TestKeepRows(*model.get());
  const auto run = [&](bool compact, int32_t chunk) {
    TestSequence sequence(model.get(), tokens);
    std::vector<float> kept;
    for (int32_t start = 0; start < 300;) {
      const int32_t end = std::min(start < prompt ? prompt : 300, start + chunk);
      SequenceStep step = sequence.Rows(start, end - start);
      step.decoder_origin = k0;
      step.decoder_from = compact ? k0 : 0;
      step.logits_from = k0;
      StepOutput out;
      EXPECT_TRUE(model->Step({&step, 1}, false, &out).ok());
      kept.insert(kept.end(), out.logits.begin(), out.logits.end());
      start = end;
    }
    return kept;
  };
  const std::vector<float> mask = run(false, 300);
  EXPECT_EQ(mask.size(), static_cast<size_t>((300 - k0) * kVocab));
  for (int32_t chunk : {1, 50, 128, 300}) EXPECT_EQ(run(true, chunk), mask) << chunk;
  const std::vector<float> full = TestSequence(model.get(), tokens).RunChunks({300});
  EXPECT_FALSE(std::equal(mask.begin(), mask.end(), full.end() - (300 - k0) * kVocab))
      << "the tail must differ from the full decoder, or the clamp does nothing";
}

// One model with the encoder's weights alone runs the prompt up to the cut; the whole one goes on
// from there, in a batch with others.
TEST_P(Chunking, ASplitAtTheCutGivesTheSameBits) {
  TinyModelOptions encoder_options = Options();
  encoder_options.part = ModelPart::kEncoder;
  TinyModel encoder(encoder_options), whole(Options());
  const ModelConfig& config = whole->config();
  const int64_t floats = int64_t{config.hc_mult} * (config.dim + 1);
  const std::vector<int32_t> tokens = GoldenFile("f32_L300").Ints("tokens");
  const int32_t k0 = 300 - TestKeepRows(*whole.get());
  const auto kept = [&](SequenceStep step) {
    step.decoder_origin = step.decoder_from = k0;
    step.logits_from = std::max(step.start, k0);
    return step;
  };
  TestSequence unsplit(whole.get(), tokens);
  const SequenceStep all = kept(unsplit.Rows(0, 300));
  StepOutput want;
  ASSERT_TRUE(whole->Step({&all, 1}, true, &want).ok());

  for (const int32_t chunk : {300, 128, 37}) {
    TestSequence prefill(encoder.get(), tokens);
    std::vector<float> cut(static_cast<size_t>((300 - k0) * floats));
    for (int32_t start = 0; start < 300; start += chunk) {
      SequenceStep step = kept(prefill.Rows(start, std::min(chunk, 300 - start)));
      step.logits_from = start + step.num_rows;
      step.cut_out = cut.data() + std::max(0, start - k0) * floats;
      StepOutput out;
      ASSERT_TRUE(encoder->Step({&step, 1}, false, &out).ok());
      EXPECT_TRUE(out.logits.empty());
    }
    TestSequence decode(whole.get(), tokens), before(whole.get(), tokens),
        after(whole.get(), tokens);
    decode.TakeStateOf(prefill);
    after.RunChunks({200});
    std::vector<float> got, got_hidden;
    for (int32_t start = k0; start < 300; start += chunk) {
      SequenceStep step = kept(decode.Rows(start, std::min(chunk, 300 - start)));
      step.write_from = 300;
      step.cut_in = cut.data() + (start - k0) * floats;
      const SequenceStep others[] = {kept(before.Rows(0, 130)), step, after.Rows(200, 3)};
      StepOutput out;
      ASSERT_TRUE(whole->Step(others, true, &out).ok());
      const int64_t skip = std::max(0, 130 - k0);
      const auto logits = out.logits.begin() + skip * kVocab;
      got.insert(got.end(), logits, logits + step.num_rows * kVocab);
      const auto width = static_cast<int64_t>(config.dspark.target_layer_ids.size()) * config.dim;
      const auto hidden = out.main_hidden.begin() + skip * width;
      got_hidden.insert(got_hidden.end(), hidden, hidden + step.num_rows * width);
      before.LoseState();
      TestSequence fresh(whole.get(), tokens);
      before.TakeStateOf(fresh);
    }
    EXPECT_EQ(got, want.logits) << chunk;
    EXPECT_EQ(got_hidden, want.main_hidden) << chunk;
    EXPECT_EQ(decode.pool(), unsplit.pool()) << chunk;
  }
}

TEST_P(Chunking, ExactReplayAfterAHitEqualsAColdRun) {
  TinyModel model(Options());
  const std::vector<int32_t> tokens = GoldenFile("f32_L300").Ints("tokens");
  const std::vector<float> whole = TestSequence(model.get(), tokens).RunChunks({300});
  // Global KV of the first 256 tokens is kept, rings are lost: replay everything they reach.
  TestSequence sequence(model.get(), tokens);
  sequence.RunChunks({256});
  const std::vector<std::byte> before = sequence.pool();
  sequence.LoseState();
  SequenceStep step = sequence.Rows(0, 300);
  step.write_from = 256;
  StepOutput out;
  ASSERT_TRUE(model->Step({&step, 1}, false, &out).ok());
  EXPECT_EQ(out.logits, whole);
  // Stored bytes of the hit are untouched: pages 0 and 1 of the table.
  const int64_t block = model->layout().block_bytes;
  for (int i = 0; i < 2; ++i) {
    const int64_t at = step.block_table[i] * block;
    EXPECT_TRUE(
        std::equal(before.begin() + at, before.begin() + at + block, sequence.pool().begin() + at));
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, Chunking,
                         ::testing::Values(Numerics::kRef, Numerics::kRefActq, Numerics::kProd),
                         [](const auto& p) { return std::string(NumericsName(p.param)); });

// Greedy continuation with the cache; logits of every decided position.
std::vector<int32_t> Greedy(TinyModel& model, const std::vector<int32_t>& prompt, int32_t count,
                            std::vector<float>* logits) {
  std::vector<int32_t> tokens = prompt;
  tokens.resize(prompt.size() + static_cast<size_t>(count) + 1);
  TestSequence sequence(model.get(), tokens);
  int32_t start = 0, n = static_cast<int32_t>(prompt.size());
  std::vector<int32_t> generated;
  for (int32_t i = 0; i < count; ++i) {
    SequenceStep step = sequence.Rows(start, n);
    step.logits_from = start + n - 1;
    StepOutput out;
    EXPECT_TRUE(model->Step({&step, 1}, false, &out).ok());
    logits->insert(logits->end(), out.logits.begin(), out.logits.end());
    generated.push_back(ArgMax(out.logits.data(), kVocab));
    start += n;
    n = 1;
    sequence.tokens()[static_cast<size_t>(start)] = generated.back();
  }
  return generated;
}

TEST(GoldenGreedy, RefIdsAreEqual) {
  for (const char* file : {"f32_greedy_L5", "f32_greedy_L63"}) {
    TinyModel model({.threads = 1});
    const GoldenFile golden(file);
    std::vector<float> logits;
    EXPECT_EQ(Greedy(model, golden.Ints("prompt"), 32, &logits), golden.Ints("generated"));
    EXPECT_LE(Compare(golden.Floats("logits"), logits, kVocab).rms, 5e-2);
  }
}

TEST(GoldenGreedy, RefActqIdsAgree) {
  for (const char* file : {"f32_actq_greedy_L5", "f32_actq_greedy_L63"}) {
    TinyModelOptions options;
    options.numerics = Numerics::kRefActq;
    options.threads = 1;
    TinyModel model(options);
    const GoldenFile golden(file);
    std::vector<float> logits;
    const auto got = Greedy(model, golden.Ints("prompt"), 32, &logits);
    const auto want = golden.Ints("generated");
    int equal = 0;
    for (size_t i = 0; i < want.size(); ++i) equal += got[i] == want[i];
    EXPECT_GE(equal, 29) << file;
  }
}

}  // namespace
}  // namespace deepinfer
