// Benchmarks of the linears and of the mixture of experts.

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "cli/bench_kernel_cases.h"
#include "cli/bench_kernel_data.h"

namespace deepinfer {

namespace {

enum class Operand : uint8_t { kFp8Rows, kBf16Rows, kF32Rows, kHead };

struct LinearShape {
  std::string name;
  WeightFormat format = WeightFormat::kFp8Block32;
  Operand operand = Operand::kFp8Rows;
  int64_t out = 0;
  int64_t in = 0;
  int32_t num_groups = 1;
};

std::string_view FormatName(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return "f32";
    case WeightFormat::kBf16:
      return "bf16";
    case WeightFormat::kFp8Block32:
    case WeightFormat::kFp8Group32:
      return "fp8";
    case WeightFormat::kFp4Group32:
      return "fp4";
  }
  return "";
}

std::string_view OperatorName(const LinearShape& shape) {
  const bool grouped = shape.num_groups > 1;
  switch (shape.operand) {
    case Operand::kFp8Rows:
      return grouped ? "grouped_linear_fp8" : "linear_fp8";
    case Operand::kBf16Rows:
      return "linear_bf16";
    case Operand::kHead:
      return "head";
    case Operand::kF32Rows:
      return grouped ? "grouped_linear_f32" : "linear_f32";
  }
  return "";
}

class LinearSuite final : public KernelSuite {
 public:
  LinearSuite(LinearShape shape, const KernelShapes& shapes)
      : shape_(std::move(shape)),
        rows_(shapes.rows),
        rounding_(shapes.arithmetic.stream),
        weights_(shape_.format, shape_.out, shape_.in),
        x_(rows_.back(), shape_.in * shape_.num_groups),
        y_(static_cast<size_t>(rows_.back() * shape_.out)),
        maxima_(static_cast<size_t>(rows_.back() * NumMaxima(shape_.out))) {}

  std::vector<KernelCase> Cases() override {
    std::vector<KernelCase> cases;
    for (const int64_t rows : rows_) {
      KernelCase c;
      c.name = fmt::format("{} {} {} {}x{} rows {}", OperatorName(shape_), shape_.name,
                           FormatName(shape_.format), shape_.out, shape_.in, rows);
      c.bytes = weights_.size_bytes();
      c.flops = 2.0 * static_cast<double>(rows * shape_.out * shape_.in);
      c.peak = shape_.operand == Operand::kF32Rows ? PeakKind::kFp32 : PeakKind::kBf16;
      c.run = [this, rows](Operators* ops) { Run(ops, rows); };
      cases.push_back(std::move(c));
    }
    return cases;
  }

 private:
  void Run(Operators* ops, int64_t rows) {
    const WeightMatrix& w = weights_.Next();
    const bool grouped = shape_.num_groups > 1;
    switch (shape_.operand) {
      case Operand::kFp8Rows:
        if (grouped) {
          ops->GroupedLinearFp8(rows, x_.fp8(), w, shape_.num_groups, y_.data());
        } else {
          ops->LinearFp8(rows, x_.fp8(), w, rounding_, y_.data());
        }
        break;
      case Operand::kBf16Rows:
        ops->LinearBf16(rows, x_.values.data(), w, rounding_, y_.data());
        break;
      case Operand::kHead:
        ops->Head(rows, x_.values.data(), w, y_.data(), maxima_.data());
        break;
      case Operand::kF32Rows:
        if (grouped) {
          ops->GroupedLinearF32(rows, x_.values.data(), w, shape_.num_groups, y_.data());
        } else {
          ops->LinearF32(rows, x_.values.data(), w, y_.data());
        }
        break;
    }
  }

  LinearShape shape_;
  std::vector<int64_t> rows_;
  Rounding rounding_;
  WeightRotation weights_;
  BenchActivations x_;
  std::vector<float> y_, maxima_;
};

// Experts with random choices; every call takes the next set of choices, so that few rows do not
// meet the same experts again.
class MoeSuite final : public KernelSuite {
 public:
  explicit MoeSuite(const KernelShapes& shapes)
      : rows_(shapes.rows), quantised_(shapes.arithmetic.fp8_activations) {
    const ModelConfig& config = shapes.config;
    shape_.rounding = shapes.arithmetic.stream;
    shape_.dim = config.dim;
    shape_.inter = config.moe_inter_dim;
    shape_.topk = config.experts_per_token;
    shape_.swiglu_limit = config.swiglu_limit;
    shared_ = MakeExpert(WeightFormat::kFp8Block32);
    experts_.push_back(MakeExpert(WeightFormat::kFp4Group32));
    // More experts than memory holds would change nothing but the load time.
    const auto fitting = static_cast<int32_t>(kExpertBytes / experts_.front().size_bytes());
    shape_.num_experts = std::min(config.num_experts, std::max(fitting, 2 * shape_.topk));
    while (experts_.size() < static_cast<size_t>(shape_.num_experts)) {
      experts_.push_back(MakeExpert(WeightFormat::kFp4Group32));
    }
    for (const Expert& e : experts_) weights_.push_back(e.weights());
    x_ = std::make_unique<BenchActivations>(rows_.back(), shape_.dim);
    y_.resize(static_cast<size_t>(rows_.back() * shape_.dim));
    topk_weights_.assign(static_cast<size_t>(rows_.back() * shape_.topk), 0.25f);
    std::mt19937 random(3);
    for (auto& choice : choices_) choice = RandomChoice(&random);
  }

  std::vector<KernelCase> Cases() override {
    std::vector<KernelCase> cases;
    for (const int64_t rows : rows_) {
      KernelCase c;
      c.name = fmt::format("moe_ffn fp4 {}x{} top {} of {} rows {}", shape_.inter, shape_.dim,
                           shape_.topk, shape_.num_experts, rows);
      c.bytes = shared_.size_bytes() + MeanDistinct(rows) * experts_.front().size_bytes();
      c.flops = 6.0 * static_cast<double>(rows * (shape_.topk + 1) * shape_.dim * shape_.inter);
      c.peak = quantised_ ? PeakKind::kBf16 : PeakKind::kFp32;
      c.run = [this, rows](Operators* ops) {
        const std::vector<int32_t>& choice = choices_[++call_ % kNumChoices];
        ops->MoeFfn(rows, x_->values.data(), quantised_ ? x_->fp8() : Fp8Rows{}, weights_,
                    shared_.weights(), choice.data(), topk_weights_.data(), shape_, y_.data());
      };
      cases.push_back(std::move(c));
    }
    return cases;
  }

 private:
  static constexpr double kExpertBytes = 1e9;
  static constexpr size_t kNumChoices = 16;

  struct Expert {
    BenchWeight gate, up, down;

    ExpertWeights weights() const { return {gate.matrix, up.matrix, down.matrix}; }
    double size_bytes() const { return gate.size_bytes() + up.size_bytes() + down.size_bytes(); }
  };

  Expert MakeExpert(WeightFormat format) {
    return {MakeBenchWeight(format, shape_.inter, shape_.dim, &arena_),
            MakeBenchWeight(format, shape_.inter, shape_.dim, &arena_),
            MakeBenchWeight(format, shape_.dim, shape_.inter, &arena_)};
  }

  // topk distinct experts for every row.
  std::vector<int32_t> RandomChoice(std::mt19937* random) const {
    std::vector<int32_t> choice;
    std::vector<int32_t> all(static_cast<size_t>(shape_.num_experts));
    for (size_t e = 0; e < all.size(); ++e) all[e] = static_cast<int32_t>(e);
    for (int64_t row = 0; row < rows_.back(); ++row) {
      for (size_t k = 0; k < static_cast<size_t>(shape_.topk); ++k) {
        std::swap(all[k], all[k + (*random)() % (all.size() - k)]);
        choice.push_back(all[k]);
      }
    }
    return choice;
  }

  double MeanDistinct(int64_t rows) const {
    size_t total = 0;
    for (const auto& choice : choices_) {
      std::vector<int32_t> used(choice.begin(), choice.begin() + rows * shape_.topk);
      std::sort(used.begin(), used.end());
      total += static_cast<size_t>(std::unique(used.begin(), used.end()) - used.begin());
    }
    return static_cast<double>(total) / kNumChoices;
  }

  MoeShape shape_;
  std::vector<int64_t> rows_;
  bool quantised_;
  BenchArena arena_;
  Expert shared_;
  std::vector<Expert> experts_;
  std::vector<ExpertWeights> weights_;
  std::unique_ptr<BenchActivations> x_;
  std::vector<float> y_;
  std::vector<float> topk_weights_;
  std::vector<int32_t> choices_[kNumChoices];
  size_t call_ = 0;
};

std::vector<LinearShape> ShapesOf(const ModelConfig& c, const Arithmetic& arithmetic) {
  constexpr auto kFp8 = WeightFormat::kFp8Block32;
  constexpr auto kBf16 = WeightFormat::kBf16;
  const Operand fp8_operand = arithmetic.fp8_activations ? Operand::kFp8Rows : Operand::kF32Rows;
  const Operand wo_a_operand = arithmetic.wo_a_fp8 ? Operand::kFp8Rows : Operand::kF32Rows;
  const Operand bf16_operand =
      arithmetic.stream == Rounding::kBf16 ? Operand::kBf16Rows : Operand::kF32Rows;
  const int64_t q_width = int64_t{c.num_heads} * c.head_dim;
  const int64_t o_width = c.o_groups * c.o_lora_rank;
  std::vector<LinearShape> shapes = {
      {"wq_a", kFp8, fp8_operand, c.q_lora_rank, c.dim},
      {"wq_b", kFp8, fp8_operand, q_width, c.q_lora_rank},
      {"wkv", kFp8, fp8_operand, c.head_dim, c.dim},
      {"wo_a", kFp8, wo_a_operand, o_width, q_width / c.o_groups, c.o_groups},
      {"wo_b", kFp8, fp8_operand, c.dim, o_width},
      {"router", kBf16, bf16_operand, c.num_experts, c.dim},
      {"compressor", kBf16, bf16_operand, c.head_dim, c.dim},
      {"index_wk", kBf16, bf16_operand, c.index_head_dim, c.head_dim},
      {"index_wq_b", kFp8, fp8_operand, int64_t{c.index_num_heads} * c.index_head_dim,
       c.q_lora_rank},
      {"index_weights", kBf16, bf16_operand, c.index_num_heads, c.dim},
      {"head", kBf16, arithmetic.stream == Rounding::kBf16 ? Operand::kHead : Operand::kF32Rows,
       c.vocab_size, c.dim}};
  // The other family on the same shapes, for whatever the mode leaves to it.
  shapes.push_back({"f32_wq_b", kFp8, Operand::kF32Rows, q_width, c.q_lora_rank});
  shapes.push_back(
      {"f32_wo_a", kFp8, Operand::kF32Rows, o_width, q_width / c.o_groups, c.o_groups});
  if (!c.engram.layer_ids.empty()) {
    shapes.push_back({"engram_wkv", kFp8, fp8_operand, (c.hc_mult + 1) * c.dim,
                      int64_t{c.engram.num_columns()} * c.engram.head_dim});
  }
  return shapes;
}

}  // namespace

std::vector<KernelSuiteMaker> LinearSuites(const KernelShapes& shapes) {
  std::vector<KernelSuiteMaker> suites;
  for (const LinearShape& shape : ShapesOf(shapes.config, shapes.arithmetic)) {
    suites.push_back(
        {shape.name, [shape, shapes] { return std::make_unique<LinearSuite>(shape, shapes); }});
  }
  suites.push_back({"moe", [shapes] { return std::make_unique<MoeSuite>(shapes); }});
  return suites;
}

}  // namespace deepinfer
