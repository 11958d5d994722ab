// Flags that the three benchmarks share, and what they do with a finished report.
// Thread rule: main thread.
#pragma once

#include <string>
#include <vector>

#include "cli/bench_report.h"
#include "cli/model_flags.h"

namespace deepinfer {

struct BenchFlags {
  ModelFlags model;
  int rounds = 5;

  void Register(CLI::App* command);
  // The same without flags about a model.
  void RegisterWithoutModel(CLI::App* command);

  // Thread counts to measure, ascending, without repetitions: --threads alone, or
  // --thread-counts, or 1 and all available cores.
  std::vector<int> ThreadCounts() const;

  // Completes the environment, prints the table (and the comparison) and writes the JSON file.
  // not_found or invalid_request for the file of --compare, unavailable for that of --json.
  Status Publish(BenchReport report) const;

 private:
  void RegisterMeasuring(CLI::App* command);

  std::vector<int> thread_counts_;
  std::string json_file_;
  std::string compare_file_;
};

}  // namespace deepinfer
