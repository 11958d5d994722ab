// What a pool of grammar compilations has done since its start.
// Thread rule: values.
#pragma once

#include <cstdint>

namespace deepinfer {

struct GrammarPoolStats {
  int64_t num_compiled = 0;
  int64_t num_failed = 0;
  int64_t num_cache_hits = 0;
  int64_t num_evicted = 0;
  int64_t cached_bytes = 0;
  int64_t num_waiting = 0;
  int64_t compile_us = 0;  // summed
};

}  // namespace deepinfer
