#include "cluster/route_forecasts.h"

#include <algorithm>
#include <cmath>

namespace deepinfer {

namespace {

// A sample counts half after so many others: enough to smooth out single requests, few enough to
// follow a change of load within seconds.
constexpr double kHalfLife = 16;
// One measurement says no more than this beyond what was expected: a process that was stopped must
// not spoil what follows.
constexpr double kMostRatio = 8;
// Weight, in samples, of the belief that there is no fixed part: it decides where all prompts are
// of one length, and costs nothing where they are not.
constexpr double kNoFixedPart = 0.05;
// Workers that were replaced leave their fits behind.
constexpr size_t kMostWorkers = 4096;

}  // namespace

double RouteForecasts::Fit::Forecast(double by_costs_us) const {
  if (num == 0) return by_costs_us;
  const double aa = uu * (1 + kNoFixedPart / num);
  const double determinant = aa * vv - uv * uv;
  if (!(determinant > 0)) return by_costs_us;
  const double fixed = (u * vv - v * uv) / determinant;
  const double factor = (aa * v - uv * u) / determinant;
  const double forecast = fixed + factor * by_costs_us;
  // Far from what was measured the line may leave what can be.
  return std::clamp(forecast, by_costs_us / kMostRatio, std::max(forecast, 0.0) + by_costs_us);
}

void RouteForecasts::Fit::Add(double by_costs_us, double measured_us) {
  const double keep = std::exp2(-1 / kHalfLife);
  const double usual_us = Forecast(by_costs_us);
  const double limited_us =
      num == 0 ? measured_us
               : std::clamp(measured_us, usual_us / kMostRatio, usual_us * kMostRatio);
  const double u_now = 1 / limited_us, v_now = by_costs_us / limited_us;
  num = num * keep + 1;
  u = u * keep + u_now;
  v = v * keep + v_now;
  uu = uu * keep + u_now * u_now;
  uv = uv * keep + u_now * v_now;
  vv = vv * keep + v_now * v_now;
}

double RouteForecasts::ForecastOf(const Fits& fits, uint64_t worker, double by_costs_us) {
  const auto it = fits.find(worker);
  return it == fits.end() || by_costs_us <= 0 ? by_costs_us : it->second.Forecast(by_costs_us);
}

RouteForecast RouteForecasts::Correct(const RouteForecast& by_costs) const {
  RouteForecast forecast = by_costs;
  const std::lock_guard lock(mutex_);
  forecast.ttft_us = ForecastOf(prompts_, by_costs.prompt_worker, by_costs.ttft_us);
  forecast.tpot_us = ForecastOf(answers_, by_costs.answer_worker, by_costs.tpot_us);
  return forecast;
}

void RouteForecasts::Note(double by_costs_us, double forecast_us, double measured_us,
                          uint64_t worker, Fits* fits, StatHistogram* errors) {
  if (!(by_costs_us > 0) || !(measured_us > 0)) return;
  errors->Observe(std::abs(forecast_us - measured_us) / measured_us);
  if (fits->size() >= kMostWorkers && !fits->contains(worker)) fits->clear();
  (*fits)[worker].Add(by_costs_us, measured_us);
}

void RouteForecasts::NoteFirstToken(const RouteTimes& times) {
  const std::lock_guard lock(mutex_);
  Note(times.by_costs.ttft_us, times.forecast.ttft_us, times.ttft_us(),
       times.by_costs.prompt_worker, &prompts_, &errors_.ttft);
}

void RouteForecasts::NoteAnswer(const RouteTimes& times) {
  const std::lock_guard lock(mutex_);
  Note(times.by_costs.tpot_us, times.forecast.tpot_us, times.tpot_us(),
       times.by_costs.answer_worker, &answers_, &errors_.tpot);
}

RouteForecasts::Errors RouteForecasts::errors() const {
  const std::lock_guard lock(mutex_);
  return errors_;
}

}  // namespace deepinfer
