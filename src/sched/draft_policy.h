// Which requests draft in the next step, from what earlier steps showed (dspark.md §6): how likely
// the drafts of a request are to be accepted, whose drafts pay, and whose are worth a try.
// Thread rule: values and pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace deepinfer {

// Judged drafts; older ones weigh less. Nothing is known about those behind the first refused one.
struct DraftCounts {
  double accepted = 0;
  double refused = 0;
};

// What is known of the drafts of one request.
struct DraftRecord {
  DraftCounts counts;
  double mean_confidence = -1;  // of the drafts made last; negative: none were made
  int64_t tokens_since = 0;     // generated since the last drafts
  // Where drafts do not pay they are tried after so many tokens. Grows with every try; 0: at once.
  int64_t retry_tokens = 0;
};

// How much of earlier counts stays with every verification: of a request about the last twenty, of
// all requests about the last fifty.
inline constexpr double kRequestMemory = 0.95;
inline constexpr double kTotalMemory = 0.98;

// As long as nothing is known, three of four drafts are accepted.
inline constexpr DraftCounts kUnknownCounts{3, 1};

// Books a step without drafts: little by little what is known of them gets out of date.
void NoteRest(DraftCounts* counts);

// Books one verification.
void NoteVerification(double accepted, double refused, double memory, DraftCounts* counts);

// Chance that a draft of the request is accepted once those before it are. `all` are the counts of
// all requests, not both 0: what a new request is judged by.
double AcceptanceRate(const DraftRecord& own, const DraftCounts& all);

// Chances that the first 1, 2, ... num_drafts drafts are all accepted.
std::vector<double> ExpectedSurvivals(double acceptance_rate, int32_t num_drafts);

// Books that the request drafts in the next step: because it pays, or as a try.
void NoteDrafting(bool is_try, DraftRecord* record);

// Books that a try gained more time than it took: the next one is due at once.
void NoteTryPaid(DraftRecord* record);

// Takes a booked try back of which nothing ran: it is due again.
void TakeBackTry(DraftRecord* record);

// Whether so many tokens from now the drafts of a request that rests may be tried.
bool IsTryDue(const DraftRecord& record, int64_t num_tokens);

// Time that tries may take from requests for which drafts do not pay: a small share of what steps
// take, saved up for a few of them.
class TryAllowance {
 public:
  double us() const { return us_; }
  // What num_steps more steps will add, unless enough is saved.
  static double Earned(double step_us, int64_t num_steps);

  void Earn(double step_us);
  void Spend(double pass_us) { us_ -= pass_us; }
  // A pass that did not run gives all back, one that ran what its drafts gained.
  void GiveBack(double gained_us, double pass_us);

 private:
  double us_ = 0;
};

// Tokens that a step is expected to make, and its time with the draft pass.
struct ExpectedStep {
  double tokens = 0;
  double us = 0;  // 0: nothing is known

  double rate() const { return tokens / us; }
};

// What steps made of what was expected of them, with drafts against without. Requests draft for
// which most is expected, so of these expectations most are too high; and a few rows more cost more
// than a median says. The last fifty steps of a kind count.
class DraftYield {
 public:
  // What an expected rate of tokens with drafts is to be multiplied with.
  double factor() const {
    return drafting_.made / drafting_.expected * resting_.expected / resting_.made;
  }

  void NoteDrafting(const ExpectedStep& expected, double tokens, double us);
  // Little by little what is known of drafting gets out of date.
  void NoteResting(const ExpectedStep& expected, double tokens, double us);

 private:
  // As if so many tokens had come as expected.
  static constexpr double kPriorTokens = 20;

  struct Tokens {
    double expected = kPriorTokens;  // in the time that the steps took
    double made = kPriorTokens;
  };

  static void Note(const ExpectedStep& expected, double tokens, double us, Tokens* sums);

  Tokens drafting_;
  Tokens resting_;
};

// A request that decodes in the next step.
struct DraftCandidate {
  int64_t request_id = 0;
  double acceptance_rate = 0;
  int32_t most_drafts = 0;
  bool may_try = false;
};

// Time in µs of work of a size; 0: not known.
using WorkTime = std::function<double(int64_t size)>;

struct DraftChoice {
  std::vector<int64_t> request_ids;  // that draft; in no order
  bool is_try = false;               // of one request, though drafts do not pay
  double try_us = 0;                 // of the draft pass of a try; infinite: none could pay
  double token_us = 0;               // time of a token without drafts: what each accepted one gains
  ExpectedStep step;                 // of a try: unknown
};

// The requests that make the most tokens per second by drafting while the others decode token by
// token. Where drafting pays for none, one request that may try does, if its draft pass takes no
// longer than allowance_us and drafts that are nearly always accepted would pay. step_us: by the
// number of rows, more take no less; draft_us: of a draft pass, by the number of requests; yield:
// what drafting makes of what is expected.
DraftChoice ChooseDrafting(std::span<const DraftCandidate> candidates, const WorkTime& step_us,
                           const WorkTime& draft_us, double allowance_us, double yield = 1.0);

}  // namespace deepinfer
