// How many drafts of each request a step verifies (dspark.md §4): a budget from survivals that were
// fixed before the tokens in question were drawn, and its allocation to requests.
// Thread rule: pure functions of their arguments.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace deepinfer {

// survivals[j] estimates the chance that drafts 1..j+1 are all accepted; never increasing in j.
struct DraftSurvivals {
  int64_t request_id = 0;
  std::vector<double> survivals;
};

// Steps per second at a number of target rows.
using StepRate = std::function<double(int64_t num_rows)>;

// Products of the estimates that each draft is accepted once those before it are.
std::vector<double> SurvivalsOf(std::span<const double> acceptance);

// Stage 1: the number of drafts that gives the most tokens per second,
// argmax over k of (num_emitting + sum of the k largest survivals) · rate(num_other_rows + R + k),
// R the number of requests, the smallest k on ties. `earlier` are the survivals of the round before
// last: a full search over them leaks nothing about the tokens now verified.
// num_emitting: requests that emit a token in the step; num_other_rows: prefill rows.
struct DraftBudget {
  int64_t num_drafts = 0;
  double tokens_per_second = 0;
};
DraftBudget PlanDraftBudget(std::span<const DraftSurvivals> earlier, int64_t num_emitting,
                            int64_t num_other_rows, const StepRate& rate);

// Stage 2: the first num_drafts drafts in the order of survival descending, draft ascending,
// request id ascending; how many each request got, in the order given. Whether draft j of a request
// is among them depends on survivals of drafts up to j only, never on tokens.
std::vector<int32_t> AllocateDrafts(std::span<const DraftSurvivals> current, int64_t num_drafts);

// Both stages from the same survivals: drafts, at most most_drafts, are admitted in the order of
// stage 2 while the rate of tokens strictly increases. Stopping at the first that does not keeps it
// free of leaks.
struct VerifyLengths {
  std::vector<int32_t> lengths;
  double tokens_per_second = 0;
};
VerifyLengths PlanSynchronousLengths(std::span<const DraftSurvivals> current, int64_t num_emitting,
                                     int64_t most_drafts, const StepRate& rate);

// What a step knows before its drafts are made: their number at most, and what their rows cost.
struct VerifyBudget {
  int64_t most_drafts = 0;
  int64_t num_emitting = 0;
  double step_us = 0;  // without a draft to verify, the draft pass included
  double row_us = 0;   // of the row of a draft; 0: not known, and all drafts are worth theirs
};

// Stage 2 under a budget: the most drafts, as far as they are worth their rows. A draft that
// survives no better than least_survival is not among them, whatever else is drafted.
struct Admission {
  std::vector<int32_t> lengths;
  double least_survival = 0;
};
Admission AdmitDrafts(std::span<const DraftSurvivals> current, const VerifyBudget& budget);

}  // namespace deepinfer
