// Whose drafts pay, when requests rest, and when they are tried again.
#include "sched/draft_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace deepinfer {
namespace {

// A machine on which a row takes 150 µs beside 300 µs of a step, and a draft pass 200 µs and 100 µs
// for each request: drafts pay for one good request alone, never for many together.
double StepUs(int64_t num_rows) { return 300.0 + 150.0 * static_cast<double>(num_rows); }
double DraftUs(int64_t num_requests) { return 200.0 + 100.0 * static_cast<double>(num_requests); }
double Unknown(int64_t) { return 0.0; }

std::vector<DraftCandidate> Candidates(const std::vector<double>& rates) {
  std::vector<DraftCandidate> candidates;
  for (const double rate : rates) {
    candidates.push_back({static_cast<int64_t>(candidates.size()) + 1, rate, 5, false});
  }
  return candidates;
}

std::vector<int64_t> Chosen(const std::vector<double>& rates, const WorkTime& step_us,
                            const WorkTime& draft_us) {
  return ChooseDrafting(Candidates(rates), step_us, draft_us, 0.0).request_ids;
}

TEST(DraftPolicy, OneGoodRequestDraftsAndAPoorOneRests) {
  EXPECT_EQ(Chosen({0.95}, StepUs, DraftUs), std::vector<int64_t>{1});
  EXPECT_TRUE(Chosen({0.3}, StepUs, DraftUs).empty());
}

TEST(DraftPolicy, EveryRequestIsJudgedForItself) {
  const auto cheap_rows = [](int64_t num_rows) {
    return 300.0 + 40.0 * static_cast<double>(num_rows);
  };
  EXPECT_EQ(Chosen({0.2, 0.95, 0.1}, cheap_rows, DraftUs), std::vector<int64_t>{2});
  auto both = Chosen({0.9, 0.2, 0.95}, cheap_rows, DraftUs);
  std::sort(both.begin(), both.end());
  EXPECT_EQ(both, (std::vector<int64_t>{1, 3}));
}

TEST(DraftPolicy, InALargeBatchRowsAreWorthMoreToOthers) {
  EXPECT_TRUE(Chosen(std::vector<double>(16, 0.9), StepUs, DraftUs).empty());
}

TEST(DraftPolicy, GainsBelowTheErrorOfTheirPricesAreLeft) {
  // Five drafts that are always accepted: 6 tokens instead of 1.
  const auto step_us = [](int64_t num_rows) { return num_rows == 1 ? 100.0 : 595.0; };
  EXPECT_TRUE(Chosen({1.0}, step_us, Unknown).empty());
  const auto cheaper = [](int64_t num_rows) { return num_rows == 1 ? 100.0 : 580.0; };
  EXPECT_EQ(Chosen({1.0}, cheaper, Unknown), std::vector<int64_t>{1});
}

TEST(DraftPolicy, WhereNoTimeIsKnownAllDraft) {
  EXPECT_EQ(Chosen({0.1, 0.2}, Unknown, Unknown).size(), 2u);
}

TEST(DraftPolicy, RequestsWithoutTokensLeftDoNotDraft) {
  std::vector<DraftCandidate> candidates = Candidates({0.99});
  candidates[0].most_drafts = 0;
  candidates[0].may_try = true;
  EXPECT_TRUE(ChooseDrafting(candidates, StepUs, DraftUs, 1e9).request_ids.empty());
  EXPECT_TRUE(ChooseDrafting({}, StepUs, DraftUs, 1e9).request_ids.empty());
}

TEST(DraftPolicy, OneRequestTriesAndOnlyWithinTheAllowance) {
  std::vector<DraftCandidate> candidates = Candidates({0.3, 0.4, 0.45});
  const auto step_us = [](int64_t num_rows) {
    return 300.0 + 50.0 * static_cast<double>(num_rows);
  };
  const double try_us = DraftUs(1);
  candidates[0].may_try = candidates[1].may_try = true;
  const DraftChoice choice = ChooseDrafting(candidates, step_us, DraftUs, try_us);
  EXPECT_TRUE(choice.is_try);
  EXPECT_DOUBLE_EQ(choice.try_us, try_us);
  // The better of those that may.
  EXPECT_EQ(choice.request_ids, std::vector<int64_t>{2});
  const DraftChoice dear = ChooseDrafting(candidates, step_us, DraftUs, 0.99 * try_us);
  EXPECT_TRUE(dear.request_ids.empty());
  EXPECT_DOUBLE_EQ(dear.try_us, try_us);
  candidates[0].may_try = candidates[1].may_try = false;
  EXPECT_TRUE(ChooseDrafting(candidates, step_us, DraftUs, try_us).request_ids.empty());
}

TEST(DraftPolicy, NobodyTriesWhatCouldNotPay) {
  const auto tries = [](size_t num_requests, double yield) {
    std::vector<DraftCandidate> candidates = Candidates(std::vector<double>(num_requests, 0.3));
    candidates.back().may_try = true;
    return ChooseDrafting(candidates, StepUs, DraftUs, 1e9, yield).is_try;
  };
  EXPECT_TRUE(tries(1, 1.0));
  EXPECT_FALSE(tries(8, 1.0));
  EXPECT_FALSE(tries(1, 0.5));
  // What a pass takes is unknown before there was one.
  std::vector<DraftCandidate> candidates = Candidates(std::vector<double>(8, 0.3));
  candidates[0].may_try = true;
  const auto dear_rows = [](int64_t num_rows) { return 1000.0 * static_cast<double>(num_rows); };
  EXPECT_TRUE(ChooseDrafting(candidates, dear_rows, Unknown, 1e9).is_try);
  EXPECT_FALSE(ChooseDrafting(candidates, dear_rows, DraftUs, 1e9).is_try);
}

TEST(DraftPolicy, TheChoiceIsTheBestOneOfAllSets) {
  std::mt19937 random(41);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  int num_drafting = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<double> rates(1 + random() % 5);
    for (double& r : rates) r = uniform(random);
    const double row_us = 10.0 + 100.0 * uniform(random), base_us = 1000.0 * uniform(random);
    const WorkTime step_us = [&](int64_t n) { return base_us + row_us * static_cast<double>(n); };
    const auto chosen = Chosen(rates, step_us, DraftUs);
    num_drafting += !chosen.empty();
    // Tokens per µs of a set, with the best number of its drafts.
    const auto value = [&](unsigned set) {
      std::vector<double> survivals;
      for (size_t i = 0; i < rates.size(); ++i) {
        if ((set >> i & 1) == 0) continue;
        for (const double s : ExpectedSurvivals(rates[i], 5)) survivals.push_back(s);
      }
      std::sort(survivals.rbegin(), survivals.rend());
      const auto num = static_cast<int64_t>(rates.size());
      auto tokens = static_cast<double>(num);
      const double pass_us = set == 0 ? 0.0 : DraftUs(__builtin_popcount(set));
      double best = tokens / (step_us(num) + pass_us);
      for (size_t k = 1; k <= survivals.size(); ++k) {
        tokens += survivals[k - 1];
        best = std::max(best, tokens / (step_us(num + static_cast<int64_t>(k)) + pass_us));
      }
      return best;
    };
    unsigned set = 0;
    for (const int64_t id : chosen) set |= 1u << (id - 1);
    double best = 0;
    for (unsigned s = 0; s < 1u << rates.size(); ++s) best = std::max(best, value(s));
    ASSERT_GE(value(set) * (set == 0 ? 1.02 : 1.0), best * (1 - 1e-12)) << "round " << round;
  }
  EXPECT_GT(num_drafting, 50);
  EXPECT_LT(num_drafting, 290);
}

TEST(DraftPolicy, ANewRequestIsJudgedByAllOthersAndAnOldOneByItself) {
  const DraftCounts poor{1, 9}, good{9, 1};
  EXPECT_DOUBLE_EQ(AcceptanceRate({}, poor), 0.1);
  EXPECT_DOUBLE_EQ(AcceptanceRate({}, good), 0.9);
  DraftRecord own;
  for (int i = 0; i < 20; ++i) NoteVerification(5, 0, kRequestMemory, &own.counts);
  EXPECT_GT(AcceptanceRate(own, poor), 0.9);
  own = {};
  for (int i = 0; i < 20; ++i) NoteVerification(0, 1, kRequestMemory, &own.counts);
  EXPECT_LT(AcceptanceRate(own, good), 0.4);
}

TEST(DraftPolicy, ConfidenceCountsBeforeAnythingWasJudged) {
  const DraftCounts all{3, 1};
  DraftRecord sure, unsure;
  sure.mean_confidence = 0.95;
  unsure.mean_confidence = 0.1;
  EXPECT_GT(AcceptanceRate(sure, all), 0.8);
  EXPECT_LT(AcceptanceRate(unsure, all), 0.55);
}

TEST(DraftPolicy, OldDraftsAreForgotten) {
  DraftRecord own;
  for (int i = 0; i < 200; ++i) NoteVerification(5, 0, kRequestMemory, &own.counts);
  for (int i = 0; i < 60; ++i) NoteVerification(0, 1, kRequestMemory, &own.counts);
  EXPECT_LT(AcceptanceRate(own, {1, 1}), 0.4);
}

TEST(DraftPolicy, WhatIsKnownOfAllDraftsGetsOutOfDateWhileTheyRest) {
  DraftCounts counts{1, 40};
  for (int i = 0; i < 100; ++i) NoteRest(&counts);
  EXPECT_LT(AcceptanceRate({}, counts), 0.2);
  for (int i = 0; i < 8000; ++i) NoteRest(&counts);
  EXPECT_NEAR(AcceptanceRate({}, counts), 0.75, 0.01);
}

TEST(DraftPolicy, TriesBackOff) {
  DraftRecord record;
  EXPECT_TRUE(IsTryDue(record, 0));  // new requests are tried at once
  std::vector<int64_t> waits;
  for (int i = 0; i < 8; ++i) {
    NoteDrafting(/*is_try=*/true, &record);
    EXPECT_FALSE(IsTryDue(record, 0));
    record.tokens_since = record.retry_tokens - 1;
    EXPECT_FALSE(IsTryDue(record, 0));
    EXPECT_TRUE(IsTryDue(record, 1));
    waits.push_back(record.retry_tokens);
  }
  EXPECT_EQ(waits, (std::vector<int64_t>{64, 128, 256, 512, 1024, 2048, 2048, 2048}));
  NoteTryPaid(&record);
  EXPECT_TRUE(IsTryDue(record, 0));
  NoteDrafting(/*is_try=*/false, &record);
  EXPECT_EQ(record.retry_tokens, 64);
}

TEST(DraftPolicy, ATryTakenBackIsDueAgainAndDoesNotBackOff) {
  DraftRecord record;
  for (int64_t before : {0, 64, 128, 256}) {
    ASSERT_EQ(record.retry_tokens, before);
    NoteDrafting(/*is_try=*/true, &record);
    EXPECT_FALSE(IsTryDue(record, 0));
    TakeBackTry(&record);
    EXPECT_TRUE(IsTryDue(record, 0));
    EXPECT_EQ(record.retry_tokens, before);
    NoteDrafting(/*is_try=*/true, &record);
  }
}

TEST(DraftPolicy, TriesTakeAShareOfTheTimeAndSaveUpAFewStepsOfIt) {
  TryAllowance allowance;
  for (int i = 0; i < 100; ++i) allowance.Earn(200.0);
  EXPECT_NEAR(allowance.us(), TryAllowance::Earned(200.0, 100), 1e-9);
  EXPECT_NEAR(allowance.us(), 0.003 * 200.0 * 100, 1e-9);
  for (int i = 0; i < 10000; ++i) allowance.Earn(200.0);
  EXPECT_NEAR(allowance.us(), 8 * 200.0, 1e-9);
  // Shorter steps take nothing of what is saved.
  allowance.Earn(1.0);
  EXPECT_NEAR(allowance.us(), 8 * 200.0, 1e-9);
  allowance.Spend(300.0);
  EXPECT_NEAR(allowance.us(), 1300.0, 1e-9);
  allowance.GiveBack(-50.0, 300.0);  // its drafts cost rows and gained nothing
  EXPECT_NEAR(allowance.us(), 1300.0, 1e-9);
  allowance.GiveBack(1000.0, 300.0);  // never more than it took
  EXPECT_NEAR(allowance.us(), 1600.0, 1e-9);
}

TEST(DraftPolicy, TheExpectedStepIsThatOfTheChoice) {
  const DraftChoice drafts = ChooseDrafting(Candidates({1.0}), StepUs, DraftUs, 0.0);
  EXPECT_DOUBLE_EQ(drafts.step.tokens, 6.0);
  EXPECT_DOUBLE_EQ(drafts.step.us, StepUs(6) + DraftUs(1));
  const DraftChoice rests = ChooseDrafting(Candidates({0.1, 0.1}), StepUs, DraftUs, 0.0);
  EXPECT_DOUBLE_EQ(rests.step.tokens, 2.0);
  EXPECT_DOUBLE_EQ(rests.step.us, StepUs(2));
  EXPECT_EQ(ChooseDrafting(Candidates({0.5}), Unknown, Unknown, 0.0).step.us, 0.0);
}

TEST(DraftPolicy, DraftingThatYieldsLessThanExpectedRests) {
  const auto drafts = [](double yield) {
    return !ChooseDrafting(Candidates({1.0}), StepUs, DraftUs, 0.0, yield).request_ids.empty();
  };
  // Six tokens in 1500 µs are 1.8 times one in 450 µs.
  EXPECT_TRUE(drafts(0.6));
  EXPECT_FALSE(drafts(0.55));
}

TEST(DraftPolicy, AYieldComparesWhatStepsMadeWithAndWithoutDrafts) {
  const ExpectedStep three{3.0, 600.0}, one{1.0, 300.0};
  DraftYield yield;
  EXPECT_DOUBLE_EQ(yield.factor(), 1.0);
  for (int i = 0; i < 400; ++i) yield.NoteDrafting(three, 2.5, 600.0);
  EXPECT_NEAR(yield.factor(), 2.5 / 3.0, 0.01);
  // Steps without drafts took longer, too.
  for (int i = 0; i < 40; ++i) yield.NoteResting(one, 1.0, 360.0);
  EXPECT_GT(yield.factor(), 2.5 / 3.0 * 1.05);
  EXPECT_LT(yield.factor(), 1.0);
}

TEST(DraftPolicy, AStepThatWasHeldUpHardlyChangesAYield) {
  DraftYield yield;
  yield.NoteDrafting({3.0, 600.0}, 3.0, 1e6);
  EXPECT_GT(yield.factor(), 0.85);
}

TEST(DraftPolicy, WhatIsKnownOfAYieldGetsOutOfDateWhileDraftsRest) {
  const ExpectedStep one{1.0, 300.0};
  DraftYield yield;
  for (int i = 0; i < 400; ++i) yield.NoteDrafting({3.0, 600.0}, 1.5, 600.0);
  EXPECT_NEAR(yield.factor(), 0.5, 0.02);
  for (int i = 0; i < 100; ++i) yield.NoteResting(one, 1.0, 300.0);
  EXPECT_LT(yield.factor(), 0.6);
  for (int i = 0; i < 5000; ++i) yield.NoteResting(one, 1.0, 300.0);
  EXPECT_GT(yield.factor(), 0.98);
}

// Requests one after the other, each with its own chance that a draft is accepted.
struct Decoded {
  int64_t tokens = 0;
  double us = 0;
  int num_verifications = 0;
};

class OneAtATime {
 public:
  Decoded Decode(double acceptance, int64_t num_tokens) {
    Decoded run;
    DraftRecord own;
    while (run.tokens < num_tokens) {
      const std::vector<DraftCandidate> candidates = {
          {1, AcceptanceRate(own, all_), 5, IsTryDue(own, 0)}};
      const DraftChoice choice = ChooseDrafting(candidates, StepUs, DraftUs, allowance_.us());
      double us = StepUs(1);
      int64_t emitted = 1;
      if (!choice.request_ids.empty()) {
        if (choice.is_try) allowance_.Spend(choice.try_us);
        NoteDrafting(choice.is_try, &own);
        // Of a try only what its confidence makes worth a row is verified.
        const int64_t num_verified = choice.is_try && acceptance < 0.5 ? 0 : 5;
        us = StepUs(1 + num_verified) + DraftUs(1);
        while (emitted <= num_verified && uniform_(random_) < acceptance) ++emitted;
        const auto accepted = static_cast<double>(emitted - 1);
        const double refused = accepted < static_cast<double>(num_verified) ? 1 : 0;
        own.mean_confidence = acceptance;
        if (num_verified > 0) {
          ++run.num_verifications;
          NoteVerification(accepted, refused, kRequestMemory, &own.counts);
          NoteVerification(accepted, refused, kTotalMemory, &all_);
        }
        const double gained_us =
            accepted * choice.token_us - 150.0 * static_cast<double>(num_verified);
        if (choice.is_try) allowance_.GiveBack(gained_us, choice.try_us);
        if (choice.is_try && gained_us > choice.try_us) NoteTryPaid(&own);
      } else {
        own.tokens_since += emitted;
      }
      allowance_.Earn(us);
      run.us += us;
      run.tokens += emitted;
    }
    return run;
  }

 private:
  std::mt19937 random_{42};
  std::uniform_real_distribution<double> uniform_{0.0, 1.0};
  DraftCounts all_{3, 1};
  TryAllowance allowance_;
};

// Speed against decoding token by token.
double Speedup(const Decoded& run) { return StepUs(1) * static_cast<double>(run.tokens) / run.us; }

TEST(DraftPolicy, APoorRequestCostsLittleAndAGoodOneKeepsDrafting) {
  OneAtATime engine;
  const Decoded poor = engine.Decode(0.2, 1000);
  EXPECT_LT(poor.num_verifications, 5);
  EXPECT_GT(Speedup(poor), 0.99);
  // What was seen of the first one makes the second a suspect, and its try clears it.
  const Decoded good = engine.Decode(0.98, 1000);
  EXPECT_GT(Speedup(good), 1.6);
}

TEST(DraftPolicy, ManyPoorRequestsDoNotKeepAGoodOneFromDrafting) {
  OneAtATime engine;
  Decoded poor;
  for (int i = 0; i < 40; ++i) {
    const Decoded run = engine.Decode(0.1, 50);
    poor.tokens += run.tokens;
    poor.us += run.us;
  }
  EXPECT_GT(Speedup(poor), 0.99);
  EXPECT_GT(Speedup(engine.Decode(0.98, 1000)), 1.4);
}

}  // namespace
}  // namespace deepinfer
