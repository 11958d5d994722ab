#include "sched/draft_policy.h"

#include <algorithm>
#include <limits>

namespace deepinfer {

namespace {

// A request is judged by what all others showed as if by so many drafts of its own, and by the
// confidences of its last drafts as if by so many.
constexpr double kPriorDrafts = 8;
constexpr double kConfidenceDrafts = 4;
// Estimates and prices err by more than this, and drafting on a wrong guess costs more than
// resting.
constexpr double kLeastGain = 0.02;
// The first wait of a request whose drafts do not pay, and the longest.
constexpr int64_t kRetryTokens = 64;
constexpr int64_t kMostRetryTokens = 2048;
// Share of the time of steps that tries may take, and how many steps of it may be saved up.
constexpr double kTryShare = 0.003;
constexpr double kMostSavedSteps = 8;
// How much of earlier steps stays in a yield with every step, and how much of what is known of
// drafting goes with every step without.
constexpr double kYieldMemory = 0.98;
constexpr double kLossByRest = 0.001;
// A step that took longer than this many times what was expected was disturbed.
constexpr double kMostDelay = 2.0;
// A request is tried if drafts pay when each is accepted with this chance.
constexpr double kGoodAcceptance = 0.95;
// Sets of up to so many requests are all looked at, larger ones in steps of a quarter.
constexpr size_t kExactSetSizes = 16;

struct Ranked {
  const DraftCandidate* candidate;
  std::vector<double> survivals;
  double expected;  // accepted drafts
};

std::vector<Ranked> ByExpectation(std::span<const DraftCandidate> candidates) {
  std::vector<Ranked> ranked;
  for (const DraftCandidate& c : candidates) {
    if (c.most_drafts <= 0) continue;
    Ranked r{&c, ExpectedSurvivals(c.acceptance_rate, c.most_drafts), 0.0};
    for (const double s : r.survivals) r.expected += s;
    ranked.push_back(std::move(r));
  }
  std::sort(ranked.begin(), ranked.end(), [](const Ranked& a, const Ranked& b) {
    if (a.expected != b.expected) return a.expected > b.expected;
    return a.candidate->request_id < b.candidate->request_id;
  });
  return ranked;
}

// Leading requests that should draft, and what is expected then.
struct DraftSet {
  size_t size = 0;
  ExpectedStep step;
};

DraftSet BestSet(std::span<const Ranked> ranked, size_t num_requests, const WorkTime& step_us,
                 const WorkTime& draft_us, double yield) {
  std::vector<double> us_by_drafts;  // of a step, without the draft pass
  const auto step_us_at = [&](size_t num_drafts) {
    while (us_by_drafts.size() <= num_drafts) {
      us_by_drafts.push_back(step_us(static_cast<int64_t>(num_requests + us_by_drafts.size())));
    }
    return us_by_drafts[num_drafts];
  };
  const auto emitted = static_cast<double>(num_requests);
  DraftSet best{0, {emitted, step_us_at(0)}};
  double least_rate = best.step.rate() * (1.0 + kLeastGain) / yield;
  double most_tokens = emitted;   // with all drafts of the leading requests
  std::vector<double> survivals;  // of the leading requests, descending
  for (size_t m = 1, next = 1; m <= ranked.size(); ++m) {
    most_tokens += ranked[m - 1].expected;
    for (const double s : ranked[m - 1].survivals) {
      survivals.insert(std::upper_bound(survivals.begin(), survivals.end(), s, std::greater<>()),
                       s);
    }
    if (m < next && m < ranked.size()) continue;
    next = m < kExactSetSizes ? m + 1 : m + m / 4;
    const double pass_us = draft_us(static_cast<int64_t>(m));
    double tokens = emitted;
    for (size_t k = 1; k <= survivals.size(); ++k) {
      const double us = step_us_at(k) + pass_us;
      // Not even if the rows of all other drafts were free.
      if (most_tokens <= least_rate * us) break;
      tokens += survivals[k - 1];
      if (tokens > least_rate * us) {
        least_rate = tokens / us;
        best = {m, {tokens, us}};
      }
    }
  }
  return best;
}

// Whether drafts of the best request that there may be would pay.
bool MayDraftingPay(size_t num_requests, int32_t most_drafts, const WorkTime& step_us,
                    const WorkTime& draft_us, double yield) {
  Ranked good{nullptr, ExpectedSurvivals(kGoodAcceptance, most_drafts), 0.0};
  for (const double s : good.survivals) good.expected += s;
  return BestSet({&good, 1}, num_requests, step_us, draft_us, yield).size > 0;
}

}  // namespace

void NoteRest(DraftCounts* counts) {
  counts->accepted += kLossByRest * (kUnknownCounts.accepted - counts->accepted);
  counts->refused += kLossByRest * (kUnknownCounts.refused - counts->refused);
}

void NoteVerification(double accepted, double refused, double memory, DraftCounts* counts) {
  counts->accepted = memory * counts->accepted + accepted;
  counts->refused = memory * counts->refused + refused;
}

double AcceptanceRate(const DraftRecord& own, const DraftCounts& all) {
  double accepted =
      own.counts.accepted + kPriorDrafts * all.accepted / (all.accepted + all.refused);
  double judged = own.counts.accepted + own.counts.refused + kPriorDrafts;
  if (own.mean_confidence >= 0.0) {
    accepted += kConfidenceDrafts * own.mean_confidence;
    judged += kConfidenceDrafts;
  }
  return accepted / judged;
}

std::vector<double> ExpectedSurvivals(double acceptance_rate, int32_t num_drafts) {
  std::vector<double> survivals;
  double product = 1.0;
  for (int32_t k = 0; k < num_drafts; ++k) survivals.push_back(product *= acceptance_rate);
  return survivals;
}

void NoteDrafting(bool is_try, DraftRecord* record) {
  record->retry_tokens =
      is_try ? std::clamp(2 * record->retry_tokens, kRetryTokens, kMostRetryTokens) : kRetryTokens;
  record->tokens_since = 0;
}

void NoteTryPaid(DraftRecord* record) { record->retry_tokens = 0; }

void TakeBackTry(DraftRecord* record) {
  record->retry_tokens = record->retry_tokens > kRetryTokens ? record->retry_tokens / 2 : 0;
  record->tokens_since = record->retry_tokens;
}

double TryAllowance::Earned(double step_us, int64_t num_steps) {
  return kTryShare * step_us * static_cast<double>(num_steps);
}

void TryAllowance::Earn(double step_us) {
  us_ = std::min(us_ + Earned(step_us, 1), std::max(us_, kMostSavedSteps * step_us));
}

void TryAllowance::GiveBack(double gained_us, double pass_us) {
  us_ += std::clamp(gained_us, 0.0, pass_us);
}

void DraftYield::NoteDrafting(const ExpectedStep& expected, double tokens, double us) {
  Note(expected, tokens, us, &drafting_);
}

void DraftYield::NoteResting(const ExpectedStep& expected, double tokens, double us) {
  Note(expected, tokens, us, &resting_);
  drafting_.made += kLossByRest * (drafting_.expected - drafting_.made);
}

void DraftYield::Note(const ExpectedStep& expected, double tokens, double us, Tokens* sums) {
  const double delay = std::min(us / expected.us, kMostDelay);
  sums->expected = kYieldMemory * sums->expected + expected.tokens * delay;
  sums->made = kYieldMemory * sums->made + tokens;
}

bool IsTryDue(const DraftRecord& record, int64_t num_tokens) {
  return record.tokens_since + num_tokens >= record.retry_tokens;
}

DraftChoice ChooseDrafting(std::span<const DraftCandidate> candidates, const WorkTime& step_us,
                           const WorkTime& draft_us, double allowance_us, double yield) {
  DraftChoice choice;
  const std::vector<Ranked> ranked = ByExpectation(candidates);
  if (ranked.empty()) return choice;
  const auto num_requests = static_cast<int64_t>(candidates.size());
  const double plain_us = step_us(num_requests);
  // Where no time is known drafts are what tells it.
  const DraftSet set = plain_us <= 0.0
                           ? DraftSet{ranked.size(), {}}
                           : BestSet(ranked, candidates.size(), step_us, draft_us, yield);
  choice.step = set.step;
  for (size_t i = 0; i < set.size; ++i) {
    choice.request_ids.push_back(ranked[i].candidate->request_id);
  }
  if (set.size > 0) return choice;
  choice.token_us = plain_us / static_cast<double>(num_requests);
  choice.try_us = draft_us(1);
  const auto trying = std::find_if(ranked.begin(), ranked.end(),
                                   [](const Ranked& r) { return r.candidate->may_try; });
  if (trying == ranked.end()) return choice;
  if (choice.try_us > 0.0 && !MayDraftingPay(candidates.size(), trying->candidate->most_drafts,
                                             step_us, draft_us, yield)) {
    choice.try_us = std::numeric_limits<double>::infinity();
  }
  if (choice.try_us > allowance_us) return choice;
  choice.request_ids.push_back(trying->candidate->request_id);
  choice.is_try = true;
  choice.step = {};
  return choice;
}

}  // namespace deepinfer
