#include "cli/bench_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "cli/io.h"

namespace deepinfer {

void BenchFlags::Register(CLI::App* command) {
  model.Register(command, false, kServingNumerics);
  RegisterMeasuring(command);
}

void BenchFlags::RegisterWithoutModel(CLI::App* command) {
  model.RegisterIsa(command);
  RegisterMeasuring(command);
}

void BenchFlags::RegisterMeasuring(CLI::App* command) {
  command
      ->add_option("--thread-counts", thread_counts_,
                   "Thread counts to measure; default: 1 and all")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024));
  command
      ->add_option("--rounds", rounds,
                   "Samples of every row; rows take turns, so that a disturbance meets all of them")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--json", json_file_,
                      "Also write the report to this file; - = print only it");
  command->add_option("--compare", compare_file_,
                      "Also print the ratio of every row to this earlier report");
}

std::vector<int> BenchFlags::ThreadCounts() const {
  if (model.threads > 0) return {model.threads};
  std::vector<int> counts = thread_counts_;
  if (counts.empty()) counts = {1, AvailableCores()};
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

Status BenchFlags::Publish(BenchReport report) const {
  report.environment.load_after = ReadLoadAverage();
  std::string text = json_file_ == "-" ? FormatJson(report) : FormatTable(report);
  if (!compare_file_.empty()) {
    DI_ASSIGN_OR_RETURN(const std::string earlier, ReadTextFile(compare_file_));
    Result<BenchReport> before = ParseReport(earlier);
    if (!before.ok()) return before.status().Annotate(compare_file_);
    text += "\n" + FormatComparison(*before, report);
  }
  text.pop_back();  // PrintLine ends the line
  DI_RETURN_IF_ERROR(PrintLine(text));
  if (json_file_.empty() || json_file_ == "-") return OkStatus();
  return WriteTextFile(json_file_, FormatJson(report));
}

}  // namespace deepinfer
