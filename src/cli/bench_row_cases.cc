// Benchmarks of the operators on single rows: embedding, norms, hyper-connections, rotation,
// quantisers, router, Engram, checks.

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "cli/bench_kernel_cases.h"
#include "cli/bench_kernel_data.h"
#include "model/rope.h"

namespace deepinfer {

namespace {

// Memory for every operator on rows of one model: inputs, outputs and small tables.
class RowSuite final : public KernelSuite {
 public:
  explicit RowSuite(const KernelShapes& shapes)
      : c_(shapes.config),
        rounding_(shapes.arithmetic.stream),
        rows_(shapes.rows),
        rope_(shapes.config, kPositions),
        hc_{c_.hc_mult, c_.dim, c_.hc_sinkhorn_iters, c_.hc_eps, c_.rms_eps} {
    const int64_t most = rows_.back();
    const int64_t copies = c_.hc_mult, mixes = (2 + copies) * copies;
    const int64_t width =
        std::max({(copies + 1) * c_.dim, int64_t{c_.num_heads} * c_.head_dim,
                  int64_t{c_.num_experts}, int64_t{c_.index_num_heads} * c_.index_head_dim,
                  int64_t{c_.engram.num_columns()} * c_.engram.head_dim});
    x_ = BenchValues(most * width);
    y_.resize(x_.size());
    h_ = BenchValues(most * copies * c_.dim);
    h_out_.resize(h_.size());
    small_ = BenchValues(most * mixes);
    pre_.resize(small_.size());
    post_.resize(small_.size());
    comb_.resize(small_.size());
    norm_.assign(static_cast<size_t>(copies * c_.dim), 0x3F80);  // 1 in bf16
    fn_ = BenchValues(mixes * copies * c_.dim);
    base_ = BenchValues(mixes);
    codes_.resize(x_.size());
    scales_.resize(x_.size());
    choices_.resize(static_cast<size_t>(most * std::max(1, c_.experts_per_token)));
    bias_ = BenchValues(c_.num_experts);
    flags_.assign(static_cast<size_t>(most), 0);
    std::mt19937_64 random(5);
    FillTables(&random, most);
  }

  std::vector<KernelCase> Cases() override {
    cases_.clear();
    for (const int64_t rows : rows_) {
      AddStream(rows);
      AddHyperConnections(rows);
      AddAttentionRows(rows);
      AddRouting(rows);
      AddEngram(rows);
    }
    return std::move(cases_);
  }

 private:
  static constexpr int32_t kPositions = 4096;
  // Rows of tables: far more than the caches hold, far fewer than a model has.
  static constexpr int64_t kEmbeddingRows = 4096;
  static constexpr int64_t kEngramRows = int64_t{1} << 19;

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

  void FillTables(std::mt19937_64* random, int64_t most) {
    const int64_t vocab = std::min<int64_t>(kEmbeddingRows, c_.vocab_size);
    embedding_ = MakeBenchWeight(WeightFormat::kBf16, vocab, c_.dim, &arena_);
    for (int64_t t = 0; t < most; ++t) {
      positions_.push_back(static_cast<int32_t>(t % kPositions));
      ids_.push_back(static_cast<int32_t>((*random)() % static_cast<uint64_t>(vocab)));
    }
    if (c_.engram.layer_ids.empty()) return;
    engram_table_ =
        MakeBenchWeight(WeightFormat::kFp8Group32, kEngramRows, c_.engram.head_dim, &arena_);
    for (int64_t i = 0; i < most * c_.engram.num_columns(); ++i) {
      engram_ids_.push_back(static_cast<int64_t>((*random)() % kEngramRows));
    }
  }

  void AddStream(int64_t rows) {
    const int64_t n = c_.hc_mult, dim = c_.dim;
    Add("embed", rows, 6 * dim, 0, [=, this](Operators* ops) {
      ops->Embed(rows, ids_.data(), static_cast<const uint16_t*>(embedding_.matrix.data), dim,
                 y_.data());
    });
    Add("replicate", rows, 4 * (n + 1) * dim, 0, [=, this](Operators* ops) {
      ops->Replicate(rows, x_.data(), c_.hc_mult, dim, h_out_.data());
    });
    Add("rms_norm", rows, 8 * dim, 4 * dim, [=, this](Operators* ops) {
      ops->RmsNorm(rows, x_.data(), norm_.data(), dim, c_.rms_eps, rounding_, y_.data());
    });
    Add("all_finite", rows, 4 * dim, dim,
        [=, this](Operators* ops) { is_finite_ = ops->AllFinite(rows * dim, x_.data()); });
    Add("block_maxima", rows, 4 * dim, dim,
        [=, this](Operators* ops) { ops->BlockMaxima(rows, x_.data(), dim, y_.data()); });
    Add("scores_finite", rows, 4 * dim, dim,
        [=, this](Operators* ops) { is_finite_ = ops->ScoresFinite(rows * dim, x_.data()); });
  }

  void AddHyperConnections(int64_t rows) {
    const int64_t n = c_.hc_mult, dim = c_.dim, mixes = (2 + n) * n;
    const HcSite site{fn_.data(), base_.data(), base_.data()};
    Add("hc_mixes", rows, 4 * n * dim, 2 * (mixes + 1) * n * dim, [=, this](Operators* ops) {
      ops->HcMixes(rows, h_.data(), site, hc_, pre_.data(), post_.data(), comb_.data());
    });
    // The weights of the site are read once a call, whatever the rows.
    cases_.back().bytes += static_cast<double>(4 * mixes * n * dim);
    Add("hc_pre", rows, 4 * (n + 1) * dim, 2 * n * dim, [=, this](Operators* ops) {
      ops->HcPre(rows, h_.data(), small_.data(), hc_, rounding_, y_.data());
    });
    Add("hc_post", rows, 4 * (2 * n + 1) * dim, 2 * n * (n + 1) * dim, [=, this](Operators* ops) {
      ops->HcPost(rows, x_.data(), h_.data(), small_.data(), small_.data(), hc_, rounding_,
                  h_out_.data());
    });
    Add("hc_mean", rows, 4 * (n + 1) * dim, n * dim, [=, this](Operators* ops) {
      ops->HcMean(rows, h_.data(), hc_, rounding_, y_.data(), dim);
    });
  }

  void AddAttentionRows(int64_t rows) {
    const int64_t q_width = int64_t{c_.num_heads} * c_.head_dim;
    const int64_t rotated = int64_t{c_.num_heads} * c_.rope_dim;
    const int64_t index_width = int64_t{c_.index_num_heads} * c_.index_head_dim;
    Add("quantize_fp8", rows, 5 * c_.dim, 2 * c_.dim, [=, this](Operators* ops) {
      ops->QuantizeFp8(rows, x_.data(), c_.dim, {codes_.data(), scales_.data()});
    });
    Add("rope", rows, 8 * rotated, 3 * rotated, [=, this](Operators* ops) {
      ops->Rope(rows, x_.data(), c_.num_heads, c_.head_dim, positions_.data(), rope_.plain(), false,
                rounding_);
    });
    Add("scale", rows, 8 * q_width, q_width,
        [=, this](Operators* ops) { ops->Scale(rows * q_width, 1.0f, x_.data()); });
    Add("qdq_fp4_group32", rows, 8 * index_width, 2 * index_width, [=, this](Operators* ops) {
      ops->QdqFp4Group32(rows * c_.index_num_heads, x_.data(), c_.index_head_dim);
    });
  }

  void AddRouting(int64_t rows) {
    Add("route", rows, 4 * c_.num_experts, 8 * c_.num_experts, [=, this](Operators* ops) {
      ops->Route(rows, x_.data(), bias_.data(), bias_.data(), flags_.data(), c_.num_experts,
                 c_.experts_per_token, c_.gate_temp, c_.route_scale, choices_.data(), y_.data());
    });
  }

  void AddEngram(int64_t rows) {
    if (engram_ids_.empty()) return;
    const int32_t columns = c_.engram.num_columns();
    const int64_t n = c_.hc_mult, dim = c_.dim;
    const int64_t elements = int64_t{columns} * c_.engram.head_dim;
    Add("engram_gather", rows, 5 * elements, 0, [=, this](Operators* ops) {
      ops->EngramGather(rows, engram_ids_.data(), columns, engram_table_.matrix, y_.data());
    });
    Add("engram_gather_fp8", rows, 2 * elements, 0, [=, this](Operators* ops) {
      ops->EngramGatherFp8(rows, engram_ids_.data(), columns, engram_table_.matrix,
                           {codes_.data(), scales_.data()});
    });
    Add("engram_gate", rows, 4 * (3 * n + 1) * dim, 8 * n * dim, [=, this](Operators* ops) {
      ops->EngramGate(rows, h_out_.data(), x_.data(), norm_.data(), norm_.data(), flags_.data(),
                      hc_, rounding_);
    });
  }

  ModelConfig c_;
  Rounding rounding_;
  std::vector<int64_t> rows_;
  RopeTables rope_;
  HcShape hc_;
  std::vector<float> x_, y_, h_, h_out_, small_, pre_, post_, comb_, fn_, base_, bias_;
  std::vector<uint16_t> norm_;
  std::vector<uint8_t> codes_, scales_, flags_;
  std::vector<int32_t> ids_, choices_, positions_;
  std::vector<int64_t> engram_ids_;
  BenchArena arena_;
  BenchWeight embedding_, engram_table_;
  bool is_finite_ = false;
  std::vector<KernelCase> cases_;
};

}  // namespace

std::vector<KernelSuiteMaker> RowSuites(const KernelShapes& shapes) {
  return {{"rows", [=] { return std::make_unique<RowSuite>(shapes); }}};
}

}  // namespace deepinfer
