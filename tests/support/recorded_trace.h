// The public traces in tests/data/traces: one prompt a line, "milliseconds tokens ids", ids as
// comma-separated numbers and runs "first-last".
// Thread rule: pure functions.
#pragma once

#include <zstd.h>

#include <charconv>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/trace_replay.h"
#include "support/source_dir.h"

namespace deepinfer {

inline uint64_t NumberAt(std::string_view* text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text->begin(), text->end(), number);
  if (error != std::errc()) std::abort();
  text->remove_prefix(static_cast<size_t>(end - text->begin()));
  return number;
}

// Takes the character away when it is next.
inline bool Next(std::string_view* text, char wanted) {
  if (text->empty() || text->front() != wanted) return false;
  text->remove_prefix(1);
  return true;
}

// name: "conversation" or "synthetic". Ends the test program when the file is not what it should
// be.
inline std::vector<TraceRequest> RecordedTrace(const std::string& name) {
  std::ifstream file(SourceDir() + "/tests/data/traces/" + name + ".txt.zst", std::ios::binary);
  const std::string packed((std::istreambuf_iterator<char>(file)),
                           std::istreambuf_iterator<char>());
  const auto size = ZSTD_getFrameContentSize(packed.data(), packed.size());
  if (size == ZSTD_CONTENTSIZE_ERROR || size == ZSTD_CONTENTSIZE_UNKNOWN) std::abort();
  std::string text(size, '\0');
  if (ZSTD_decompress(text.data(), text.size(), packed.data(), packed.size()) != size) std::abort();
  std::vector<TraceRequest> requests;
  for (std::string_view rest = text; !rest.empty();) {
    TraceRequest request;
    request.time_ms = static_cast<int64_t>(NumberAt(&rest));
    if (!Next(&rest, ' ')) std::abort();
    request.input_tokens = static_cast<int64_t>(NumberAt(&rest));
    if (!Next(&rest, ' ')) std::abort();
    do {
      const uint64_t first = NumberAt(&rest);
      const uint64_t last = Next(&rest, '-') ? NumberAt(&rest) : first;
      for (uint64_t id = first; id <= last; ++id) request.ids.push_back(id);
    } while (Next(&rest, ','));
    if (!Next(&rest, '\n')) std::abort();
    requests.push_back(std::move(request));
  }
  return requests;
}

}  // namespace deepinfer
