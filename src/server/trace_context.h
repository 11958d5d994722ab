// W3C trace context (api.md §17): the trace a request belongs to, and the span of the server in it.
// Thread rule: values and pure functions.
#pragma once

#include <string>
#include <string_view>

namespace deepinfer {

struct TraceContext {
  std::string trace_id;        // 32 hex digits; "": none
  std::string parent_span_id;  // 16 hex digits, of the caller; "": none
  std::string span_id;         // 16 hex digits, of the server; "": the request is not traced
  std::string state;           // tracestate of the caller, as it came; "": none
  bool sampled = true;         // what the caller decided
};

// Of a traceparent header, "00-<32 hex>-<16 hex>-<2 hex>"; without trace id when it has another
// form or an id of zeros.
TraceContext ParseTraceparent(std::string_view header);

// A tracestate header that may be passed on: at most 512 bytes and 32 members, all of them
// "key=value" in printable characters; "" otherwise.
std::string CheckTracestate(std::string_view header);

// Makes a trace where the caller began none, and the server's span in it.
void BeginSpan(TraceContext* context);

// The header that names the server's span.
std::string FormatTraceparent(const TraceContext& context);

// 16 random hex digits, not all zero.
std::string MakeSpanId();

}  // namespace deepinfer
