// What a benchmark measured: rows of samples with figures derived from them, the machine they were
// taken on; as a table, as JSON, and beside an earlier JSON file.
// Thread rule: values and pure functions; ReadEnvironment looks at the system once.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace deepinfer {

// One figure of a row that is not a sample: a bound, bytes, a share in percent.
struct BenchFact {
  std::string name;  // with its unit: "bound tok/s"
  double value = 0;
};

struct BenchRow {
  std::string name;  // "decode batch 4 context 512 threads 2"; the same in every run
  std::string unit;  // of the samples: "tok/s"; more is better
  std::vector<double> samples;
  std::vector<BenchFact> facts;
};

struct BenchEnvironment {
  std::string cpu;    // name the system gives
  std::string flags;  // the vector extensions that matter here
  std::string isa;    // kernel level in use
  std::string commit;
  std::string build;        // build type and compiler
  std::string priority;     // "plain", or "real-time" under chrt -f
  std::string load_before;  // load average of the last minute at start and end
  std::string load_after;
};

struct BenchReport {
  std::string what;     // "model", "kernels", "ceilings"
  std::string subject;  // model folder, or empty
  BenchEnvironment environment;
  std::vector<BenchRow> rows;
};

struct BenchSummary {
  double median = 0;
  double lowest = 0;
  double highest = 0;

  // (highest - lowest) / median in percent.
  double spread_percent() const;
};

// Of at least one sample.
BenchSummary Summarize(std::vector<double> samples);

// The machine and this build; load_after stays empty.
BenchEnvironment ReadEnvironment(std::string_view isa);
// Load average of the last minute, "?" where the system does not say.
std::string ReadLoadAverage();

// The machine on one line each, then one line a row.
std::string FormatTable(const BenchReport& report);

// {"schema": 1, "what": ..., "environment": {...}, "rows": [{"name", "unit", "median", "lowest",
// "highest", "samples", "facts"}]}.
std::string FormatJson(const BenchReport& report);
// invalid_request when the text is not what FormatJson writes.
Result<BenchReport> ParseReport(std::string_view json);

// For rows of both reports: medians, their ratio, both spreads; then the names only one has.
std::string FormatComparison(const BenchReport& before, const BenchReport& after);

}  // namespace deepinfer
