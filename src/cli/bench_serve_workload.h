// What a load test sends: lengths, arrival times and shared prefixes, from distributions or from a
// trace file. Everything is a function of the seed, so that two runs send the same bytes.
// Thread rule: values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace deepinfer {

// Number of tokens of a request: "512", "100:900" (uniform), "normal:512:64",
// "lognormal:400:0.8" (median, sigma). At least 1.
class LengthDistribution {
 public:
  // invalid_request for another form.
  static Result<LengthDistribution> Parse(const std::string& text);

  // The draw of request `index`; stream separates input from output lengths.
  int32_t Draw(uint64_t seed, uint32_t stream, uint64_t index) const;

 private:
  enum class Kind : unsigned char { kUniform, kNormal, kLogNormal };
  Kind kind_ = Kind::kUniform;
  double a_ = 1, b_ = 1;
};

// Tokens that are the same wherever this id occurs.
struct PromptSegment {
  uint64_t content_id = 0;
  int32_t num_tokens = 0;
};

struct WorkloadRequest {
  double arrival_s = 0;  // after the start; only for open loops
  std::vector<PromptSegment> prompt;
  int32_t output_tokens = 1;

  int64_t prompt_tokens() const;
};

struct SyntheticWorkload {
  int64_t num_requests = 100;
  double rate_per_s = 0;  // Poisson arrivals; 0: all at once
  double burstiness = 1;  // in [0, 1]: 0 makes the gaps even
  LengthDistribution input, output;
  double shared_share = 0;  // of each prompt, taken from one of num_prefixes common texts
  int32_t num_prefixes = 1;
  uint64_t seed = 1;
};

std::vector<WorkloadRequest> MakeSynthetic(const SyntheticWorkload& workload);

struct TraceOptions {
  double time_scale = 1;         // gaps are multiplied by it
  double length_scale = 1;       // lengths are multiplied by it, at least 1 token
  int64_t max_requests = 0;      // 0: all
  int32_t max_input_tokens = 0;  // longer ones are left out; 0: none
};

// A trace: JSON lines with timestamp (ms), input_length, output_length and hash_ids, one per 512
// input tokens (equal id, equal tokens); or CSV with the columns TIMESTAMP, ContextTokens,
// GeneratedTokens. Sorted by time. invalid_request naming the line.
Result<std::vector<WorkloadRequest>> ParseTrace(const std::string& text,
                                                const TraceOptions& options);

// Token ids of a prompt: the first is begin_id, the others lie in [3, vocab_size).
std::vector<int32_t> PromptIds(const WorkloadRequest& request, int32_t begin_id,
                               int32_t vocab_size);

}  // namespace deepinfer
