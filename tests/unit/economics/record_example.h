// A ledger record whose numbers fit together.
#pragma once

#include "economics/ledger_record.h"
#include "economics/utc_time.h"

namespace deepinfer::testing {

inline LedgerRecord ExampleRecord() {
  LedgerRecord r;
  r.ids = {.attempt_id = std::string(32, 'a'),
           .request_id = "req_1",
           .work_id = "work-1",
           .trace_id = std::nullopt,
           .session_label = "session",
           .key_name = "team-a",
           .user_ns = "00ff",
           .route = "/v1/chat/completions",
           .client_retry = 0};
  r.scope.build_commit = "abc";
  r.scope.config_hash = "def";
  r.scope.model_name = "m";
  r.scope.host_id = "host";
  r.scope.role_path = {"gateway", "prefill", "decode"};
  r.time = {.recv = 1'000'000'000,
            .admitted = 1'001'000'000,
            .kv_load_start = std::nullopt,
            .kv_load_end = std::nullopt,
            .prefill_start = 1'002'000'000,
            .prefill_end = 1'003'000'000,
            .transfer_start = std::nullopt,
            .transfer_end = std::nullopt,
            .first_token = 1'003'500'000,
            .last_token = 1'010'000'000,
            .closed = 1'012'000'000,
            .recv_utc_us = ParseUtc("2026-09-15T02:00:00Z").value(),
            .closed_utc_us = ParseUtc("2026-09-15T02:00:00.012Z").value()};
  r.tokens.prompt = 10240;
  r.tokens.cached = 9856;
  r.tokens.cached_by_tier = {9856, 0, 0, 0};
  r.tokens.computed = 384;
  r.tokens.replayed = 128;
  r.tokens.generated = 500;
  r.tokens.reasoning = 300;
  r.tokens.content = 198;
  r.tokens.control = 2;
  r.stream = {.num_chunks = 167, .itl_us = {{1000, 2000, 3000, 4567}}, .stalls_over_1s = 0};
  r.resource.client_bytes = 4096;
  r.resource.prefill_device_ns = 12'000'000;
  r.resource.decode_device_ns = 0;
  r.outcome.http_status = 200;
  r.outcome.finish_reason = "stop";
  return r;
}

}  // namespace deepinfer::testing
