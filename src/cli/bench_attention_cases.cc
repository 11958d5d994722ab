// Benchmarks of attention, index scores and selection.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "cli/bench_kernel_cases.h"
#include "cli/bench_kernel_data.h"
#include "kernels/backends.h"

namespace deepinfer {

namespace {

// Entries of the cache that rows read from: a context of 32K at ratio 1.
constexpr int32_t kEntries = 32768;

// A full window and a full selection for every row; rows select different entries.
class AttentionSuite final : public KernelSuite {
 public:
  AttentionSuite(const KernelShapes& shapes, bool with_entries)
      : rows_(shapes.rows), pages_(shapes.config, kEntries), window_(shapes.config.window) {
    const ModelConfig& c = shapes.config;
    num_selected_ = with_entries ? std::min(c.index_topk, kEntries) : 0;
    q_ = BenchValues(rows_.back() * c.num_heads * c.head_dim);
    sink_ = BenchValues(c.num_heads);
    o_.resize(q_.size());
    shape_.weights = shapes.arithmetic.attention_weights;
    shape_.num_heads = c.num_heads;
    shape_.head_dim = c.head_dim;
    shape_.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
    row_bytes_ = WindowRowBytes(shape_.format, c.head_dim);
    ring_.resize(static_cast<size_t>(window_ * row_bytes_));
    MakeReferenceOperators()->StoreWindowRows(window_, BenchValues(window_ * c.head_dim).data(),
                                              c.head_dim, shape_.format, ring_.data());
    std::mt19937 random(4);
    for (int64_t row = 0; row < rows_.back(); ++row) AddRow(&random);
  }

  std::vector<KernelCase> Cases() override {
    std::vector<KernelCase> cases;
    const double row_flops = 4.0 * shape_.num_heads * shape_.head_dim;
    for (const int64_t rows : rows_) {
      KernelCase c;
      c.name = fmt::format("attention window {} entries {} rows {}", window_, num_selected_, rows);
      c.bytes = static_cast<double>(
          rows * (window_ * row_bytes_ + num_selected_ * pages_.view().main_row_bytes));
      c.peak = shape_.is_bf16dot() ? PeakKind::kBf16 : PeakKind::kFp32;
      c.flops = row_flops * static_cast<double>(rows * (window_ + num_selected_));
      c.run = [this, rows](Operators* ops) {
        ops->Attention({batch_.data(), static_cast<size_t>(rows)}, q_.data(), sink_.data(), shape_,
                       o_.data());
      };
      cases.push_back(std::move(c));
    }
    return cases;
  }

 private:
  void AddRow(std::mt19937* random) {
    // Every k-th entry with a random shift: ascending and distinct.
    const int32_t step = num_selected_ == 0 ? 1 : kEntries / num_selected_;
    auto& selected = selected_.emplace_back();
    for (int32_t i = 0; i < num_selected_; ++i) {
      const auto shift = static_cast<int32_t>((*random)() % static_cast<uint32_t>(step));
      selected.push_back(i * step + shift);
    }
    AttentionRow row;
    row.window = {ring_.data(), nullptr, window_, 1 << 30, row_bytes_};
    row.position = kEntries - 1;
    row.window_lo = row.position - window_ + 1;
    if (num_selected_ > 0) {
      row.pages = pages_.view();
      row.selected = selected.data();
    }
    row.num_selected = &num_selected_;
    batch_.push_back(row);
  }

  std::vector<int64_t> rows_;
  BenchPages pages_;
  AttentionShape shape_;
  int32_t window_;
  int32_t num_selected_ = 0;
  int64_t row_bytes_ = 0;
  std::vector<std::byte> ring_;
  std::vector<std::vector<int32_t>> selected_;
  std::vector<AttentionRow> batch_;
  std::vector<float> q_, sink_, o_;
};

// Scores of all entries of a context, and the selection among them.
class IndexSuite final : public KernelSuite {
 public:
  explicit IndexSuite(const KernelShapes& shapes)
      : rows_(shapes.rows), pages_(shapes.config, kEntries) {
    const ModelConfig& c = shapes.config;
    shape_.num_heads = c.index_num_heads;
    shape_.head_dim = c.index_head_dim;
    shape_.candidate_block_size = c.candidate_block_size;
    shape_.topk = c.index_topk;
    shape_.candidate_topk_blocks = c.candidate_topk_blocks;
    // Scores of more rows than this would not fit into memory at the longest context.
    std::erase_if(rows_, [](int64_t n) { return n > kMaxRows; });
    if (rows_.empty()) rows_ = {kMaxRows};
    const int64_t most = rows_.back();
    q_ = BenchValues(most * shape_.num_heads * shape_.head_dim);
    MakeReferenceOperators()->QdqFp4Group32(most * shape_.num_heads, q_.data(), shape_.head_dim);
    w_ = BenchValues(most * shape_.num_heads);
    scores_ = BenchValues(most * kEntries);
    selected_.resize(
        static_cast<size_t>(most * std::max(shape_.topk, shape_.candidate_topk_blocks)));
    counts_.resize(static_cast<size_t>(most));
  }

  std::vector<KernelCase> Cases() override {
    std::vector<KernelCase> cases;
    for (const int32_t entries : {512, 4096, kEntries}) {
      IndexRow row;
      row.pages = pages_.view();
      row.num_visible = entries;
      const std::vector<IndexRow> batch(static_cast<size_t>(rows_.back()), row);
      for (const int64_t rows : rows_) AddCases(batch, entries, rows, &cases);
    }
    return cases;
  }

 private:
  static constexpr int64_t kMaxRows = 16;

  void AddCases(const std::vector<IndexRow>& batch, int32_t entries, int64_t rows,
                std::vector<KernelCase>* cases) {
    const auto add = [&](const char* name, double bytes, double flops, auto call) {
      KernelCase c;
      c.name = fmt::format("{} entries {} rows {}", name, entries, rows);
      c.bytes = bytes * static_cast<double>(rows * entries);
      c.flops = flops * static_cast<double>(rows * entries);
      c.run = [batch, rows, call](Operators* ops) {
        call(ops, std::span<const IndexRow>(batch.data(), static_cast<size_t>(rows)));
      };
      cases->push_back(std::move(c));
    };
    const double key_bytes =
        static_cast<double>(pages_.view().index_code_bytes + pages_.view().index_scale_bytes);
    add("index_scores", key_bytes, 2.0 * shape_.num_heads * (shape_.head_dim + 1),
        [this](Operators* ops, std::span<const IndexRow> r) {
          ops->IndexScores(r, q_.data(), w_.data(), shape_, kEntries, scores_.data());
        });
    add("select_candidates", sizeof(float), 0, [this](Operators* ops, std::span<const IndexRow> r) {
      ops->SelectCandidates(r, scores_.data(), kEntries, shape_, selected_.data(), counts_.data());
    });
    add("select_top_k", sizeof(float), 0, [this](Operators* ops, std::span<const IndexRow> r) {
      ops->SelectTopK(r, scores_.data(), kEntries, shape_, selected_.data(), counts_.data());
    });
  }

  std::vector<int64_t> rows_;
  BenchPages pages_;
  IndexShape shape_;
  std::vector<float> q_, w_, scores_;
  std::vector<int32_t> selected_, counts_;
};

}  // namespace

std::vector<KernelSuiteMaker> AttentionSuites(const KernelShapes& shapes) {
  return {{"window", [=] { return std::make_unique<AttentionSuite>(shapes, false); }},
          {"attention", [=] { return std::make_unique<AttentionSuite>(shapes, true); }},
          {"index", [=] { return std::make_unique<IndexSuite>(shapes); }}};
}

}  // namespace deepinfer
