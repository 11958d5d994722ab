// Steps after a prefix hit and schedules of many sequences: equal bits to one cold run, stored
// bytes untouched (model.md §13, numerics.md §4.5).

#include <gtest/gtest.h>

#include <random>

#include "golden/golden_file.h"
#include "golden/tiny_model.h"

namespace deepinfer {
namespace {

constexpr int64_t kVocab = 512;

// Ids below the special ones, from a fixed seed.
std::vector<int32_t> RandomTokens(size_t count, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<int32_t> tokens(count);
  for (int32_t& t : tokens) t = static_cast<int32_t>(3 + rng() % 500);
  return tokens;
}

class Replay : public ::testing::TestWithParam<Numerics> {
 protected:
  Replay() : model_({.numerics = GetParam(), .threads = 1}) {}

  // Kept rows of a prompt of that length.
  int32_t Origin(int32_t prompt) { return prompt - TestKeepRows(*model_); }
  // Rows back to where an encoder row's windows reach through all encoder layers.
  int32_t EncoderReach() {
    return (model_->config().window - 1) * model_->config().decoder_start();
  }

  // Runs [start, prompt) in one step with a compact decoder tail; logits of the kept rows.
  std::vector<float> RunTail(TestSequence* sequence, int32_t start, int32_t prompt, int32_t floor,
                             int32_t hit) {
    SequenceStep step = sequence->Rows(start, prompt - start);
    step.window_floor = floor;
    step.write_from = hit;
    step.decoder_from = step.decoder_origin = step.logits_from = Origin(prompt);
    StepOutput out;
    EXPECT_TRUE(model_->Step({&step, 1}, false, &out).ok());
    EXPECT_TRUE(out.status[0].ok()) << out.status[0].ToString();
    return out.logits;
  }

  // Both sequences go on with one more row and must agree on it.
  void ExpectSameNext(TestSequence* a, TestSequence* b, int32_t position) {
    std::vector<SequenceStep> steps = {a->Rows(position, 1), b->Rows(position, 1)};
    for (SequenceStep& s : steps) s.decoder_origin = Origin(position);
    StepOutput out;
    ASSERT_TRUE(model_->Step(steps, false, &out).ok());
    EXPECT_TRUE(
        std::equal(out.logits.begin(), out.logits.begin() + kVocab, out.logits.begin() + kVocab));
  }

  TinyModel model_;
};

TEST_P(Replay, ExactReplayOfTheReachOnlyEqualsAColdRun) {
  // Replays that start at an odd and at an even position, and a hit of the whole prompt.
  struct Case {
    int32_t prompt, hit;
  };
  const std::vector<int32_t> tokens = RandomTokens(512, 3);
  for (const Case& c : {Case{500, 384}, Case{453, 384}, Case{512, 512}}) {
    TestSequence cold(model_.get(), tokens, 11);
    const std::vector<float> want = RunTail(&cold, 0, c.prompt, 0, 0);
    TestSequence hit = cold;
    hit.LoseState();
    const int32_t from = std::min(c.hit, Origin(c.prompt)) - EncoderReach();
    ASSERT_GT(from, 0);
    EXPECT_EQ(RunTail(&hit, from, c.prompt, from, c.hit), want) << c.prompt << " hit " << c.hit;
    EXPECT_EQ(hit.pool(), cold.pool()) << c.prompt << " hit " << c.hit;
    if (c.prompt < 512) ExpectSameNext(&cold, &hit, c.prompt);
  }
}

TEST_P(Replay, ASnapshotOfTheEncoderRingsEqualsAColdRun) {
  const std::vector<int32_t> tokens = RandomTokens(512, 4);
  const int32_t prompt = 480, hit_length = 384, edge = 256;
  TestSequence cold(model_.get(), tokens, 12);
  const std::vector<float> want = RunTail(&cold, 0, prompt, 0, 0);

  TestSequence donor(model_.get(), tokens, 13);
  donor.RunChunks({100, edge - 100});
  TestSequence hit = cold;
  hit.LoseState();
  const int64_t rings = model_->layout().ring_bytes * model_->config().decoder_start();
  std::copy_n(donor.slot().begin(), rings, hit.slot().begin());
  EXPECT_EQ(RunTail(&hit, edge, prompt, edge - model_->config().window, hit_length), want);
  EXPECT_EQ(hit.pool(), cold.pool());
  ExpectSameNext(&cold, &hit, prompt);
}

TEST_P(Replay, BoundedReplayKeepsTheStoredBytesAndReadsNothingBelowItsFloor) {
  const std::vector<int32_t> tokens = RandomTokens(512, 5);
  const int32_t prompt = 500, hit_length = 384;
  TestSequence cold(model_.get(), tokens, 14);
  const std::vector<float> exact = RunTail(&cold, 0, prompt, 0, 0);
  const int32_t from = std::min(hit_length - model_->config().window, Origin(prompt));
  std::vector<float> first;
  std::vector<std::byte> first_pool;
  for (int run = 0; run < 2; ++run) {
    TestSequence hit = cold;
    hit.LoseState();
    // What lies in the rings must not matter: once random bytes, once zeros.
    if (run == 1) std::fill(hit.slot().begin(), hit.slot().end(), std::byte{0});
    const std::vector<float> got = RunTail(&hit, from, prompt, from, hit_length);
    for (int32_t b = 0; b < hit_length / kBlockTokens; ++b) {
      const int64_t block = model_->layout().block_bytes;
      const int64_t at = hit.Rows(0, 1).block_table[b] * block;
      EXPECT_TRUE(std::equal(hit.pool().begin() + at, hit.pool().begin() + at + block,
                             cold.pool().begin() + at));
    }
    if (run == 0) {
      first = got;
      first_pool = hit.pool();
      EXPECT_NE(got, exact) << "a bounded replay that changes nothing clamps nothing";
    } else {
      EXPECT_EQ(got, first);
      EXPECT_EQ(hit.pool(), first_pool);
    }
  }
}

TEST_P(Replay, RandomSchedulesOfManySequencesGiveEveryRowItsBits) {
  struct Live {
    std::unique_ptr<TestSequence> sequence;
    std::vector<float> want;
    int32_t length = 0;
    int32_t done = 0;
  };
  for (const uint32_t seed : {1u, 2u}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 rng(seed);
    std::vector<Live> live(5);
    for (size_t i = 0; i < live.size(); ++i) {
      Live& l = live[i];
      l.length = static_cast<int32_t>(20 + rng() % 280);
      const std::vector<int32_t> tokens = RandomTokens(static_cast<size_t>(l.length), rng());
      l.want = TestSequence(model_.get(), tokens, 1).RunChunks({l.length});
      l.sequence = std::make_unique<TestSequence>(model_.get(), tokens, rng());
    }
    for (bool busy = true; busy;) {
      std::vector<SequenceStep> steps;
      std::vector<Live*> owners;
      busy = false;
      for (Live& l : live) {
        const int32_t left = l.length - l.done;
        busy |= left > 0;
        if (rng() % 4 == 0) continue;
        const int32_t most = rng() % 2 == 0 ? 6 : 90;
        const int32_t n = std::min(left, static_cast<int32_t>(rng() % (most + 1)));
        steps.push_back(l.sequence->Rows(l.done, n));
        owners.push_back(&l);
      }
      StepOutput out;
      ASSERT_TRUE(model_->Step(steps, false, &out).ok());
      auto got = out.logits.begin();
      for (size_t i = 0; i < steps.size(); ++i) {
        const int64_t count = steps[i].num_rows * kVocab;
        ASSERT_TRUE(std::equal(got, got + count,
                               owners[i]->want.begin() + int64_t{owners[i]->done} * kVocab))
            << "rows from " << owners[i]->done;
        got += count;
        owners[i]->done += steps[i].num_rows;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, Replay,
                         ::testing::Values(Numerics::kRef, Numerics::kRefActq, Numerics::kProd),
                         [](const auto& p) { return std::string(NumericsName(p.param)); });

}  // namespace
}  // namespace deepinfer
