#include "cli/bench_report.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <fstream>

#include "cli/build_info.h"

namespace deepinfer {

namespace json = boost::json;

namespace {

constexpr int kSchema = 1;

// What the kernels or the ceilings ask for.
constexpr std::string_view kFlagsOfInterest[] = {
    "avx2",     "fma",         "f16c",        "avx512f",     "avx512bw",
    "avx512vl", "avx512_vbmi", "avx512_vnni", "avx512_bf16", "avx_vnni"};

// Value of "key : value" in /proc/cpuinfo; the first processor stands for all.
std::string CpuInfo(std::string_view key) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "?";
}

bool HasWord(std::string_view words, std::string_view word) {
  for (size_t at = words.find(word); at != std::string_view::npos; at = words.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || words[at - 1] == ' ') && (end == words.size() || words[end] == ' ')) {
      return true;
    }
  }
  return false;
}

// Few digits, whatever the magnitude.
std::string Number(double value) {
  const double size = std::abs(value);
  if (size >= 1000 || value == std::floor(value)) return fmt::format("{:.0f}", value);
  return size >= 100 ? fmt::format("{:.1f}", value)
         : size >= 1 ? fmt::format("{:.2f}", value)
                     : fmt::format("{:.4f}", value);
}

using TableLines = std::vector<std::vector<std::string>>;

// Columns as wide as their widest cell; the first is aligned to the left.
std::string AlignColumns(const TableLines& lines) {
  std::vector<size_t> widths;
  for (const auto& line : lines) {
    widths.resize(std::max(widths.size(), line.size()));
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string out;
  for (const auto& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) {
      out += i == 0 ? fmt::format("{:<{}}", line[i], widths[i])
                    : fmt::format("  {:>{}}", line[i], widths[i]);
    }
    out += '\n';
  }
  return out;
}

// Names of all facts, in order of first appearance.
std::vector<std::string> FactNames(const std::vector<BenchRow>& rows) {
  std::vector<std::string> names;
  for (const BenchRow& row : rows) {
    for (const BenchFact& fact : row.facts) {
      if (std::find(names.begin(), names.end(), fact.name) == names.end()) {
        names.push_back(fact.name);
      }
    }
  }
  return names;
}

json::object RowJson(const BenchRow& row) {
  const BenchSummary summary = Summarize(row.samples);
  json::object facts;
  for (const BenchFact& fact : row.facts) facts[fact.name] = fact.value;
  return {{"name", row.name},
          {"unit", row.unit},
          {"median", summary.median},
          {"lowest", summary.lowest},
          {"highest", summary.highest},
          {"samples", json::array(row.samples.begin(), row.samples.end())},
          {"facts", facts}};
}

BenchRow ParseRow(const json::object& object) {
  BenchRow row;
  row.name = object.at("name").as_string();
  row.unit = object.at("unit").as_string();
  for (const json::value& sample : object.at("samples").as_array()) {
    row.samples.push_back(sample.to_number<double>());
  }
  if (row.samples.empty()) throw std::out_of_range("a row without samples");
  for (const auto& [name, value] : object.at("facts").as_object()) {
    row.facts.push_back({name, value.to_number<double>()});
  }
  return row;
}

const BenchRow* FindRow(const BenchReport& report, const std::string& name) {
  const auto it = std::find_if(report.rows.begin(), report.rows.end(),
                               [&](const BenchRow& row) { return row.name == name; });
  return it == report.rows.end() ? nullptr : &*it;
}

}  // namespace

double BenchSummary::spread_percent() const {
  return median == 0 ? 0 : 100 * (highest - lowest) / median;
}

BenchSummary Summarize(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const size_t n = samples.size();
  return {(samples[(n - 1) / 2] + samples[n / 2]) / 2, samples.front(), samples.back()};
}

std::string ReadLoadAverage() {
  std::string load = "?";
  std::ifstream file("/proc/loadavg");
  file >> load;
  return load;
}

BenchEnvironment ReadEnvironment(std::string_view isa) {
  BenchEnvironment e;
  e.cpu = CpuInfo("model name");
  const std::string all_flags = CpuInfo("flags");
  for (std::string_view flag : kFlagsOfInterest) {
    if (HasWord(all_flags, flag)) e.flags += (e.flags.empty() ? "" : " ") + std::string(flag);
  }
  e.isa = isa;
  e.commit = kCommit;
  e.build = fmt::format("{}, {}", kBuildType, kCompiler);
  const int policy = sched_getscheduler(0);
  e.priority = policy == SCHED_FIFO || policy == SCHED_RR ? "real-time" : "plain";
  e.load_before = ReadLoadAverage();
  return e;
}

std::string FormatTable(const BenchReport& report) {
  const BenchEnvironment& e = report.environment;
  std::string out = fmt::format(
      "cpu {} ({}), kernels {}, commit {} ({}), priority {}, load average {} to {}\n", e.cpu,
      e.flags, e.isa, e.commit, e.build, e.priority, e.load_before, e.load_after);
  if (!report.subject.empty()) out += report.subject + '\n';
  const std::vector<std::string> fact_names = FactNames(report.rows);
  TableLines lines = {{report.what, "median", "unit", "spread %"}};
  lines[0].insert(lines[0].end(), fact_names.begin(), fact_names.end());
  for (const BenchRow& row : report.rows) {
    const BenchSummary summary = Summarize(row.samples);
    std::vector<std::string> line = {row.name, Number(summary.median), row.unit,
                                     fmt::format("{:.1f}", summary.spread_percent())};
    for (const std::string& name : fact_names) {
      const auto it = std::find_if(row.facts.begin(), row.facts.end(),
                                   [&](const BenchFact& f) { return f.name == name; });
      line.push_back(it == row.facts.end() ? "" : Number(it->value));
    }
    lines.push_back(std::move(line));
  }
  return out + AlignColumns(lines);
}

std::string FormatJson(const BenchReport& report) {
  const BenchEnvironment& e = report.environment;
  json::array rows;
  for (const BenchRow& row : report.rows) rows.push_back(RowJson(row));
  const json::object document = {{"schema", kSchema},
                                 {"what", report.what},
                                 {"subject", report.subject},
                                 {"environment",
                                  {{"cpu", e.cpu},
                                   {"flags", e.flags},
                                   {"isa", e.isa},
                                   {"commit", e.commit},
                                   {"build", e.build},
                                   {"priority", e.priority},
                                   {"load_before", e.load_before},
                                   {"load_after", e.load_after}}},
                                 {"rows", rows}};
  return json::serialize(document) + "\n";
}

Result<BenchReport> ParseReport(std::string_view text) {
  // The library throws on every mismatch; each is the same mistake of the caller.
  try {
    const json::object document = json::parse({text.data(), text.size()}).as_object();
    if (document.at("schema").to_number<int>() != kSchema) {
      return InvalidRequest("the report has another schema");
    }
    BenchReport report;
    report.what = document.at("what").as_string();
    report.subject = document.at("subject").as_string();
    const json::object& e = document.at("environment").as_object();
    const auto field = [&e](const char* name) { return std::string(e.at(name).as_string()); };
    report.environment = {field("cpu"),         field("flags"),     field("isa"),
                          field("commit"),      field("build"),     field("priority"),
                          field("load_before"), field("load_after")};
    for (const json::value& row : document.at("rows").as_array()) {
      report.rows.push_back(ParseRow(row.as_object()));
    }
    return report;
  } catch (const std::exception& error) {
    return InvalidRequest(std::string("not a benchmark report: ") + error.what());
  }
}

std::string FormatComparison(const BenchReport& before, const BenchReport& after) {
  std::string out =
      fmt::format("before: commit {}, {}, load {}\nafter:  commit {}, {}, load {}\n",
                  before.environment.commit, before.environment.isa, before.environment.load_before,
                  after.environment.commit, after.environment.isa, after.environment.load_before);
  TableLines lines = {{"row", "before", "after", "unit", "ratio", "spread % before", "after"}};
  std::string missing;
  for (const BenchRow& row : after.rows) {
    const BenchRow* old = FindRow(before, row.name);
    if (old == nullptr) {
      missing += "only after: " + row.name + '\n';
      continue;
    }
    const BenchSummary a = Summarize(old->samples), b = Summarize(row.samples);
    lines.push_back({row.name, Number(a.median), Number(b.median), row.unit,
                     a.median == 0 ? "-" : fmt::format("{:.3f}", b.median / a.median),
                     fmt::format("{:.1f}", a.spread_percent()),
                     fmt::format("{:.1f}", b.spread_percent())});
  }
  for (const BenchRow& row : before.rows) {
    if (FindRow(after, row.name) == nullptr) missing += "only before: " + row.name + '\n';
  }
  return out + AlignColumns(lines) + missing;
}

}  // namespace deepinfer
