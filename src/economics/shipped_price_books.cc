// Public list prices of the hosted service, as data. A book is never changed: new prices are a new
// book.
#include "economics/price_book.h"

namespace deepinfer {
namespace {

// Peak hours of the provider: 09-12 and 14-18 in Beijing, Monday to Friday without holidays.
#define DEEPINFER_PEAK_HOURS                              \
  R"("tz":"UTC","clock":"recv","peak":[)"                 \
  R"({"days":[1,2,3,4,5],"from":"01:00","to":"04:00"},)"  \
  R"({"days":[1,2,3,4,5],"from":"06:00","to":"10:00"}],)" \
  R"("holidays":["2026-10-01","2026-10-02"],)"

constexpr std::pair<std::string_view, std::string_view> kBooks[] = {
    {"deepseek-flash-2026-09-10",
     R"({"id":"deepseek-flash-2026-09-10","currency":"USD",)"
     R"("effective_from":"2026-09-10T00:00:00Z",)" DEEPINFER_PEAK_HOURS
     R"("per_mtok":{"offpeak":{"hit":"0.003","miss":"0.15","output":"0.60","cache_write":"0"},)"
     R"("peak":{"hit":"0.006","miss":"0.30","output":"1.20","cache_write":"0"}}})"},
    {"deepseek-flash-2026-09-10-cny",
     R"({"id":"deepseek-flash-2026-09-10-cny","currency":"CNY",)"
     R"("effective_from":"2026-09-10T00:00:00Z",)" DEEPINFER_PEAK_HOURS
     R"("per_mtok":{"offpeak":{"hit":"0.02","miss":"1","output":"4","cache_write":"0"},)"
     R"("peak":{"hit":"0.04","miss":"2","output":"8","cache_write":"0"}}})"},
    {"deepseek-v4-pro-2026",
     R"({"id":"deepseek-v4-pro-2026","currency":"USD",)"
     R"("effective_from":"2026-01-01T00:00:00Z",)" DEEPINFER_PEAK_HOURS
     R"("per_mtok":{"offpeak":{"hit":"0.022","miss":"0.66","output":"1.98","cache_write":"0"},)"
     R"("peak":{"hit":"0.044","miss":"1.32","output":"3.96","cache_write":"0"}}})"},
    {"deepseek-v4-flash-2026-08-16",
     R"({"id":"deepseek-v4-flash-2026-08-16","currency":"USD",)"
     R"("effective_from":"2026-08-16T00:00:00Z",)" DEEPINFER_PEAK_HOURS
     R"("per_mtok":{"offpeak":{"hit":"0.007","miss":"0.22","output":"0.66","cache_write":"0"},)"
     R"("peak":{"hit":"0.014","miss":"0.44","output":"1.32","cache_write":"0"}}})"},
    {"deepseek-v4-flash-2026-04",
     R"({"id":"deepseek-v4-flash-2026-04","currency":"USD",)"
     R"("effective_from":"2026-04-01T00:00:00Z","tz":"UTC","clock":"recv",)"
     R"("per_mtok":{"flat":{"hit":"0.0028","miss":"0.14","output":"0.28","cache_write":"0"}}})"},
    {"deepseek-r1-2025-02",
     R"({"id":"deepseek-r1-2025-02","currency":"USD",)"
     R"("effective_from":"2025-02-01T00:00:00Z","tz":"UTC","clock":"recv",)"
     R"("per_mtok":{"flat":{"hit":"0.14","miss":"0.55","output":"2.19","cache_write":"0"}}})"},
    {"flat-example",
     R"({"id":"flat-example","currency":"USD",)"
     R"("effective_from":"2026-01-01T00:00:00Z","tz":"UTC","clock":"recv",)"
     R"("per_mtok":{"flat":{"hit":"0","miss":"1","output":"2","cache_write":"0"}}})"},
};

#undef DEEPINFER_PEAK_HOURS

}  // namespace

std::span<const std::pair<std::string_view, std::string_view>> ShippedPriceBooks() {
  return kBooks;
}

}  // namespace deepinfer
