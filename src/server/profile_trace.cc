#include "server/profile_trace.h"

#include <string_view>

#include "base/json_writer.h"

namespace deepinfer {
namespace {

enum Thread : int64_t { kEngineThread = 1, kStepThread = 2 };

class TraceWriter {
 public:
  TraceWriter(int64_t origin_us, std::string* out) : origin_us_(origin_us), json_(out) {
    json_.BeginObject().Field("displayTimeUnit", "ms").Key("traceEvents").BeginArray();
    NameThread(kEngineThread, "engine");
    NameThread(kStepThread, "step");
  }
  void Finish() { json_.EndArray().EndObject(); }

  void Add(std::string_view name, Thread thread, int64_t begin_us, int64_t end_us,
           const StepTrace& step) {
    json_.BeginObject().Field("name", name).Field("ph", "X").Field("pid", int64_t{1});
    json_.Field("tid", static_cast<int64_t>(thread)).Field("ts", begin_us - origin_us_);
    json_.Field("dur", end_us - begin_us).Key("args").BeginObject();
    json_.Field("step", step.number).Field("sequences", int64_t{step.num_sequences});
    json_.Field("prefill_rows", step.prefill_rows).Field("decode_rows", step.decode_rows);
    json_.Field("predicted_us", static_cast<int64_t>(step.predicted_us));
    json_.EndObject().EndObject();
  }

 private:
  void NameThread(Thread thread, std::string_view name) {
    json_.BeginObject().Field("name", "thread_name").Field("ph", "M").Field("pid", int64_t{1});
    json_.Field("tid", static_cast<int64_t>(thread)).Key("args").BeginObject();
    json_.Field("name", name).EndObject().EndObject();
  }

  const int64_t origin_us_;
  JsonWriter json_;
};

}  // namespace

std::string ChromeTrace(std::span<const StepTrace> steps) {
  std::string text;
  TraceWriter trace(steps.empty() ? 0 : steps.front().plan_us, &text);
  for (const StepTrace& s : steps) {
    trace.Add("plan", kEngineThread, s.plan_us, s.launched_us, s);
    trace.Add("copy", kStepThread, s.begin_us, s.copied_us, s);
    trace.Add("model", kStepThread, s.copied_us, s.computed_us, s);
    trace.Add("sample", kStepThread, s.computed_us, s.end_us, s);
    trace.Add("process", kEngineThread, s.process_us, s.processed_us, s);
  }
  trace.Finish();
  return text;
}

}  // namespace deepinfer
