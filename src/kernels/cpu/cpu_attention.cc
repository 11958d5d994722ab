// Attention of the CPU backend: the split into tasks.

#include <algorithm>

#include "kernels/cpu/cpu_operators.h"

namespace deepinfer {

namespace {

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Fewer heads than this do not pay for dequantising the keys again.
constexpr int64_t kMinHeadsPerTask = 4;
// Queries that pay for dequantising the keys; more of them leave the second-level cache.
constexpr int64_t kMaxQueriesPerTask = 64;
constexpr int64_t kMaxRowsPerTask = 8;

bool SameWindow(const WindowRows& a, const WindowRows& b) {
  return a.ring == b.ring && a.step_rows == b.step_rows && a.ring_rows == b.ring_rows &&
         a.step_start == b.step_start && a.row_bytes == b.row_bytes;
}
bool SamePages(const KvPages& a, const KvPages& b) {
  return a.pool == b.pool && a.block_table == b.block_table && a.block_stride == b.block_stride &&
         a.main_offset == b.main_offset && a.entries_per_block == b.entries_per_block;
}

// First rows of runs of at most max_rows rows that share window and pages, and the end.
void SplitRows(std::span<const AttentionRow> rows, int64_t max_rows, std::vector<int64_t>* starts) {
  starts->clear();
  for (size_t t = 0; t < rows.size(); ++t) {
    const bool is_new = t == 0 || static_cast<int64_t>(t) - starts->back() == max_rows ||
                        !SameWindow(rows[t].window, rows[t - 1].window) ||
                        !SamePages(rows[t].pages, rows[t - 1].pages);
    if (is_new) starts->push_back(static_cast<int64_t>(t));
  }
  starts->push_back(static_cast<int64_t>(rows.size()));
}

}  // namespace

// Rows are split first: a task dequantises its keys once for all its heads. Few heads share the
// keys with neighbouring rows instead.
void CpuOperators::Attention(std::span<const AttentionRow> rows, const float* q, const float* sink,
                             const AttentionShape& shape, float* o) {
  const int64_t num_rows = static_cast<int64_t>(rows.size());
  if (num_rows == 0) return;
  const int64_t threads = pool_->num_threads();
  const int64_t heads = shape.num_heads;
  const int64_t wanted_tasks = threads == 1 ? 1 : 2 * threads;
  const int64_t task_rows = std::clamp<int64_t>(
      std::min(kMaxQueriesPerTask / heads, num_rows / wanted_tasks), 1, kMaxRowsPerTask);
  SplitRows(rows, task_rows, &attention_starts_);
  const int64_t runs = static_cast<int64_t>(attention_starts_.size()) - 1;
  const int64_t groups = std::clamp<int64_t>(CeilDiv(wanted_tasks, runs), 1,
                                             std::max<int64_t>(heads / kMinHeadsPerTask, 1));
  // Kernels take four heads at a time.
  const int64_t group_heads = groups == 1 ? heads : CeilDiv(CeilDiv(heads, groups), 4) * 4;
  const int64_t floats = AttentionScratchFloats(static_cast<int32_t>(task_rows),
                                                static_cast<int32_t>(group_heads), shape.head_dim);
  float* scratch = slot_floats_.Get(threads * floats);
  const auto kernel = shape.is_bf16dot() ? kernels_.attention.bf16 : kernels_.attention.fp32;
  RunTasksInSlots(runs * groups, [&](int64_t index, int64_t slot) {
    const int64_t run = index / groups;
    const int64_t t = attention_starts_[static_cast<size_t>(run)];
    const int64_t head = index % groups * group_heads;
    if (head >= heads) return;
    const int64_t offset = (t * heads + head) * shape.head_dim;
    AttentionTask task;
    task.rows = &rows[static_cast<size_t>(t)];
    task.num_rows = static_cast<int32_t>(attention_starts_[static_cast<size_t>(run) + 1] - t);
    task.shape = &shape;
    task.num_heads = static_cast<int32_t>(std::min(group_heads, heads - head));
    task.row_stride = heads * shape.head_dim;
    task.q = q + offset;
    task.sink = sink + head;
    task.o = o + offset;
    task.scratch = scratch + slot * floats;
    kernel(task);
  });
}

}  // namespace deepinfer
