#include "server/response_common.h"

#include "base/json_writer.h"

namespace deepinfer {

std::string MetricsJson(const ResponseMetrics& metrics) {
  std::string out;
  JsonWriter json(&out);
  json.BeginObject();
  json.Key("queue_ms").Float(static_cast<float>(metrics.queue_ms));
  json.Key("ttft_ms").Float(static_cast<float>(metrics.ttft_ms));
  json.Key("e2e_ms").Float(static_cast<float>(metrics.e2e_ms));
  json.EndObject();
  return out;
}

}  // namespace deepinfer
