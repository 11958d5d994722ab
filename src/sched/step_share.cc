#include "sched/step_share.h"

#include <algorithm>
#include <numeric>

namespace deepinfer {

__extension__ using Wide = __int128;

std::vector<int64_t> DivideExactly(int64_t total, std::span<const int64_t> weights,
                                   std::span<const std::string_view> names) {
  std::vector<int64_t> shares(weights.size(), 0);
  const Wide sum = std::accumulate(weights.begin(), weights.end(), Wide{0});
  if (sum == 0) return shares;
  std::vector<Wide> remainders(weights.size());
  int64_t left = total;
  for (size_t i = 0; i < weights.size(); ++i) {
    const Wide product = Wide{total} * weights[i];
    shares[i] = static_cast<int64_t>(product / sum);
    remainders[i] = product % sum;
    left -= shares[i];
  }
  std::vector<size_t> order(weights.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return remainders[a] != remainders[b] ? remainders[a] > remainders[b] : names[a] < names[b];
  });
  for (int64_t i = 0; i < left; ++i) ++shares[order[static_cast<size_t>(i)]];
  return shares;
}

}  // namespace deepinfer
