// Attention of the CPU backend: the split into tasks.

#include <algorithm>

#include "kernels/cpu/cpu_operators.h"

namespace deepinfer {

namespace {

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Fewer heads than this do not pay for dequantising the keys again.
constexpr int64_t kMinHeadsPerTask = 8;

}  // namespace

void CpuOperators::Attention(std::span<const AttentionRow> rows, const float* q, const float* sink,
                             const AttentionShape& shape, float* o) {
  const int64_t num_rows = static_cast<int64_t>(rows.size());
  if (num_rows == 0) return;
  const int64_t threads = pool_->num_threads();
  const int64_t heads = shape.num_heads;
  // Rows are split first: a task dequantises its keys once for all its heads.
  const int64_t wanted = threads == 1 ? 1 : CeilDiv(2 * threads, num_rows);
  const int64_t groups =
      std::clamp<int64_t>(wanted, 1, std::max<int64_t>(heads / kMinHeadsPerTask, 1));
  const int64_t group_heads = CeilDiv(heads, groups);
  const int64_t floats = TileScratchFloats(static_cast<int32_t>(group_heads), shape.head_dim);
  float* scratch = slot_floats_.Get(threads * floats);
  RunTasksInSlots(num_rows * groups, [&](int64_t index, int64_t slot) {
    const int64_t t = index / groups;
    const int64_t head = index % groups * group_heads;
    if (head >= heads) return;
    const int64_t offset = (t * heads + head) * shape.head_dim;
    AttentionTask task;
    task.row = &rows[static_cast<size_t>(t)];
    task.shape = &shape;
    task.num_heads = static_cast<int32_t>(std::min(group_heads, heads - head));
    task.q = q + offset;
    task.sink = sink + head;
    task.o = o + offset;
    task.scratch = scratch + slot * floats;
    kernels_.attention.attention(task);
  });
}

}  // namespace deepinfer
