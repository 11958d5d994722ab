#include "server/trace_context.h"

#include <algorithm>

#include "server/request_id.h"

namespace deepinfer {
namespace {

constexpr size_t kTraceIdBegin = 3, kTraceIdLength = 32;
constexpr size_t kSpanIdBegin = 36, kSpanIdLength = 16;
constexpr size_t kFlagsBegin = 53, kWhole = 55;

bool IsHex(std::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool IsId(std::string_view text) {
  return IsHex(text) && text.find_first_not_of('0') != std::string_view::npos;
}

}  // namespace

TraceContext ParseTraceparent(std::string_view header) {
  TraceContext context;
  // Later versions may be longer; the one of all f is none.
  if (header.size() < kWhole || (header.size() > kWhole && header[kWhole] != '-')) return context;
  const std::string_view version = header.substr(0, 2);
  if (!IsHex(version) || version == "ff") return context;
  for (const size_t dash : {kTraceIdBegin, kSpanIdBegin, kFlagsBegin}) {
    if (header[dash - 1] != '-') return context;
  }
  const std::string_view trace_id = header.substr(kTraceIdBegin, kTraceIdLength);
  const std::string_view span_id = header.substr(kSpanIdBegin, kSpanIdLength);
  const std::string_view flags = header.substr(kFlagsBegin, 2);
  if (!IsId(trace_id) || !IsId(span_id) || !IsHex(flags)) return context;
  context.trace_id = trace_id;
  context.parent_span_id = span_id;
  // The lowest bit of the second digit.
  context.sampled = std::string_view("13579bdf").find(flags[1]) != std::string_view::npos;
  return context;
}

std::string CheckTracestate(std::string_view header) {
  constexpr size_t kMostBytes = 512, kMostMembers = 32;
  if (header.size() > kMostBytes) return {};
  size_t num_members = 0;
  for (std::string_view rest = header; !rest.empty();) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view member = rest.substr(0, comma);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    // Empty members are allowed.
    if (member.find_first_not_of(" \t") == std::string_view::npos) continue;
    const size_t equals = member.find('=');
    if (equals == 0 || equals == std::string_view::npos || ++num_members > kMostMembers) return {};
    const auto is_printable = [](char c) { return c == '\t' || (c >= ' ' && c <= '~'); };
    if (!std::all_of(member.begin(), member.end(), is_printable)) return {};
  }
  return num_members == 0 ? std::string() : std::string(header);
}

std::string MakeSpanId() {
  std::string id = MakeRandomHex128().substr(0, kSpanIdLength);
  if (!IsId(id)) id.back() = '1';
  return id;
}

void BeginSpan(TraceContext* context) {
  if (context->trace_id.empty()) context->trace_id = MakeRandomHex128();
  context->span_id = MakeSpanId();
}

std::string FormatTraceparent(const TraceContext& context) {
  return "00-" + context.trace_id + "-" + context.span_id + (context.sampled ? "-01" : "-00");
}

}  // namespace deepinfer
