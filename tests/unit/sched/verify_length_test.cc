// Lengths of verification: recorded plans, and that no token can influence its own admission.
#include "sched/verify_length.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include "support/source_dir.h"

namespace deepinfer {
namespace {

namespace json = boost::json;

json::value LoadVectors() {
  std::ifstream file(SourceDir() + "/tests/data/sched_vectors.json");
  return json::parse(std::string(std::istreambuf_iterator<char>(file), {}));
}

// The entry of the largest x that is not above the number of rows, clamped to the ends.
StepRate RateOf(const json::value& table) {
  const auto xs = json::value_to<std::vector<int64_t>>(table.at("xs"));
  const auto ys = json::value_to<std::vector<double>>(table.at("ys"));
  return [xs, ys](int64_t rows) {
    const auto above = std::upper_bound(xs.begin(), xs.end(), rows) - xs.begin();
    return ys[static_cast<size_t>(std::max<int64_t>(above - 1, 0))];
  };
}

// Every request emits a token, and all drafts may be verified.
VerifyLengths PlanAll(const std::vector<DraftSurvivals>& requests, const StepRate& rate) {
  return PlanSynchronousLengths(requests, static_cast<int64_t>(requests.size()), 1000, rate);
}

std::vector<DraftSurvivals> RequestsOf(const json::value& confidences) {
  std::vector<DraftSurvivals> requests;
  for (const auto& row : json::value_to<std::vector<std::vector<double>>>(confidences)) {
    requests.push_back({static_cast<int64_t>(requests.size()), SurvivalsOf(row)});
  }
  return requests;
}

TEST(VerifyLength, RecordedPlansAreRepeated) {
  const json::value data = LoadVectors();
  int num_vectors = 0;
  for (const json::value& vector : data.at("vectors").as_array()) {
    ++num_vectors;
    const json::object& v = vector.as_object();
    const std::string name(v.at("name").as_string());
    const json::value& sps = v.at("sps");
    const StepRate rate = RateOf(sps.is_string() ? data.at("tables").at(sps.as_string()) : sps);
    const auto requests = RequestsOf(v.at("conf"));
    const auto num_requests = static_cast<int64_t>(requests.size());
    const VerifyLengths synchronous = PlanAll(requests, rate);
    const DraftBudget budget = PlanDraftBudget(requests, num_requests, 0, rate);
    const bool paired = v.contains("alg1");
    const json::value& lengths = paired ? v.at("alg1").at(0) : v.at("alg1_len");
    const double value = (paired ? v.at("alg1").at(1) : v.at("alg1_theta")).to_number<double>();
    EXPECT_EQ(synchronous.lengths, json::value_to<std::vector<int32_t>>(lengths)) << name;
    EXPECT_NEAR(synchronous.tokens_per_second, value, 1e-9 * value) << name;
    const json::value& drafts = paired ? v.at("argmax").at(0) : v.at("argmax_budget");
    const double best = (paired ? v.at("argmax").at(1) : v.at("argmax_theta")).to_number<double>();
    EXPECT_EQ(budget.num_drafts, drafts.to_number<int64_t>()) << name;
    EXPECT_NEAR(budget.tokens_per_second, best, 1e-9 * best) << name;
    if (v.contains("topk_len")) {
      EXPECT_EQ(AllocateDrafts(requests, budget.num_drafts),
                json::value_to<std::vector<int32_t>>(v.at("topk_len")))
          << name;
    }
  }
  EXPECT_EQ(num_vectors, 18);
}

std::vector<DraftSurvivals> RandomRequests(std::mt19937* random) {
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  std::vector<DraftSurvivals> requests(1 + (*random)() % 6);
  for (DraftSurvivals& request : requests) {
    request.request_id = static_cast<int64_t>((*random)() % 1000);
    std::vector<double> acceptance((*random)() % 6);
    // Repeated values, so that ties occur.
    for (double& a : acceptance)
      a = (*random)() % 3 == 0 ? 1.0 : std::round(uniform(*random) * 8) / 8;
    request.survivals = SurvivalsOf(acceptance);
  }
  return requests;
}

TEST(VerifyLength, TheWholeBudgetIsSpentWhereDraftsExist) {
  std::mt19937 random(31);
  for (int round = 0; round < 2000; ++round) {
    const auto requests = RandomRequests(&random);
    int64_t available = 0;
    for (const auto& r : requests) available += static_cast<int64_t>(r.survivals.size());
    const auto budget = static_cast<int64_t>(random() % 20);
    const auto lengths = AllocateDrafts(requests, budget);
    int64_t spent = 0;
    for (size_t r = 0; r < requests.size(); ++r) {
      EXPECT_LE(lengths[r], static_cast<int32_t>(requests[r].survivals.size()));
      spent += lengths[r];
    }
    ASSERT_EQ(spent, std::min(budget, available));
  }
}

// The survival of draft j + 1 may depend on the token of draft j. Whether draft j is verified must
// not: with everything behind it changed, its admission is the same.
TEST(VerifyLength, AdmissionOfADraftIgnoresWhatComesBehindIt) {
  std::mt19937 random(32);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  const StepRate rate = [](int64_t rows) { return 1.0 / (1.0 + 0.05 * static_cast<double>(rows)); };
  int num_changed = 0;
  for (int round = 0; round < 5000; ++round) {
    const auto requests = RandomRequests(&random);
    const size_t r = random() % requests.size();
    if (requests[r].survivals.empty()) continue;
    const size_t j = random() % requests[r].survivals.size();
    auto changed = requests;
    double survival = changed[r].survivals[j];
    for (size_t i = j + 1; i < changed[r].survivals.size(); ++i) {
      changed[r].survivals[i] = survival *= uniform(random);
    }
    const auto admitted = [&](const std::vector<int32_t>& lengths) {
      return lengths[r] > static_cast<int32_t>(j);
    };
    const int64_t budget = static_cast<int64_t>(random() % 12);
    const auto before = AllocateDrafts(requests, budget), after = AllocateDrafts(changed, budget);
    ASSERT_EQ(admitted(before), admitted(after)) << "round " << round;
    num_changed += before != after;
    ASSERT_EQ(admitted(PlanAll(requests, rate).lengths), admitted(PlanAll(changed, rate).lengths))
        << "round " << round;
  }
  EXPECT_GT(num_changed, 0);
}

// The counter-example: p = (.7, .3), q = (.5, .5), and a second confidence that tells the first
// token. A search over the current survivals would emit (.85, .15).
TEST(VerifyLength, TheLawOfTheCounterExampleStays) {
  const std::array<double, 3> rates = {1.0, 0.5, 0.45};
  const StepRate rate = [&](int64_t rows) { return rates[static_cast<size_t>(rows - 1)]; };
  const std::array<double, 2> p = {0.7, 0.3}, q = {0.5, 0.5}, accepted = {1.0, 0.6};
  const std::array<double, 2> residual = {1.0, 0.0};
  std::array<double, 2> law{}, searched{};
  for (size_t token = 0; token < 2; ++token) {
    const std::vector<double> confidence = {0.8, token == 0 ? 0.9 : 0.0};
    const std::vector<DraftSurvivals> requests = {{0, SurvivalsOf(confidence)}};
    const auto add = [&](bool verifies, std::array<double, 2>* out) {
      for (size_t y = 0; y < 2; ++y) {
        const double emitted =
            verifies ? accepted[token] * (y == token) + (1 - accepted[token]) * residual[y] : p[y];
        (*out)[y] += q[token] * emitted;
      }
    };
    add(PlanAll(requests, rate).lengths[0] > 0, &law);
    add(PlanDraftBudget(requests, 1, 0, rate).num_drafts > 0, &searched);
  }
  EXPECT_NEAR(law[0], 0.7, 1e-12);
  EXPECT_NEAR(searched[0], 0.85, 1e-12);
}

TEST(VerifyLength, PrefillRowsOfTheStepRaiseItsCost) {
  // Rows are free up to 8 and dear behind.
  const StepRate rate = [](int64_t rows) { return rows <= 8 ? 10.0 : 1.0; };
  const std::vector<DraftSurvivals> requests = {{0, {0.9, 0.8, 0.7}}, {1, {0.9, 0.8, 0.7}}};
  EXPECT_EQ(PlanDraftBudget(requests, 2, 0, rate).num_drafts, 6);
  EXPECT_EQ(PlanDraftBudget(requests, 2, 4, rate).num_drafts, 2);
  EXPECT_EQ(PlanDraftBudget(requests, 2, 6, rate).num_drafts, 0);
}

TEST(VerifyLength, HopelessDraftsAreLeftOutOfTheSearch) {
  const StepRate flat = [](int64_t) { return 1.0; };
  EXPECT_EQ(PlanDraftBudget(std::vector<DraftSurvivals>{{0, {0.5, 1e-7}}}, 1, 0, flat).num_drafts,
            1);
  EXPECT_EQ(PlanDraftBudget({}, 0, 3, flat).num_drafts, 0);
}

TEST(VerifyLength, DraftsAreAdmittedAsFarAsTheyAreWorthTheirRows) {
  const std::vector<DraftSurvivals> requests = {{1, {0.9, 0.8, 0.1}}, {2, {0.6, 0.2}}};
  // Tokens per step and µs: 2/100, 2.9/120, 3.7/140, 4.3/160; with 0.2 it would be 4.5/180.
  const Admission admission = AdmitDrafts(requests, {5, 2, 100.0, 20.0});
  EXPECT_EQ(admission.lengths, (std::vector<int32_t>{2, 1}));
  EXPECT_NEAR(admission.least_survival, 4.3 / 160 * 20, 1e-12);
  // Requests that do not draft emit tokens too, which makes time dearer.
  EXPECT_EQ(AdmitDrafts(requests, {5, 5, 100.0, 20.0}).lengths, (std::vector<int32_t>{0, 0}));
  EXPECT_EQ(AdmitDrafts(requests, {2, 2, 100.0, 20.0}).lengths, (std::vector<int32_t>{2, 0}));
  // No price: no reason to stop.
  EXPECT_EQ(AdmitDrafts(requests, {4, 2, 0.0, 0.0}).lengths, (std::vector<int32_t>{2, 2}));
}

// Drafts that are not made because they survive no better than least_survival would not have been
// admitted.
TEST(VerifyLength, WhatIsBelowTheLeastSurvivalIsNotAdmittedWithMoreDraftsEither) {
  std::mt19937 random(33);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  int num_below = 0;
  for (int round = 0; round < 5000; ++round) {
    auto requests = RandomRequests(&random);
    const VerifyBudget budget{1 + static_cast<int64_t>(random() % 12),
                              static_cast<int64_t>(requests.size()), 50.0 + 100.0 * uniform(random),
                              50.0 * uniform(random)};
    const double least = AdmitDrafts(requests, budget).least_survival;
    std::vector<size_t> known;
    for (DraftSurvivals& r : requests) {
      known.push_back(r.survivals.size());
      if (r.survivals.empty()) continue;
      for (int k = 0; k < 3; ++k) r.survivals.push_back(r.survivals.back() * uniform(random));
    }
    const std::vector<int32_t> lengths = AdmitDrafts(requests, budget).lengths;
    for (size_t r = 0; r < requests.size(); ++r) {
      if (known[r] == 0 || requests[r].survivals[known[r] - 1] > least) continue;
      ++num_below;
      ASSERT_LE(lengths[r], static_cast<int32_t>(known[r])) << "round " << round;
    }
  }
  EXPECT_GT(num_below, 1000);
}

}  // namespace
}  // namespace deepinfer
