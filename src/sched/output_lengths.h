// How long answers are, from the last ones.
// Thread rule: one caller at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace deepinfer {

class OutputLengths {
 public:
  void Add(int64_t num_tokens);

  // Of ten answers nine are not longer; nothing before there were enough of them.
  std::optional<int64_t> P90() const;

 private:
  // Enough for a stable ninth decile, few enough to follow a change of the traffic.
  static constexpr size_t kMost = 256;
  static constexpr size_t kLeast = 20;

  std::vector<int64_t> last_;
  size_t next_ = 0;
};

}  // namespace deepinfer
