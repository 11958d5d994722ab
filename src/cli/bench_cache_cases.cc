// Benchmarks of the operators that write the caches.

#include <fmt/format.h>

#include <algorithm>

#include "cli/bench_kernel_cases.h"
#include "cli/bench_kernel_data.h"

namespace deepinfer {

namespace {

constexpr KvFormat kFormat = KvFormat::kQuantized;

class CacheSuite final : public KernelSuite {
 public:
  explicit CacheSuite(const KernelShapes& shapes)
      : rows_(shapes.rows),
        rounding_(shapes.arithmetic.stream),
        by_reciprocal_(shapes.arithmetic.fp4_by_reciprocal),
        head_dim_(shapes.config.head_dim),
        index_dim_(shapes.config.index_head_dim),
        ring_rows_(shapes.config.window),
        row_bytes_(WindowRowBytes(kFormat, head_dim_)),
        pages_(shapes.config, static_cast<int32_t>(std::max<int64_t>(rows_.back(), ring_rows_))),
        x_(BenchValues(rows_.back() * std::max(head_dim_, index_dim_))),
        latent_(x_.size()),
        window_(static_cast<size_t>(rows_.back() * row_bytes_)),
        ring_(static_cast<size_t>(ring_rows_ * row_bytes_)) {}

  std::vector<KernelCase> Cases() override {
    cases_.clear();
    for (const int64_t rows : rows_) {
      AddWindow(rows);
      AddEntries(rows);
    }
    return std::move(cases_);
  }

 private:
  // bytes and flops of one row.
  void Add(const std::string& name, int64_t rows, int64_t bytes, int64_t flops,
           std::function<void(Operators*)> run) {
    KernelCase c;
    c.name = fmt::format("{} rows {}", name, rows);
    c.bytes = static_cast<double>(rows * bytes);
    c.flops = static_cast<double>(rows * flops);
    c.run = std::move(run);
    cases_.push_back(std::move(c));
  }

  void AddWindow(int64_t rows) {
    Add("store_window_rows", rows, 4 * head_dim_ + row_bytes_, 2 * head_dim_,
        [=, this](Operators* ops) {
          ops->StoreWindowRows(rows, x_.data(), head_dim_, kFormat, window_.data());
        });
    // A ring keeps the last rows only.
    const int64_t kept = std::min<int64_t>(rows, ring_rows_);
    Add("write_ring", rows, 2 * row_bytes_ * kept / rows, 0, [=, this](Operators* ops) {
      ops->WriteRing(kept, window_.data(), row_bytes_, 0, ring_rows_, ring_.data());
    });
  }

  void AddEntries(int64_t rows) {
    const KvPages& pages = pages_.view();
    Add("compress_pair", rows, 20 * head_dim_, 8 * head_dim_, [=, this](Operators* ops) {
      ops->CompressPair(rows, x_.data(), x_.data(), x_.data(), x_.data(), head_dim_, head_dim_,
                        rounding_, latent_.data());
    });
    Add("store_compressed", rows, 4 * head_dim_ + pages.main_row_bytes, 2 * head_dim_,
        [=, this](Operators* ops) {
          ops->StoreCompressed(rows, x_.data(), head_dim_, kFormat, by_reciprocal_, 0,
                               pages_.view());
        });
    Add("store_index_keys", rows, 4 * index_dim_ + pages.index_code_bytes, 2 * index_dim_,
        [=, this](Operators* ops) {
          ops->StoreIndexKeys(rows, x_.data(), index_dim_, kFormat, 0, pages_.view());
        });
  }

  std::vector<int64_t> rows_;
  Rounding rounding_;
  bool by_reciprocal_;
  int64_t head_dim_, index_dim_;
  int32_t ring_rows_;
  int64_t row_bytes_;
  BenchPages pages_;
  std::vector<float> x_, latent_;
  std::vector<std::byte> window_, ring_;
  std::vector<KernelCase> cases_;
};

}  // namespace

std::vector<KernelSuiteMaker> CacheSuites(const KernelShapes& shapes) {
  return {{"cache", [=] { return std::make_unique<CacheSuite>(shapes); }}};
}

}  // namespace deepinfer
