// Events of a streamed answer.
#include <boost/json.hpp>

#include "cli/bench_serve_client.h"

namespace deepinfer {

namespace {

namespace json = boost::json;

// A refusal is short; more of it is not worth a line of the report.
constexpr size_t kMostRefusalBytes = 16 * 1024;
constexpr size_t kMostMessageBytes = 200;

// The message of a body of the form {"error":{"message":...}}; "" for another form.
std::string ErrorMessage(const json::value& body) {
  const json::value* fault = body.is_object() ? body.get_object().if_contains("error") : nullptr;
  const json::value* message =
      fault != nullptr && fault->is_object() ? fault->get_object().if_contains("message") : nullptr;
  if (message == nullptr || !message->is_string()) return "";
  return std::string(message->get_string()).substr(0, kMostMessageBytes);
}

int64_t IntegerAt(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(key);
  return value != nullptr && value->is_int64() ? value->get_int64() : 0;
}

void TakeUsage(const json::object& usage, RequestOutcome* outcome) {
  outcome->prompt_tokens = IntegerAt(usage, "prompt_tokens");
  outcome->output_tokens = IntegerAt(usage, "completion_tokens");
  const json::value* details = usage.if_contains("prompt_tokens_details");
  if (details != nullptr && details->is_object()) {
    outcome->cached_tokens = IntegerAt(details->get_object(), "cached_tokens");
  }
}

}  // namespace

int64_t StreamReader::Take(std::string_view bytes, double now_s) {
  if (outcome_->status != 200) {
    refusal_ += bytes.substr(0, kMostRefusalBytes - refusal_.size());
    return 0;
  }
  int64_t num_events = 0;
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    line_ += bytes.substr(0, end);
    if (end == std::string_view::npos) break;
    bytes.remove_prefix(end + 1);
    if (!line_.empty() && line_.back() == '\r') line_.pop_back();
    constexpr std::string_view kData = "data: ";
    if (line_.starts_with(kData)) {
      TakeEvent(std::string_view(line_).substr(kData.size()), now_s, &num_events);
    }
    line_.clear();
  }
  return num_events;
}

void StreamReader::TakeEvent(std::string_view data, double now_s, int64_t* num_events) {
  if (data == "[DONE]") {
    done_ = true;
    return;
  }
  // Most events are one token: only those that carry more than text are parsed, because the load
  // generator often shares its processor with the server.
  const bool has_usage = data.find(R"("usage":{)") != std::string_view::npos;
  const bool has_error = data.find(R"("error":)") != std::string_view::npos;
  if (has_usage || has_error) {
    boost::system::error_code error;
    const json::value value = json::parse(json::string_view(data.data(), data.size()), error);
    if (error || !value.is_object()) {
      outcome_->error = "an event is not JSON";
      return;
    }
    if (const json::value* usage = value.get_object().if_contains("usage")) {
      if (usage->is_object()) TakeUsage(usage->get_object(), outcome_);
    }
    if (value.get_object().contains("error")) {
      outcome_->error = ErrorMessage(value);
      if (outcome_->error.empty()) outcome_->error = "the server reported an error";
    }
  }
  if (data.find(R"("choices":[{)") == std::string_view::npos) return;
  // The finish chunk holds no token of its own.
  if (data.find(R"("finish_reason":null)") == std::string_view::npos && has_token_) return;
  if (has_token_) {
    outcome_->gaps_s.push_back(static_cast<float>(now_s - outcome_->last_token_s));
  } else {
    outcome_->first_token_s = now_s;
  }
  has_token_ = true;
  outcome_->last_token_s = now_s;
  ++*num_events;
}

void StreamReader::Finish() {
  if (outcome_->error.empty() && outcome_->status != 200) {
    outcome_->error = "status " + std::to_string(outcome_->status);
    boost::system::error_code error;
    const json::value body = json::parse(refusal_, error);
    const std::string message = error ? "" : ErrorMessage(body);
    if (!message.empty()) outcome_->error += ": " + message;
  }
  if (outcome_->error.empty() && !done_) outcome_->error = "the stream ended early";
  if (outcome_->error.empty() && outcome_->output_tokens == 0) {
    outcome_->error = "the answer has no usage";
  }
  outcome_->ok = outcome_->error.empty();
}

}  // namespace deepinfer
