#include "server/trace_spans.h"

#include <optional>
#include <string_view>
#include <utility>

#include "base/json_writer.h"
#include "server/request_times.h"

namespace deepinfer {
namespace {

// SpanKind and StatusCode of the protocol.
constexpr int64_t kInternal = 1;
constexpr int64_t kServer = 2;
constexpr int64_t kStatusError = 2;

// The attributes of a span. 64-bit numbers are strings in JSON.
class Attributes {
 public:
  explicit Attributes(JsonWriter* json) : json_(json) { json_->Key("attributes").BeginArray(); }
  ~Attributes() { json_->EndArray(); }
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;

  void Text(std::string_view key, std::string_view value) {
    if (value.empty()) return;
    Begin(key).Field("stringValue", value).EndObject().EndObject();
  }
  void Int(std::string_view key, int64_t value) {
    Begin(key).Field("intValue", std::to_string(value)).EndObject().EndObject();
  }
  void Number(std::string_view key, float value) {
    Begin(key).Key("doubleValue").Float(value).EndObject().EndObject();
  }
  void Seconds(std::string_view key, int64_t us) { Number(key, static_cast<float>(us) * 1e-6f); }

 private:
  JsonWriter& Begin(std::string_view key) {
    return json_->BeginObject().Field("key", key).Key("value").BeginObject();
  }

  JsonWriter* json_;
};

class SpanWriter {
 public:
  explicit SpanWriter(const RequestFacts& facts) : facts_(facts), time_(TimesOf(facts)) {}

  const LedgerTimes& time() const { return time_; }

  void Server(bool newer_names) {
    const TraceContext& trace = facts_.trace;
    Begin(trace.span_id, trace.parent_span_id, "llm_request", kServer, time_.recv, time_.closed);
    if (!trace.state.empty()) json_.Field("traceState", trace.state);
    {
      Attributes attributes(&json_);
      WriteRequest(&attributes);
      WriteUsage(newer_names, &attributes);
      WriteLatency(&attributes);
    }
    if (facts_.outcome.status >= 500) {
      json_.Key("status").BeginObject().Field("code", kStatusError);
      json_.Field("message", facts_.error_code).EndObject();
    }
    json_.EndObject();
  }

  void Child(std::string_view name, std::optional<int64_t> begin, std::optional<int64_t> end) {
    if (!begin || !end) return;
    Begin(MakeSpanId(), facts_.trace.span_id, name, kInternal, *begin, *end);
    json_.EndObject();
  }

  std::string Take() { return std::move(out_); }

 private:
  void Begin(std::string_view span_id, std::string_view parent, std::string_view name, int64_t kind,
             int64_t begin_ns, int64_t end_ns) {
    json_.BeginObject().Field("traceId", facts_.trace.trace_id).Field("spanId", span_id);
    if (!parent.empty()) json_.Field("parentSpanId", parent);
    json_.Field("name", name).Field("kind", kind);
    json_.Field("startTimeUnixNano", Utc(begin_ns)).Field("endTimeUnixNano", Utc(end_ns));
  }

  // From the monotonic clock to the wall clock as it was when the request came.
  std::string Utc(int64_t ns) const {
    return std::to_string(time_.recv_utc_us * 1000 + (ns - time_.recv));
  }

  void WriteRequest(Attributes* out) const {
    out->Text("gen_ai.request.id", facts_.request_id);
    out->Text("gen_ai.response.model", facts_.model);
    out->Text("http.route", facts_.route);
    out->Int("http.response.status_code", facts_.cancelled ? 499 : facts_.outcome.status);
    out->Text("error.type", facts_.error_code);
    if (!facts_.generated) return;
    out->Int("gen_ai.request.max_tokens", facts_.max_tokens);
    out->Number("gen_ai.request.temperature", facts_.temperature);
    out->Number("gen_ai.request.top_p", facts_.top_p);
    out->Int("gen_ai.request.n", facts_.num_choices);
    out->Text("deepinfer.finish_reason", facts_.finish_reason);
  }

  void WriteUsage(bool newer_names, Attributes* out) const {
    if (!facts_.generated) return;
    out->Int("gen_ai.usage.prompt_tokens", facts_.prompt_tokens);
    out->Int("gen_ai.usage.completion_tokens", facts_.completion_tokens);
    out->Int("deepinfer.usage.cached_tokens", facts_.cached_tokens);
    if (!newer_names) return;
    out->Int("gen_ai.usage.input_tokens", facts_.prompt_tokens);
    out->Int("gen_ai.usage.output_tokens", facts_.completion_tokens);
    out->Text("gen_ai.provider.name", "deepinfer");
    out->Text("gen_ai.operation.name", "chat");
  }

  void WriteLatency(Attributes* out) const {
    if (facts_.ttft_us < 0) return;
    out->Seconds("gen_ai.latency.time_in_queue", facts_.queue_us);
    out->Seconds("gen_ai.latency.time_to_first_token", facts_.ttft_us);
    out->Seconds("gen_ai.latency.e2e", facts_.e2e_us);
    out->Seconds("gen_ai.latency.time_in_model_prefill", facts_.prefill_us);
    out->Seconds("gen_ai.latency.time_in_model_decode", facts_.decode_us);
  }

  const RequestFacts& facts_;
  const LedgerTimes time_;
  std::string out_;
  JsonWriter json_{&out_};
};

}  // namespace

std::string FormatSpans(const RequestFacts& facts, bool newer_names) {
  SpanWriter writer(facts);
  writer.Server(newer_names);
  const LedgerTimes& time = writer.time();
  writer.Child("queue", time.admitted, time.prefill_start);
  writer.Child("kv_load", time.kv_load_start, time.kv_load_end);
  writer.Child("prefill", time.prefill_start, time.prefill_end);
  writer.Child("kv_transfer", time.transfer_start, time.transfer_end);
  writer.Child("decode", time.transfer_end ? time.transfer_end : time.prefill_end, time.last_token);
  return writer.Take();
}

}  // namespace deepinfer
