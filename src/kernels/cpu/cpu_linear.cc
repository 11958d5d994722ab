// Linears of the CPU backend: expansion of activations and the split into tasks.

#include <algorithm>
#include <cstring>

#include "kernels/cpu/cpu_operators.h"

namespace deepinfer {

namespace {

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Elements of one task of the activation quantiser.
constexpr int64_t kQuantizeChunk = 4096;

// Tasks a thread should find, so that one that fell behind can be overtaken.
constexpr int64_t kTasksPerThread = 8;
// Outputs of a bf16dot task: at most so many that the results of few rows stay in the first-level
// cache.
constexpr int64_t kMaxDotOutputs = 384;

int64_t BitsPerWeight(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return 32;
    case WeightFormat::kBf16:
      return 16;
    case WeightFormat::kFp8Block32:
    case WeightFormat::kFp8Group32:
      return 8;
    case WeightFormat::kFp4Group32:
      return 4;
  }
  return 0;
}

// Whether rows are expanded for weights stored in codes, else for bf16 weights.
bool ExpandsForCodes(const LinearOutput& output) {
  return output.weight->format != WeightFormat::kBf16;
}

// Cuts the outputs of linears over the same rows into tasks: columns of one weight and group times
// a part of the rows.
class LinearTiling {
 public:
  struct Tile {
    size_t output = 0;
    int64_t group = 0, first_column = 0, num_columns = 0, first_row = 0, num_rows = 0;
  };

  LinearTiling(std::span<const LinearOutput> outputs, int64_t columns, int32_t num_groups,
               int64_t num_rows)
      : outputs_(outputs),
        columns_(columns),
        num_groups_(num_groups),
        num_rows_(num_rows),
        row_tasks_(CeilDiv(num_rows, kMaxTaskRows)),
        rows_per_task_(CeilDiv(num_rows, row_tasks_)) {
    for (const LinearOutput& output : outputs) {
      const WeightMatrix& w = *output.weight;
      num_tasks_ += NumTasks(w);
      work_ += num_rows * w.out_features * w.in_features;
    }
  }

  int64_t num_tasks() const { return num_tasks_; }
  int64_t work() const { return work_; }  // multiply-adds of all tasks

  Tile At(int64_t index) const {
    Tile tile;
    while (index >= NumTasks(*outputs_[tile.output].weight)) {
      index -= NumTasks(*outputs_[tile.output++].weight);
    }
    const int64_t group_columns = GroupColumns(*outputs_[tile.output].weight);
    const int64_t tiles = CeilDiv(group_columns, columns_);
    const int64_t in_group = index / row_tasks_ % tiles * columns_;
    tile.group = index / row_tasks_ / tiles;
    tile.first_column = tile.group * group_columns + in_group;
    tile.num_columns = std::min(columns_, group_columns - in_group);
    tile.first_row = index % row_tasks_ * rows_per_task_;
    tile.num_rows = std::min(rows_per_task_, num_rows_ - tile.first_row);
    return tile;
  }

 private:
  int64_t GroupColumns(const WeightMatrix& w) const { return w.out_features / num_groups_; }
  int64_t NumTasks(const WeightMatrix& w) const {
    return num_groups_ * CeilDiv(GroupColumns(w), columns_) * row_tasks_;
  }

  std::span<const LinearOutput> outputs_;
  int64_t columns_;
  int32_t num_groups_;
  int64_t num_rows_, row_tasks_, rows_per_task_;
  int64_t num_tasks_ = 0, work_ = 0;
};

}  // namespace

WeightAddress AddressOf(const WeightMatrix& w, int64_t n) {
  WeightAddress address;
  address.data =
      static_cast<const uint8_t*>(w.data) + n * (w.in_features * BitsPerWeight(w.format) / 8);
  if (w.scales != nullptr) {
    const int64_t outputs = w.format == WeightFormat::kFp8Block32 ? 32 : 1;
    address.scales = w.scales + n / outputs * CeilDiv(w.in_features, 32);
  }
  return address;
}

int CpuOperators::LinearWidth(int64_t rows, int64_t outputs) const {
  const LinearKernels& linear = kernels_.linear;
  // Enough tasks for a thread that fell behind to be overtaken, unless there is one thread.
  const int64_t threads = pool_->num_threads();
  const int64_t tasks = threads == 1 ? 1 : 4 * threads;
  const int64_t row_tasks = CeilDiv(rows, kMaxTaskRows);
  if (rows <= linear.max_rows_of_64 && CeilDiv(outputs, 64) * row_tasks >= tasks) return 2;
  if (rows <= linear.max_rows_of_32 && CeilDiv(outputs, 32) * row_tasks >= tasks) return 1;
  return 0;
}

int64_t CpuOperators::DotOutputs(int64_t num_outputs) const {
  const int64_t even = CeilDiv(num_outputs, kTasksPerThread * pool_->num_threads());
  return std::clamp(CeilDiv(even, kDotOutputUnit) * kDotOutputUnit, kDotOutputUnit, kMaxDotOutputs);
}

template <typename Finish>
void CpuOperators::RunLinear(const LinearKernel& kernel, int64_t tile,
                             std::span<const LinearOutput> outputs, int32_t num_groups,
                             int64_t num_rows, Finish&& finish) {
  if (num_rows == 0) return;
  const LinearTiling tiling(outputs, tile, num_groups, num_rows);
  y_rows_.resize(outputs.size() * static_cast<size_t>(num_rows));
  for (size_t i = 0; i < outputs.size(); ++i) {
    for (int64_t m = 0; m < num_rows; ++m) {
      y_rows_[i * static_cast<size_t>(num_rows) + static_cast<size_t>(m)] =
          outputs[i].y + m * outputs[i].weight->out_features;
    }
  }
  RunTasks(tiling.num_tasks(), tiling.work(), [&](int64_t index) {
    const LinearTiling::Tile place = tiling.At(index);
    const int64_t next = index + pool_->num_threads();
    LinearTask task;
    task.weight = outputs[place.output].weight;
    task.first_output = place.first_column;
    task.num_outputs = place.num_columns;
    task.num_rows = place.num_rows;
    if (task.num_rows <= 0) return;
    task.x = x_rows_.data() + place.group * num_rows + place.first_row;
    task.y = y_rows_.data() + static_cast<int64_t>(place.output) * num_rows + place.first_row;
    task.y_column = task.first_output;
    if (next < tiling.num_tasks()) {
      const LinearTiling::Tile following = tiling.At(next);
      task.next = AddressOf(*outputs[following.output].weight, following.first_column);
    }
    kernel(task);
    for (int64_t m = 0; m < task.num_rows; ++m) {
      finish(place.first_row + m, task.y_column, task.num_outputs, task.y[m] + task.y_column);
    }
  });
}

void CpuOperators::SetRows(int64_t num_rows, int32_t num_groups, const std::byte* x,
                           int64_t part_bytes) {
  x_rows_.resize(static_cast<size_t>(num_groups * num_rows));
  for (int64_t g = 0; g < num_groups; ++g) {
    for (int64_t m = 0; m < num_rows; ++m) {
      x_rows_[static_cast<size_t>(g * num_rows + m)] = x + (m * num_groups + g) * part_bytes;
    }
  }
}

template <typename Expand, typename Finish>
void CpuOperators::RunDotLinear(int64_t num_rows, std::span<const LinearOutput> outputs,
                                int32_t num_groups, Expand&& expand, Finish&& finish) {
  const int64_t k = outputs.front().weight->in_features;
  const int64_t num_parts = num_rows * num_groups;
  const int64_t row_bytes = DotRowBytes(k);
  std::byte* rows = expanded_.Get(num_parts * row_bytes);
  RunTasks(num_parts, num_parts * k, [&](int64_t i) { expand(i, rows + i * row_bytes); });
  SetRows(num_rows, num_groups, rows, row_bytes);
  int64_t num_columns = 0;
  for (const LinearOutput& output : outputs) num_columns += output.weight->out_features;
  RunLinear(kernels_.linear.bf16dot, DotOutputs(num_columns), outputs, num_groups, num_rows,
            finish);
}

int64_t CpuOperators::DotRowBytes(int64_t k) const {
  return kDotHeaderBytes + CeilDiv(k, kDotBlock) * kernels_.linear.dot_block_bytes;
}

void CpuOperators::ExpandFp8Row(const uint8_t* codes, const uint8_t* scales, int64_t k,
                                bool for_codes, std::byte* row) const {
  DotRowHeader header;
  header.is_moderate =
      kernels_.linear.expand_fp8(codes, scales, k, for_codes, row + kDotHeaderBytes) && for_codes;
  std::memcpy(row, &header, sizeof header);
}

void CpuOperators::LinearF32(int64_t num_rows, const float* x, const WeightMatrix& w, float* y) {
  GroupedLinearF32(num_rows, x, w, 1, y);
}

void CpuOperators::GroupedLinearF32(int64_t num_rows, const float* x, const WeightMatrix& w,
                                    int32_t num_groups, float* y) {
  SetRows(num_rows, num_groups, reinterpret_cast<const std::byte*>(x), 4 * w.in_features);
  const int width = LinearWidth(num_rows, w.out_features);
  const LinearOutput output{&w, y};
  RunLinear(kernels_.linear.f32fma[width], int64_t{kVectorOutputs} << width, {&output, 1},
            num_groups, num_rows, [](int64_t, int64_t, int64_t, float*) {});
}

void CpuOperators::LinearFp8(int64_t num_rows, const Fp8Rows& x,
                             std::span<const LinearOutput> outputs, Rounding rounding) {
  // A file may store some weights in bf16, which take rows of another form.
  while (!outputs.empty()) {
    size_t count = 1;
    while (count < outputs.size() &&
           ExpandsForCodes(outputs[count]) == ExpandsForCodes(outputs[0])) {
      ++count;
    }
    RunFp8Linear(num_rows, x, outputs.first(count), 1, rounding);
    outputs = outputs.subspan(count);
  }
}

void CpuOperators::GroupedLinearFp8(int64_t num_rows, const Fp8Rows& x, const WeightMatrix& w,
                                    int32_t num_groups, float* y) {
  const LinearOutput output{&w, y};
  RunFp8Linear(num_rows, x, {&output, 1}, num_groups, Rounding::kNone);
}

void CpuOperators::RunFp8Linear(int64_t num_rows, const Fp8Rows& x,
                                std::span<const LinearOutput> outputs, int32_t num_groups,
                                Rounding rounding) {
  const int64_t k = outputs.front().weight->in_features;
  const bool for_codes = ExpandsForCodes(outputs.front());
  const auto expand = [&](int64_t i, std::byte* row) {
    ExpandFp8Row(x.codes + i * k, x.scales + i * (k / 32), k, for_codes, row);
  };
  RunDotLinear(num_rows, outputs, num_groups, expand,
               [&](int64_t, int64_t, int64_t n, float* y) { Round(rounding, n, y); });
}

template <typename Finish>
void CpuOperators::RunBf16Linear(int64_t num_rows, const float* x, const LinearOutput& output,
                                 Finish&& finish) {
  const int64_t k = output.weight->in_features;
  const auto expand = [&](int64_t m, std::byte* row) {
    const DotRowHeader header;  // in the form for bf16 weights, which serves all
    std::memcpy(row, &header, sizeof header);
    kernels_.linear.expand_bf16(x + m * k, k, row + kDotHeaderBytes);
  };
  RunDotLinear(num_rows, {&output, 1}, 1, expand, finish);
}

void CpuOperators::LinearBf16(int64_t num_rows, const float* x, const WeightMatrix& w,
                              Rounding rounding, float* y) {
  RunBf16Linear(num_rows, x, {&w, y},
                [&](int64_t, int64_t, int64_t n, float* part) { Round(rounding, n, part); });
}

void CpuOperators::Head(int64_t num_rows, const float* x, const WeightMatrix& w, float* y,
                        float* maxima) {
  static_assert(kDotOutputUnit % kMaximaBlock == 0, "tasks share no block");
  const int64_t num_maxima = NumMaxima(w.out_features);
  RunBf16Linear(num_rows, x, {&w, y}, [&](int64_t row, int64_t column, int64_t n, float* part) {
    kernels_.row.block_maxima(n, part, maxima + row * num_maxima + column / kMaximaBlock);
  });
}

void CpuOperators::BlockMaxima(int64_t num_rows, const float* x, int64_t cols, float* maxima) {
  const int64_t num_maxima = NumMaxima(cols);
  RunTasks(num_rows, num_rows * cols, [&](int64_t m) {
    kernels_.row.block_maxima(cols, x + m * cols, maxima + m * num_maxima);
  });
}

void CpuOperators::QuantizeFp8(int64_t num_rows, const float* x, int64_t k, Fp8RowsOut out) {
  // Rows are whole groups, so all of them together are one long row.
  const int64_t count = num_rows * k;
  RunTasks(CeilDiv(count, kQuantizeChunk), count, [&](int64_t i) {
    const int64_t begin = i * kQuantizeChunk;
    kernels_.row.quantize_fp8(x + begin, std::min(kQuantizeChunk, count - begin), out.codes + begin,
                              out.scales + begin / 32);
  });
}

}  // namespace deepinfer
