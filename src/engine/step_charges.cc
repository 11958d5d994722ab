#include "engine/step_charges.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "sched/step_share.h"

namespace deepinfer {
namespace {

constexpr int64_t kNsPerUs = 1000;
// Operations of rows are far above this; whole thousands of them keep sums of a step in 64 bits.
constexpr double kOperationsPerPart = 1000.0;

int64_t WeightOf(const EngineState& state, const StepItem& item) {
  if (!item.ran) return 0;
  StepRows rows;
  if (item.is_decode) {
    // Rows of drafts included, refused or not.
    state.cost().AddDecode(item.rows.start, item.rows.num_rows, &rows);
  } else {
    const int32_t decoder_from = item.sequence->cache.decoder_from;
    state.cost().AddPrefill(item.rows.start, item.end(), decoder_from, &rows);
  }
  return std::max<int64_t>(1, std::llround(rows.flops / kOperationsPerPart));
}

}  // namespace

void ChargeStep(EngineState& state, const StepJob& job) {
  std::vector<int64_t> weights;
  std::vector<std::string_view> names;
  weights.reserve(job.items.size());
  names.reserve(job.items.size());
  for (const StepItem& item : job.items) {
    weights.push_back(WeightOf(state, item));
    names.push_back(item.sequence->request.request_id);
  }
  const int64_t total_ns = (job.end_us - job.begin_us) * kNsPerUs;
  const std::vector<int64_t> shares = DivideExactly(total_ns, weights, names);
  state.statistics.unclaimed_ns += total_ns;
  for (size_t i = 0; i < shares.size(); ++i) {
    Sequence& s = *job.items[i].sequence;
    RequestCounters& counters = s.counters;
    // The account of a request that ended while this step ran is closed.
    if (!IsTerminal(s.state)) state.statistics.unclaimed_ns -= shares[i];
    (job.items[i].is_decode ? counters.decode_device_ns : counters.prefill_device_ns) += shares[i];
    int64_t& since_us = s.schedule.blocks_charged_us;
    if (since_us == 0) since_us = job.begin_us;
    counters.kv_block_ns += s.cache.num_blocks * (job.end_us - since_us) * kNsPerUs;
    since_us = job.end_us;
  }
}

}  // namespace deepinfer
