#include "cli/bench_serve_workload.h"

#include <fmt/core.h>

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <numbers>
#include <sstream>

#include "base/philox.h"

namespace deepinfer {

namespace {

namespace json = boost::json;

constexpr int32_t kFirstPlainId = 3;  // begin, end and pad come before it
constexpr int32_t kTokensPerHash = 512;
constexpr uint32_t kInputStream = 0, kOutputStream = 1, kPrefixStream = 2, kArrivalStream = 3,
                   kContentStream = 4;
// Contents that occur once lie above those that traces and prefixes name.
constexpr uint64_t kUniqueContent = uint64_t{1} << 62;
constexpr uint64_t kPrefixContent = uint64_t{1} << 61;

double Uniform(uint64_t seed, uint32_t stream, uint64_t index, uint32_t draw = 0) {
  return UniformFromBits(RandomBits(
      Philox4x32({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), stream, draw},
                 {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)})));
}

double Normal(uint64_t seed, uint32_t stream, uint64_t index) {
  const double radius = std::sqrt(-2 * std::log(Uniform(seed, stream, index, 0)));
  return radius * std::cos(2 * std::numbers::pi * Uniform(seed, stream, index, 1));
}

bool ParseNumber(std::string_view text, double* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size() && std::isfinite(*value);
}

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0;;) {
    const size_t end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

// Seconds of "YYYY-MM-DD HH:MM:SS.fffffff" since the epoch.
bool ParseTimestamp(const std::string& text, double* seconds) {
  int year = 0, month = 0, day = 0, hour = 0, minute = 0;
  double second = 0;
  if (std::sscanf(text.c_str(), "%d-%d-%d %d:%d:%lf", &year, &month, &day, &hour, &minute,
                  &second) != 6) {
    return false;
  }
  // Days from the civil calendar, with the year beginning in March.
  const int y = month <= 2 ? year - 1 : year;
  const int era = y / 400, of_era = y - era * 400;
  const int of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  const int64_t days =
      int64_t{era} * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
  *seconds = static_cast<double>(days * 86400 + hour * 3600 + minute * 60) + second;
  return true;
}

int32_t Scaled(double length, double scale) {
  return static_cast<int32_t>(std::max(1.0, std::round(length * scale)));
}

Status BadLine(size_t number, std::string_view why) {
  return InvalidRequest(fmt::format("trace line {}: {}", number, why));
}

// One line of JSON; the trace's own ids name the tokens.
Status ParseJsonLine(const std::string& line, size_t number, double length_scale, double* time_s,
                     WorkloadRequest* request) {
  boost::system::error_code error;
  const json::value value = json::parse(line, error);
  if (error || !value.is_object()) return BadLine(number, "not a JSON object");
  const auto field = [&](std::string_view name) -> const json::value* {
    return value.get_object().if_contains(name);
  };
  double timestamp = 0, input = 0, output = 0;
  for (const auto& [name, out] :
       {std::pair{"timestamp", &timestamp}, {"input_length", &input}, {"output_length", &output}}) {
    const json::value* v = field(name);
    if (v == nullptr || !v->is_number() || v->to_number<double>() < 0) {
      return BadLine(number, fmt::format("{} is missing or not a number", name));
    }
    *out = v->to_number<double>();
  }
  *time_s = timestamp / 1000;
  request->output_tokens = Scaled(output, length_scale);
  const json::value* ids = field("hash_ids");
  int32_t rest = Scaled(input, length_scale);
  const int32_t per_id = Scaled(kTokensPerHash, length_scale);
  if (ids != nullptr && ids->is_array()) {
    for (const json::value& id : ids->get_array()) {
      if (!id.is_int64() || id.get_int64() < 0) return BadLine(number, "a hash id is no integer");
      if (rest == 0) break;
      const int32_t length = std::min(rest, per_id);
      request->prompt.push_back({static_cast<uint64_t>(id.get_int64()), length});
      rest -= length;
    }
  }
  if (rest > 0) request->prompt.push_back({kUniqueContent + number, rest});
  return OkStatus();
}

Status ParseCsvLine(const std::string& line, size_t number, double length_scale, double* time_s,
                    WorkloadRequest* request) {
  const std::vector<std::string_view> parts = Split(line, ',');
  double input = 0, output = 0;
  if (parts.size() != 3 || !ParseTimestamp(std::string(parts[0]), time_s) ||
      !ParseNumber(parts[1], &input) || !ParseNumber(parts[2], &output)) {
    return BadLine(number, "expected TIMESTAMP,ContextTokens,GeneratedTokens");
  }
  request->output_tokens = Scaled(output, length_scale);
  request->prompt.push_back({kUniqueContent + number, Scaled(input, length_scale)});
  return OkStatus();
}

}  // namespace

Result<LengthDistribution> LengthDistribution::Parse(const std::string& text) {
  const std::vector<std::string_view> parts = Split(text, ':');
  LengthDistribution d;
  bool good = false;
  if (parts.size() == 1) {
    good = ParseNumber(parts[0], &d.a_);
    d.b_ = d.a_;
  } else if (parts.size() == 2) {
    good = ParseNumber(parts[0], &d.a_) && ParseNumber(parts[1], &d.b_) && d.a_ <= d.b_;
  } else if (parts.size() == 3 && (parts[0] == "normal" || parts[0] == "lognormal")) {
    d.kind_ = parts[0] == "normal" ? Kind::kNormal : Kind::kLogNormal;
    good = ParseNumber(parts[1], &d.a_) && ParseNumber(parts[2], &d.b_) && d.b_ >= 0;
  }
  constexpr double kLongest = 1 << 24;
  if (!good || d.a_ < 1 || d.a_ > kLongest || d.b_ > kLongest) {
    return InvalidRequest("'" + text +
                          "' is no length: use N, LOW:HIGH, normal:MEAN:DEVIATION or "
                          "lognormal:MEDIAN:SIGMA");
  }
  return d;
}

int32_t LengthDistribution::Draw(uint64_t seed, uint32_t stream, uint64_t index) const {
  double length = a_;
  switch (kind_) {
    case Kind::kUniform:
      length = std::floor(a_ + Uniform(seed, stream, index) * (b_ - a_ + 1));
      break;
    case Kind::kNormal:
      length = std::round(a_ + b_ * Normal(seed, stream, index));
      break;
    case Kind::kLogNormal:
      length = std::round(a_ * std::exp(b_ * Normal(seed, stream, index)));
      break;
  }
  return static_cast<int32_t>(std::clamp(length, 1.0, 1.0 * (1 << 24)));
}

int64_t WorkloadRequest::prompt_tokens() const {
  int64_t sum = 0;
  for (const PromptSegment& segment : prompt) sum += segment.num_tokens;
  return sum;
}

std::vector<WorkloadRequest> MakeSynthetic(const SyntheticWorkload& w) {
  std::vector<WorkloadRequest> requests;
  double arrival_s = 0;
  for (uint64_t i = 0; i < static_cast<uint64_t>(w.num_requests); ++i) {
    WorkloadRequest& request = requests.emplace_back();
    request.arrival_s = arrival_s;
    request.output_tokens = w.output.Draw(w.seed, kOutputStream, i);
    const int32_t input = w.input.Draw(w.seed, kInputStream, i);
    const auto shared = static_cast<int32_t>(std::floor(w.shared_share * input));
    if (shared > 0) {
      const double pick = Uniform(w.seed, kPrefixStream, i) * w.num_prefixes;
      request.prompt.push_back({kPrefixContent + static_cast<uint64_t>(pick), shared});
    }
    if (input > shared) request.prompt.push_back({kUniqueContent + i, input - shared});
    if (w.rate_per_s > 0) {
      const double exponential = -std::log(Uniform(w.seed, kArrivalStream, i));
      // Between even gaps and exponential ones.
      arrival_s += (1 + w.burstiness * (exponential - 1)) / w.rate_per_s;
    }
  }
  return requests;
}

Result<std::vector<WorkloadRequest>> ParseTrace(const std::string& text,
                                                const TraceOptions& options) {
  std::vector<WorkloadRequest> requests;
  std::istringstream lines(text);
  std::string line;
  double first_s = 0;
  for (size_t number = 1; std::getline(lines, line); ++number) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty() || (number == 1 && line.starts_with("TIMESTAMP"))) continue;
    WorkloadRequest request;
    double time_s = 0;
    DI_RETURN_IF_ERROR(line.front() == '{'
                           ? ParseJsonLine(line, number, options.length_scale, &time_s, &request)
                           : ParseCsvLine(line, number, options.length_scale, &time_s, &request));
    if (options.max_input_tokens > 0 && request.prompt_tokens() > options.max_input_tokens) {
      continue;
    }
    if (requests.empty()) first_s = time_s;
    request.arrival_s = (time_s - first_s) * options.time_scale;
    if (request.arrival_s < 0) return BadLine(number, "earlier than the one before it");
    requests.push_back(std::move(request));
    if (static_cast<int64_t>(requests.size()) == options.max_requests) break;
  }
  if (requests.empty()) return InvalidRequest("the trace holds no request");
  return requests;
}

std::vector<int32_t> PromptIds(const WorkloadRequest& request, int32_t begin_id,
                               int32_t vocab_size) {
  std::vector<int32_t> ids;
  ids.reserve(static_cast<size_t>(request.prompt_tokens()));
  const auto range = static_cast<uint32_t>(std::max(1, vocab_size - kFirstPlainId));
  for (const PromptSegment& segment : request.prompt) {
    for (int32_t i = 0; i < segment.num_tokens; ++i) {
      const PhiloxBlock block = Philox4x32({static_cast<uint32_t>(i), 0, kContentStream, 0},
                                           {static_cast<uint32_t>(segment.content_id),
                                            static_cast<uint32_t>(segment.content_id >> 32)});
      ids.push_back(kFirstPlainId + static_cast<int32_t>(block[0] % range));
    }
  }
  ids.front() = begin_id;
  return ids;
}

}  // namespace deepinfer
