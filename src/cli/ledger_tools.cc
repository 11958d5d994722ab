#include "cli/ledger_tools.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

#include "base/json_writer.h"
#include "cli/io.h"
#include "economics/ledger_check.h"
#include "economics/ledger_files.h"
#include "economics/ledger_sum.h"
#include "economics/ledger_writer.h"
#include "economics/utc_time.h"

namespace deepinfer {
namespace {

constexpr std::chrono::milliseconds kFollowInterval{200};
// For grades to reach the disk.
constexpr std::chrono::seconds kWriteTime{60};

constexpr const char* kTailHeader =
    "received                     route                   status   cached computed generated"
    "    ttft_ms     e2e_ms           cost        revenue";

std::string TailRow(const LedgerLine& line) {
  const LedgerTokens& tokens = line.tokens;
  return fmt::format("{:<28} {:<23} {:>6} {:>8} {:>8} {:>9} {:>10} {:>10} {:>14} {:>14}",
                     FormatUtc(line.time.recv_utc_us), line.route, line.outcome.http_status,
                     tokens.cached, tokens.computed, tokens.generated, line.ttft_ms.value_or("-"),
                     line.e2e_ms, line.cost ? FormatMoney(line.cost->Total()) : "-",
                     line.revenue ? FormatMoney(line.revenue->Total()) : "-");
}

struct SumColumn {
  const char* name;
  int64_t LedgerTotals::*count;
};

constexpr SumColumn kCounts[] = {
    {"lines", &LedgerTotals::lines},         {"works", &LedgerTotals::works},
    {"completed", &LedgerTotals::completed}, {"qualified", &LedgerTotals::qualified},
    {"unpriced", &LedgerTotals::unpriced},   {"prompt", &LedgerTotals::prompt},
    {"cached", &LedgerTotals::cached},       {"computed", &LedgerTotals::computed},
    {"replayed", &LedgerTotals::replayed},   {"generated", &LedgerTotals::generated},
    {"reasoning", &LedgerTotals::reasoning}, {"wasted", &LedgerTotals::wasted},
    {"uncosted", &LedgerTotals::uncosted},   {"device_ns", &LedgerTotals::device_ns},
};

struct MoneyColumn {
  const char* name;
  PicoSum LedgerTotals::*amount;
};

constexpr MoneyColumn kAmounts[] = {
    {"hit", &LedgerTotals::hit},
    {"miss", &LedgerTotals::miss},
    {"output", &LedgerTotals::output},
    {"cache_write", &LedgerTotals::cache_write},
    {"revenue", &LedgerTotals::revenue},
    {"compute", &LedgerTotals::compute},
    {"storage", &LedgerTotals::storage},
    {"network", &LedgerTotals::network},
    {"operations", &LedgerTotals::operations},
    {"cost", &LedgerTotals::cost},
};

// Ids of the books that amounts were made with again; "" for those of the lines.
struct OtherBooks {
  std::string prices;
  std::string costs;
};

std::string SumJson(const LedgerGroup& group, const std::vector<size_t>& by,
                    const OtherBooks& books) {
  std::string text;
  JsonWriter json(&text);
  json.BeginObject();
  for (size_t i = 0; i < by.size(); ++i) {
    json.Field(LedgerDimensions()[by[i]], group.values[i]);
  }
  for (const SumColumn& column : kCounts) json.Field(column.name, group.totals.*column.count);
  for (const MoneyColumn& column : kAmounts) {
    json.Field(column.name, FormatMoney(group.totals.*column.amount));
  }
  if (!books.prices.empty()) json.Field("repriced", books.prices);
  if (!books.costs.empty()) json.Field("recosted", books.costs);
  json.EndObject();
  return text;
}

Status PrintSumText(const LedgerGroup& group, const std::vector<size_t>& by,
                    const OtherBooks& books) {
  std::string title;
  for (size_t i = 0; i < by.size(); ++i) {
    title += fmt::format("{}{}={}", i == 0 ? "" : " ", LedgerDimensions()[by[i]], group.values[i]);
  }
  DI_RETURN_IF_ERROR(PrintLine(title.empty() ? "all lines" : title));
  for (const SumColumn& column : kCounts) {
    DI_RETURN_IF_ERROR(
        PrintLine(fmt::format("  {:<12} {:>24}", column.name, group.totals.*column.count)));
  }
  bool is_cost = false;
  for (const MoneyColumn& column : kAmounts) {
    const std::string& book = is_cost ? books.costs : books.prices;
    const std::string label =
        book.empty() ? "" : (is_cost ? "  recosted with " : "  repriced with ") + book;
    DI_RETURN_IF_ERROR(PrintLine(fmt::format("  {:<12} {:>24}{}", column.name,
                                             FormatMoney(group.totals.*column.amount), label)));
    // Costs stand behind the sum of what was earned.
    is_cost = is_cost || column.amount == &LedgerTotals::revenue;
  }
  return OkStatus();
}

// What devices did for no request, by kind.
Status PrintOverhead(const LedgerSum& sum, bool as_json, const OtherBooks& books) {
  for (size_t i = 0; i < kNumOverheadKinds; ++i) {
    const OverheadTotals& totals = sum.overhead()[i];
    const std::string_view kind = OverheadKindName(static_cast<OverheadKind>(i));
    if (totals.lines == 0) continue;
    const std::string compute = FormatMoney(totals.compute);
    const std::string operations = FormatMoney(totals.operations);
    if (as_json) {
      std::string text;
      JsonWriter json(&text);
      json.BeginObject().Field("overhead", kind).Field("lines", totals.lines);
      json.Field("device_ns", totals.device_ns).Field("uncosted", totals.uncosted);
      json.Field("compute", compute).Field("operations", operations);
      if (!books.costs.empty()) json.Field("recosted", books.costs);
      json.EndObject();
      DI_RETURN_IF_ERROR(PrintLine(text));
      continue;
    }
    DI_RETURN_IF_ERROR(PrintLine(fmt::format("overhead={}", kind)));
    DI_RETURN_IF_ERROR(PrintLine(fmt::format("  {:<12} {:>24}", "lines", totals.lines)));
    DI_RETURN_IF_ERROR(PrintLine(fmt::format("  {:<12} {:>24}", "uncosted", totals.uncosted)));
    DI_RETURN_IF_ERROR(PrintLine(fmt::format("  {:<12} {:>24}", "device_ns", totals.device_ns)));
    const std::string label = books.costs.empty() ? "" : "  recosted with " + books.costs;
    for (const auto& [name, amount] :
         {std::pair("compute", &compute), {"operations", &operations}}) {
      DI_RETURN_IF_ERROR(PrintLine(fmt::format("  {:<12} {:>24}{}", name, *amount, label)));
    }
  }
  return OkStatus();
}

Result<int64_t> InstantOf(const char* flag, const std::string& text, int64_t otherwise) {
  if (text.empty()) return otherwise;
  const std::optional<int64_t> instant = ParseUtc(text);
  if (instant) return *instant;
  return InvalidRequest(
      fmt::format("{} {}: expected 2026-11-30 or 2026-11-30T14:00:00Z", flag, text));
}

void WarnOfTornLines(const LedgerReadStats& stats) {
  if (stats.num_torn == 0) return;
  Tell("deepinfer: {} line(s) without an end were left out\n", stats.num_torn);
}

}  // namespace

Status PrintLedgerTail(const std::string& path, const LedgerTailOptions& options) {
  // By reception: files are one per process and hour, and lines come when requests end.
  std::multimap<int64_t, std::string> rows;
  const auto print_rows = [&rows]() -> Status {
    for (const auto& [received_us, row] : rows) DI_RETURN_IF_ERROR(PrintLine(row));
    rows.clear();
    return OkStatus();
  };
  bool is_first = true;
  LedgerFollower follower(path);
  const auto take = [&](const std::string&, const std::string& text, ParsedLine line) {
    if (line.kind != LineKind::kLedger) return OkStatus();
    rows.emplace(line.ledger.time.recv_utc_us, options.json ? text : TailRow(line.ledger));
    if (is_first && rows.size() > options.num_lines) rows.erase(rows.begin());
    return OkStatus();
  };
  if (!options.json) DI_RETURN_IF_ERROR(PrintLine(kTailHeader));
  while (true) {
    DI_RETURN_IF_ERROR(follower.Poll(take));
    DI_RETURN_IF_ERROR(print_rows());
    if (!options.follow) return OkStatus();
    is_first = false;
    std::this_thread::sleep_for(kFollowInterval);
  }
}

Status PrintLedgerSum(const std::string& path, const LedgerSumFlags& flags) {
  LedgerSumOptions options;
  for (const std::string& name : flags.by) {
    DI_ASSIGN_OR_RETURN(const size_t index, FindLedgerDimension(name));
    options.by.push_back(index);
  }
  DI_ASSIGN_OR_RETURN(options.since_us, InstantOf("--since", flags.since, options.since_us));
  DI_ASSIGN_OR_RETURN(options.until_us, InstantOf("--until", flags.until, options.until_us));
  std::optional<PriceBook> book;
  if (!flags.price_book.empty()) {
    DI_ASSIGN_OR_RETURN(book, PriceBook::Load(flags.price_book));
    options.reprice = &*book;
  }
  std::optional<CostBook> costs;
  if (!flags.cost_book.empty()) {
    DI_ASSIGN_OR_RETURN(costs, CostBook::Load(flags.cost_book, flags.cost_device));
    options.recost = &*costs;
  }
  DI_ASSIGN_OR_RETURN(const std::vector<std::string> files, LedgerFiles(path));
  LedgerSum sum(options);
  LedgerReadStats stats;
  DI_RETURN_IF_ERROR(ReadLedger(
      files,
      [&sum](const std::string&, const std::string&, const ParsedLine& line) {
        sum.Take(line);
        return OkStatus();
      },
      &stats));
  WarnOfTornLines(stats);
  const OtherBooks books{book ? book->id() : "", costs ? costs->id() : ""};
  for (const LedgerGroup& group : sum.Groups()) {
    DI_RETURN_IF_ERROR(flags.json ? PrintLine(SumJson(group, options.by, books))
                                  : PrintSumText(group, options.by, books));
  }
  return PrintOverhead(sum, flags.json, books);
}

Status CheckLedger(const std::string& path, bool* clean) {
  DI_ASSIGN_OR_RETURN(const std::vector<std::string> files, LedgerFiles(path));
  LedgerCheck check;
  LedgerReadStats stats;
  Status status = ReadLedger(
      files,
      [&check](const std::string& place, const std::string&, const ParsedLine& line) {
        return check.Take(place, line).Annotate(place);
      },
      &stats);
  if (status.ok()) status = check.Finish();
  WarnOfTornLines(stats);
  *clean = status.ok();
  if (status.code() == StatusCode::kDataCorruption) return PrintLine(status.message());
  DI_RETURN_IF_ERROR(status);
  return PrintLine(fmt::format("{} lines keep every invariant", stats.num_lines));
}

Status GradeLedger(const std::string& folder, const std::string& checker,
                   const std::string& input) {
  if (!std::filesystem::is_directory(folder)) {
    return InvalidRequest(folder + ": grades are appended to the folder of a ledger");
  }
  DI_ASSIGN_OR_RETURN(const std::vector<std::string> files, LedgerFiles(folder));
  std::set<std::string> attempts;
  LedgerReadStats stats;
  DI_RETURN_IF_ERROR(ReadLedger(
      files,
      [&attempts](const std::string&, const std::string&, const ParsedLine& line) {
        if (line.kind == LineKind::kLedger) attempts.insert(line.ledger.attempt_id);
        return OkStatus();
      },
      &stats));
  DI_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(input));
  std::istringstream lines(text);
  std::vector<std::string> grades;
  std::string one;
  for (int number = 1; std::getline(lines, one); ++number) {
    if (one.empty()) continue;
    const std::string place = fmt::format("{}:{}", input, number);
    const Result<GradeLine> grade = ParseGrade(one, checker);
    if (!grade.ok()) return grade.status().Annotate(place);
    if (!attempts.contains(grade->attempt_id)) {
      return InvalidRequest(place + ": no line has attempt_id " + grade->attempt_id);
    }
    grades.push_back(FormatGradeLine(*grade));
  }
  DI_ASSIGN_OR_RETURN(
      const std::unique_ptr<LedgerWriter> writer,
      LedgerWriter::Open(
          {.folder = folder, .max_queued_lines = grades.size() + 1, .utc_now_us = {}}));
  for (std::string& grade : grades) writer->Append(std::move(grade));
  const bool written = writer->Flush(std::chrono::steady_clock::now() + kWriteTime);
  if (!written || writer->num_dropped() > 0)
    return Unavailable(folder + ": not all grades could be written");
  return PrintLine(fmt::format("{} grades written", writer->num_written()));
}

}  // namespace deepinfer
