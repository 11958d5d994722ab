// The draft model against recorded passes, and what its results may not depend on.

#include <gtest/gtest.h>

#include <algorithm>

#include "golden/compare.h"
#include "golden/golden_file.h"
#include "golden/tiny_model.h"
#include "model/draft_model.h"

namespace deepinfer {
namespace {

constexpr int64_t kVocab = 512;
constexpr int32_t kDrafts = 5;

// A model with its draft model.
class DraftingModel {
 public:
  explicit DraftingModel(const TinyModelOptions& options) : target_(options), draft_(*target_) {}

  Model* target() { return target_.get(); }
  DraftModel* draft() { return &draft_; }

 private:
  TinyModel target_;
  DraftModel draft_;
};

// A sequence after its prompt: pages, slot with filled draft rings, and the number of committed
// positions.
class DraftedSequence {
 public:
  DraftedSequence(DraftingModel* model, std::vector<int32_t> prompt, uint32_t seed = 1)
      : model_(model),
        length_(static_cast<int32_t>(prompt.size())),
        sequence_(model->target(), std::move(prompt), seed) {
    Advance(0, length_);
  }

  // Commits one more token and returns the logits behind it.
  std::vector<float> Feed(int32_t token) {
    sequence_.tokens().resize(static_cast<size_t>(length_));
    sequence_.tokens().push_back(token);
    return Advance(length_++, 1);
  }

  // Hidden rows of tokens behind the committed ones go into the rings, as those of drafts do that
  // are rejected later.
  void InjectRejected(const std::vector<int32_t>& tokens) {
    sequence_.tokens().resize(static_cast<size_t>(length_));
    sequence_.tokens().insert(sequence_.tokens().end(), tokens.begin(), tokens.end());
    Advance(length_, static_cast<int32_t>(tokens.size()));
  }

  DraftSequence Anchor(int32_t token, int32_t ring_from = 0) {
    return {token, length_, ring_from, sequence_.slot().data()};
  }
  TestSequence& sequence() { return sequence_; }
  int32_t length() const { return length_; }

 private:
  std::vector<float> Advance(int32_t start, int32_t count) {
    const SequenceStep step = sequence_.Rows(start, count);
    StepOutput out;
    EXPECT_TRUE(model_->target()->Step({&step, 1}, true, &out).ok());
    const DraftContext context{out.main_hidden.data(), start, count, sequence_.slot().data()};
    EXPECT_TRUE(model_->draft()->InjectContext({&context, 1}).ok());
    return {out.logits.end() - kVocab, out.logits.end()};
  }

  DraftingModel* model_;
  int32_t length_;
  TestSequence sequence_;
};

struct Drafts {
  std::vector<int32_t> ids;
  std::vector<float> logits;      // [drafts, vocab]
  std::vector<float> confidence;  // [drafts]
};

// Greedy drafts of all sequences in one batch.
std::vector<Drafts> DraftGreedily(DraftingModel* model, const std::vector<DraftSequence>& sequences,
                                  int32_t num_drafts = kDrafts) {
  DraftRows rows;
  EXPECT_TRUE(model->draft()->Draft(sequences, num_drafts, &rows).ok());
  EXPECT_EQ(rows.num_drafts, num_drafts);
  std::vector<Drafts> drafts(sequences.size());
  std::vector<int32_t> previous;
  for (const DraftSequence& s : sequences) previous.push_back(s.anchor);
  for (int32_t k = 0; k < rows.num_drafts; ++k) {
    DraftProposal proposal;
    EXPECT_TRUE(model->draft()->Propose(rows, k, previous, &proposal).ok());
    for (size_t s = 0; s < sequences.size(); ++s) {
      EXPECT_TRUE(rows.status[s].ok());
      const float* logits = proposal.logits.data() + static_cast<int64_t>(s) * kVocab;
      previous[s] = ArgMax(logits, kVocab);
      drafts[s].ids.push_back(previous[s]);
      drafts[s].logits.insert(drafts[s].logits.end(), logits, logits + kVocab);
      drafts[s].confidence.push_back(proposal.confidence[s]);
    }
  }
  return drafts;
}

Drafts DraftOne(DraftingModel* model, const DraftSequence& sequence) {
  return DraftGreedily(model, {sequence})[0];
}

void ExpectSameBits(const Drafts& want, const Drafts& got) {
  EXPECT_EQ(want.ids, got.ids);
  EXPECT_EQ(want.logits, got.logits);
  EXPECT_EQ(want.confidence, got.confidence);
}

TEST(GoldenDraft, PassesGiveTheRecordedDraftsLogitsAndConfidence) {
  for (const char* file : {"f32_dspark_L63", "f32_dspark_L129"}) {
    const GoldenFile golden(file);
    const std::vector<int32_t> fed = golden.Ints("main_in");
    const std::vector<int32_t> want_ids = golden.Ints("out_ids");
    DraftingModel model({});
    DraftedSequence sequence(&model, golden.Ints("prompt"));
    std::vector<int32_t> ids;
    std::vector<float> logits, confidence;
    for (const int32_t token : fed) {
      const int32_t anchor = ArgMax(sequence.Feed(token).data(), kVocab);
      const Drafts drafts = DraftOne(&model, sequence.Anchor(anchor));
      ids.push_back(anchor);
      ids.insert(ids.end(), drafts.ids.begin(), drafts.ids.end());
      logits.insert(logits.end(), drafts.logits.begin(), drafts.logits.end());
      confidence.insert(confidence.end(), drafts.confidence.begin(), drafts.confidence.end());
    }
    EXPECT_EQ(ids, want_ids) << file;
    const LogitDistance d = Compare(golden.Floats("logits"), logits, kVocab);
    EXPECT_LE(d.max, 5e-2) << file;
    EXPECT_LE(d.rms, 5e-2) << file;
    EXPECT_LE(Compare(golden.Floats("confidence"), confidence, kDrafts).max, 1e-2) << file;
  }
}

std::vector<int32_t> Prompt(int32_t length, int32_t step) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < length; ++i) tokens.push_back((7 + i * step) % 500);
  return tokens;
}

TEST(GoldenDraft, EverySetOfKernelsGivesTheBitsOfTheReference) {
  for (const Numerics numerics : {Numerics::kRef, Numerics::kRefActq, Numerics::kProd}) {
    DraftingModel reference({.numerics = numerics});
    DraftingModel fast({.numerics = numerics, .threads = 2});
    std::vector<Drafts> drafts;
    for (DraftingModel* model : {&reference, &fast}) {
      DraftedSequence sequence(model, Prompt(70, 13));
      drafts.push_back(DraftOne(model, sequence.Anchor(42)));
    }
    ExpectSameBits(drafts[0], drafts[1]);
  }
}

TEST(GoldenDraft, SequencesOfABatchDoNotSeeEachOther) {
  DraftingModel model({.numerics = Numerics::kProd, .threads = 2});
  DraftedSequence a(&model, Prompt(3, 5), 1);
  DraftedSequence b(&model, Prompt(130, 11), 2);
  DraftedSequence c(&model, Prompt(64, 17), 3);
  const std::vector<DraftSequence> batch = {a.Anchor(9), b.Anchor(8), c.Anchor(7)};
  const std::vector<Drafts> together = DraftGreedily(&model, batch);
  for (size_t s = 0; s < batch.size(); ++s) {
    ExpectSameBits(DraftOne(&model, batch[s]), together[s]);
  }
}

// Rows that will not be asked for cost nothing and change nothing.
TEST(GoldenDraft, FewerDraftsAreTheFirstOfAll) {
  DraftingModel model({.numerics = Numerics::kProd, .threads = 2});
  DraftedSequence a(&model, Prompt(30, 5), 1);
  DraftedSequence b(&model, Prompt(90, 11), 2);
  const std::vector<DraftSequence> batch = {a.Anchor(9), b.Anchor(8)};
  const std::vector<Drafts> all = DraftGreedily(&model, batch);
  for (int32_t num_drafts = 1; num_drafts < kDrafts; ++num_drafts) {
    const std::vector<Drafts> first = DraftGreedily(&model, batch, num_drafts);
    for (size_t s = 0; s < batch.size(); ++s) {
      Drafts want = all[s];
      want.ids.resize(static_cast<size_t>(num_drafts));
      want.logits.resize(static_cast<size_t>(num_drafts * kVocab));
      want.confidence.resize(static_cast<size_t>(num_drafts));
      ExpectSameBits(want, first[s]);
    }
  }
}

// Nothing is undone after a rejection: rows behind the committed length are dead until rewritten,
// and none of them is read, wherever in the ring they lie.
TEST(GoldenDraft, K01_RejectedRowsLeaveNoTrace) {
  DraftingModel model({.numerics = Numerics::kProd, .threads = 2});
  for (const int32_t length : {1, 63, 64, 69, 70, 71, 140}) {
    DraftedSequence plain(&model, Prompt(length, 13));
    DraftedSequence drafted(&model, Prompt(length, 13));
    for (int32_t round = 0; round < 4; ++round) {
      drafted.InjectRejected({1, 2, 3, 4, 5, 6});
      ExpectSameBits(DraftOne(&model, plain.Anchor(42)), DraftOne(&model, drafted.Anchor(42)));
      plain.Feed(100 + round);
      drafted.Feed(100 + round);
    }
  }
}

// After a hand-over only the last rows may be there: those below ring_from are never read.
TEST(GoldenDraft, RowsBelowRingFromAreNotRead) {
  DraftingModel model({.numerics = Numerics::kProd, .threads = 2});
  DraftedSequence sequence(&model, Prompt(40, 13));
  const int32_t ring_from = 30;
  const Drafts want = DraftOne(&model, sequence.Anchor(42, ring_from));
  const Drafts all = DraftOne(&model, sequence.Anchor(42));
  EXPECT_NE(want.logits, all.logits);
  const KvLayout& layout = model.target()->layout();
  for (int32_t ring = model.target()->config().num_layers; ring < layout.num_rings; ++ring) {
    std::byte* base = layout.Ring(sequence.sequence().slot().data(), ring);
    std::fill_n(base, ring_from * layout.window_row_bytes, std::byte{0x5A});
  }
  ExpectSameBits(want, DraftOne(&model, sequence.Anchor(42, ring_from)));
}

// The rings end up the same however the hidden rows were split, also when more rows come at once
// than a ring holds.
TEST(GoldenDraft, RingsDoNotDependOnTheSplitOfTheContext) {
  DraftingModel model({.numerics = Numerics::kProd, .threads = 2});
  const std::vector<int32_t> prompt = Prompt(150, 13);
  DraftedSequence whole(&model, prompt);
  DraftedSequence split(&model, {prompt.begin(), prompt.begin() + 80});
  for (size_t i = 80; i < prompt.size(); ++i) split.Feed(prompt[i]);
  ExpectSameBits(DraftOne(&model, whole.Anchor(42)), DraftOne(&model, split.Anchor(42)));
}

}  // namespace
}  // namespace deepinfer
