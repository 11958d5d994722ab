// What a choice of workers let expect for a request, and how far off that was (docs/cluster.md §4).
// Thread rule: any thread. Owner: Gateway.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "engine/statistics.h"

namespace deepinfer {

// Microseconds; 0: unknown.
struct RouteForecast {
  double ttft_us = 0;  // from the dispatch to the first token
  double tpot_us = 0;  // of every token after the first event
  // Incarnations of the workers that run prompt and answer.
  uint64_t prompt_worker = 0;
  uint64_t answer_worker = 0;
};

// When the tokens of an attempt came, and what was forecast for it.
struct RouteTimes {
  RouteForecast by_costs;
  RouteForecast forecast;  // by_costs as it was corrected when the request was sent
  int64_t sent_us = 0;
  int64_t first_us = 0;  // of the first event with tokens
  int64_t last_us = 0;   // of the last one
  int64_t num_first = 0;
  int64_t num_tokens = 0;

  // As measured; the second is 0 of an answer of one event.
  double ttft_us() const { return static_cast<double>(first_us - sent_us); }
  double tpot_us() const {
    const int64_t num_later = num_tokens - num_first;
    if (num_later <= 0) return 0;
    return static_cast<double>(last_us - first_us) / static_cast<double>(num_later);
  }
};

// The step time models of workers know nothing of what lies around a step: messages, threads that
// wait for a core, drafts. A line through what the costs of a worker said and what was measured
// lately, a fixed part and a factor, corrects the next forecasts.
class RouteForecasts {
 public:
  // As the gateway believes it, from what the workers' costs say.
  RouteForecast Correct(const RouteForecast& by_costs) const;

  void NoteFirstToken(const RouteTimes& times);
  void NoteAnswer(const RouteTimes& times);

  struct Errors {
    StatHistogram ttft{stat_bounds::kShare};  // |forecast - measured| / measured
    StatHistogram tpot{stat_bounds::kShare};
  };
  Errors errors() const;

 private:
  // Least squares of the relative error of fixed + factor * by_costs, over samples that fade.
  struct Fit {
    // Sums of u = 1 / measured and v = by_costs / measured, and of their products.
    double num = 0, u = 0, v = 0, uu = 0, uv = 0, vv = 0;
    double Forecast(double by_costs_us) const;
    void Add(double by_costs_us, double measured_us);
  };
  using Fits = std::unordered_map<uint64_t, Fit>;  // by incarnation

  static double ForecastOf(const Fits& fits, uint64_t worker, double by_costs_us);
  static void Note(double by_costs_us, double forecast_us, double measured_us, uint64_t worker,
                   Fits* fits, StatHistogram* errors);

  mutable std::mutex mutex_;
  Fits prompts_;  // under mutex_, as all below
  Fits answers_;
  Errors errors_;
};

}  // namespace deepinfer
