// A ledger line read back: every required field checked for presence and type, those that sums and
// checks need as values (economics.md §3).
// Thread rule: values and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "economics/ledger_record.h"
#include "economics/overhead_record.h"

namespace deepinfer {

struct LedgerLine {
  std::string attempt_id;
  std::string work_id;
  // Text of every field that sums may be grouped by, in the order of LedgerDimensions().
  std::vector<std::string> dimensions;
  LedgerTimes time;
  LedgerTokens tokens;
  int64_t num_chunks = 0;
  std::optional<std::string> ttft_ms;
  std::string e2e_ms;
  LedgerOutcome outcome;
  std::string quality;
  std::optional<bool> slo_met;
  bool qualified = false;
  std::vector<std::string> why_not;
  std::string route;
  std::optional<std::string> price_book;
  std::optional<std::string> price_window;
  std::optional<Revenue> revenue;
  LedgerResource resource;
  std::optional<std::string> cost_book;
  std::optional<Cost> cost;
};

struct GradeLine {
  std::string attempt_id;
  std::string checker;
  std::string quality;  // pass or fail
};

// Paths of the fields that sums may be grouped by, as "ids.key_name".
const std::vector<std::string_view>& LedgerDimensions();

// Index into LedgerDimensions of a path or of its last part. invalid_request lists them.
Result<size_t> FindLedgerDimension(std::string_view name);

enum class LineKind : unsigned char { kLedger, kGrade, kOverhead };

struct ParsedLine {
  LineKind kind = LineKind::kLedger;
  LedgerLine ledger;
  GradeLine grade;
  OverheadRecord overhead;
};

// data_corruption names the field that is missing or has another type.
Result<ParsedLine> ParseLedgerLine(std::string_view text);

// A grade as a checker hands it in: {"attempt_id", "quality"}; invalid_request.
Result<GradeLine> ParseGrade(std::string_view text, const std::string& checker);

std::string FormatGradeLine(const GradeLine& grade);

}  // namespace deepinfer
