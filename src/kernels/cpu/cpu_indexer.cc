// Index scores and selections of the CPU backend: the split into tasks.

#include <algorithm>
#include <limits>

#include "kernels/cpu/cpu_operators.h"
#include "kernels/cpu/selection.h"

namespace deepinfer {

namespace {

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

constexpr float kNegInf = -std::numeric_limits<float>::infinity();

// Entries for which bringing the query into integers pays.
constexpr int64_t kMinIntegerEntries = 64;
// Scores of one row that are worth another thread.
constexpr int64_t kMinPieceScores = int64_t{1} << 16;

int64_t NumSlots(const IndexRow& row, const IndexShape& shape) {
  return row.candidate_blocks == nullptr
             ? int64_t{row.num_visible}
             : int64_t{*row.num_candidate_blocks} * shape.candidate_block_size;
}

int64_t NumBlocks(const IndexRow& row, const IndexShape& shape) {
  return CeilDiv(row.num_visible, shape.candidate_block_size);
}

}  // namespace

const IndexQuery* CpuOperators::PrepareQueries(int64_t num_rows, const float* q,
                                               const IndexShape& shape) {
  const int64_t d = shape.head_dim, groups = d / 32;
  const int64_t padded =
      CeilDiv(shape.num_heads, kernels_.index.head_lanes) * kernels_.index.head_lanes;
  const int64_t code_bytes = CeilDiv(padded * d, 64) * 64;
  const int64_t group_bytes = CeilDiv(groups * padded * 4, 64) * 64;
  const int64_t row_bytes = code_bytes + 2 * group_bytes;
  std::byte* memory = query_bytes_.Get(num_rows * row_bytes);
  queries_.resize(static_cast<size_t>(num_rows));
  RunTasks(num_rows, num_rows * shape.num_heads * d, [&](int64_t t) {
    IndexQuery& query = queries_[static_cast<size_t>(t)];
    std::byte* row = memory + t * row_bytes;
    query.padded_heads = padded;
    query.codes = reinterpret_cast<int8_t*>(row);
    query.start = reinterpret_cast<int16_t*>(row + code_bytes);
    query.scales = reinterpret_cast<float*>(row + code_bytes + group_bytes);
    kernels_.index.prepare_query(q + t * shape.num_heads * d, shape.num_heads, d, &query);
  });
  return queries_.data();
}

void CpuOperators::ScoreTile(const IndexShape& shape, int64_t begin, IndexTask task) const {
  const IndexRow& row = *task.row;
  const int64_t end = std::min(begin + kTileKeys, NumSlots(row, shape));
  int64_t entries[kTileKeys];
  for (int64_t i = begin; i < end; ++i) {
    int64_t entry = i;
    if (row.candidate_blocks != nullptr) {
      const int64_t size = shape.candidate_block_size;
      entry = row.candidate_blocks[i / size] * size + i % size;
      if (entry >= row.num_visible) continue;
    }
    entries[task.num_entries++] = entry;
  }
  if (task.num_entries == 0) return;
  task.entries = entries;
  kernels_.index.index_scores(task);
}

void CpuOperators::IndexScores(std::span<const IndexRow> rows, const float* q, const float* w,
                               const IndexShape& shape, int64_t stride, float* scores) {
  const int64_t num_rows = static_cast<int64_t>(rows.size());
  if (num_rows == 0) return;
  int64_t most = 0;
  for (const IndexRow& row : rows) most = std::max(most, NumSlots(row, shape));
  const int64_t tiles = std::max<int64_t>(CeilDiv(most, kTileKeys), 1);
  RunTasks(num_rows, num_rows * stride, [&](int64_t t) {
    const IndexRow& row = rows[static_cast<size_t>(t)];
    const int64_t unset = row.candidate_blocks == nullptr ? row.num_visible : 0;
    std::fill(scores + t * stride + unset, scores + (t + 1) * stride, kNegInf);
  });
  const bool try_integers = shape.format == KvFormat::kQuantized && most >= kMinIntegerEntries;
  const IndexQuery* queries = try_integers ? PrepareQueries(num_rows, q, shape) : nullptr;

  const int64_t padded = shape.num_heads + kernels_.index.head_lanes;
  const int64_t floats = TileScratchFloats(static_cast<int32_t>(padded), shape.head_dim);
  float* scratch = slot_floats_.Get(pool_->num_threads() * floats);
  RunTasksInSlots(num_rows * tiles, [&](int64_t index, int64_t slot) {
    const int64_t t = index / tiles;
    IndexTask task;
    task.row = &rows[static_cast<size_t>(t)];
    task.shape = &shape;
    task.query = queries == nullptr ? nullptr : queries + t;
    task.q = q + t * shape.num_heads * shape.head_dim;
    task.w = w + t * shape.num_heads;
    task.scores = scores + t * stride;
    task.scratch = scratch + slot * floats;
    ScoreTile(shape, index % tiles * kTileKeys, task);
  });
}

// A row is split into pieces only where there are more threads than rows; the best of the pieces
// are then merged in the order of the pieces, which is the order of the places.
template <typename Count, typename Source>
void CpuOperators::SelectBest(int64_t num_rows, int32_t k, Count&& count, Source&& source,
                              int32_t* out, int32_t* num_out) {
  int64_t most = 0;
  for (int64_t t = 0; t < num_rows; ++t) most = std::max<int64_t>(most, count(t));
  const int64_t threads = pool_->num_threads();
  const int64_t pieces =
      num_rows >= threads ? 1 : std::clamp<int64_t>(most / kMinPieceScores, 1, threads);
  const int64_t piece_length = CeilDiv(most, pieces);
  const int64_t capacity = BestListCapacity(k);
  // Per thread a list and a chunk of scores, then the best of every piece.
  const int64_t results = num_rows * pieces * k;
  float* values = best_values_.Get(threads * (capacity + kScanChunk) + results);
  int32_t* indices = best_indices_.Get(threads * capacity + results);
  float* piece_values = values + threads * (capacity + kScanChunk);
  int32_t* piece_indices = indices + threads * capacity;
  std::vector<int64_t> piece_counts(static_cast<size_t>(num_rows * pieces));

  const auto select_piece = [&](int64_t index, int64_t slot) {
    const int64_t t = index / pieces;
    const int64_t begin = index % pieces * piece_length;
    const int64_t end = std::min<int64_t>(begin + piece_length, count(t));
    BestList list{values + slot * (capacity + kScanChunk), indices + slot * capacity};
    float* chunk = list.values + capacity;
    for (int64_t i = begin; i < end; i += kScanChunk) {
      const int64_t n = std::min(kScanChunk, end - i);
      if (list.count + n > capacity) KeepBest(k, &list);
      list.count += kernels_.index.scan_above(source(t, i, n, chunk), n, list.threshold,
                                              static_cast<int32_t>(i), list.values + list.count,
                                              list.indices + list.count);
    }
    KeepBest(k, &list);
    std::copy_n(list.values, list.count, piece_values + index * k);
    std::copy_n(list.indices, list.count, piece_indices + index * k);
    piece_counts[static_cast<size_t>(index)] = list.count;
  };
  if (num_rows * most < kMinPieceScores) {
    for (int64_t i = 0; i < num_rows * pieces; ++i) select_piece(i, 0);
  } else {
    RunTasksInSlots(num_rows * pieces, select_piece);
  }
  for (int64_t t = 0; t < num_rows; ++t) {
    BestList list{piece_values + t * pieces * k, piece_indices + t * pieces * k};
    for (int64_t p = 0; p < pieces; ++p) {
      const int64_t from = (t * pieces + p) * k;
      const int64_t n = piece_counts[static_cast<size_t>(t * pieces + p)];
      std::copy_n(piece_values + from, n, list.values + list.count);
      std::copy_n(piece_indices + from, n, list.indices + list.count);
      list.count += n;
    }
    KeepBest(k, &list);
    std::copy_n(list.indices, list.count, out + t * k);
    num_out[t] = static_cast<int32_t>(list.count);
  }
}

void CpuOperators::SelectTopK(std::span<const IndexRow> rows, const float* scores, int64_t stride,
                              const IndexShape& shape, int32_t* indices, int32_t* num_indices) {
  SelectBest(
      static_cast<int64_t>(rows.size()), shape.topk,
      [&](int64_t t) { return rows[static_cast<size_t>(t)].num_visible; },
      [&](int64_t t, int64_t first, int64_t, float*) { return scores + t * stride + first; },
      indices, num_indices);
}

void CpuOperators::SelectCandidates(std::span<const IndexRow> rows, const float* scores,
                                    int64_t stride, const IndexShape& shape, int32_t* blocks,
                                    int32_t* num_blocks) {
  const int64_t size = shape.candidate_block_size;
  const auto maxima = [&](int64_t t, int64_t first, int64_t n, float* chunk) {
    const float* row = scores + t * stride + first * size;
    // The last block is the newest: always kept, and possibly not full.
    const int64_t is_last = first + n == NumBlocks(rows[static_cast<size_t>(t)], shape) ? 1 : 0;
    if (size == 8) {
      kernels_.index.maxima_of_8(row, n - is_last, chunk);
    } else {
      for (int64_t b = 0; b < n - is_last; ++b) {
        float best = kNegInf;
        for (int64_t j = b * size; j < (b + 1) * size; ++j) best = row[j] > best ? row[j] : best;
        chunk[b] = best;
      }
    }
    if (is_last != 0) chunk[n - 1] = std::numeric_limits<float>::infinity();
    return static_cast<const float*>(chunk);
  };
  SelectBest(
      static_cast<int64_t>(rows.size()), shape.candidate_topk_blocks,
      [&](int64_t t) { return NumBlocks(rows[static_cast<size_t>(t)], shape); }, maxima, blocks,
      num_blocks);
}

}  // namespace deepinfer
