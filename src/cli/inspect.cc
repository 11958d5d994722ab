// deepinfer inspect: what is in a model folder, and whether it is whole.

#include <fmt/core.h>

#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "cli/io.h"
#include "cli/model_flags.h"
#include "model/model_stats.h"
#include "text/special_tokens.h"

namespace deepinfer {
namespace {

std::string Join(const std::vector<int32_t>& values) {
  std::string out;
  for (int32_t v : values) out += (out.empty() ? "" : " ") + std::to_string(v);
  return out.empty() ? "none" : out;
}

// 1234567 -> "1,234,567".
std::string Grouped(int64_t n) {
  std::string digits = std::to_string(n);
  for (int i = static_cast<int>(digits.size()) - 3; i > 0; i -= 3) {
    digits.insert(static_cast<size_t>(i), ",");
  }
  return digits;
}

class InspectCommand final : public Command {
 public:
  CLI::App* Register(CLI::App* app) override {
    CLI::App* sub =
        app->add_subcommand("inspect", "Validate a model folder and show sizes and costs");
    flags_.Register(sub, true, kServingNumerics);
    sub->add_flag("--json", json_, "One JSON line instead of text");
    sub->footer("Example:\n  deepinfer inspect models/deepinfer-tiny --verify-weights");
    return sub;
  }

  int Run(const FlagOrigins&) override {
    const Status status = Inspect();
    return status.ok() ? kExitOk : ReportFailure(status);
  }

 private:
  Status Inspect() {
    DI_ASSIGN_OR_RETURN(const std::filesystem::path dir, flags_.ModelDir());
    DI_ASSIGN_OR_RETURN(BundleOptions options, flags_.Bundle());
    options.num_threads = 1;
    // Position tables do not matter here.
    options.model.max_positions = 2;
    DI_ASSIGN_OR_RETURN(const ModelBundle bundle, ModelBundle::Load(dir, options, nullptr));
    return json_ ? PrintJson(bundle) : PrintText(dir, bundle);
  }

  Status PrintText(const std::filesystem::path& dir, const ModelBundle& bundle) const {
    const Model& model = *bundle.model;
    const ModelConfig& c = model.config();
    fmt::print("model      {}\n", FolderName(dir));
    fmt::print("valid      yes: {} tensors in {} shards{}\n", model.checkpoint().num_tensors(),
               model.checkpoint().num_shards(), flags_.verify_weights ? ", all codes read" : "");
    const Result<SpecialTokens> special = SpecialTokens::Resolve(*bundle.tokenizer);
    fmt::print("tokenizer  {} ids of {}{}\n", bundle.tokenizer->vocab_size(), c.vocab_size,
               special.ok() ? "" : "; no chat: " + special.status().message());
    fmt::print("shape      {} layers (encoder 0-{}, decoder {}-{}), dim {}, {} heads x {}\n",
               c.num_layers, c.decoder_start() - 1, c.decoder_start(), c.num_layers - 1, c.dim,
               c.num_heads, c.head_dim);
    fmt::print("experts    {} top {} + 1 shared, inter {}\n", c.num_experts, c.experts_per_token,
               c.moe_inter_dim);
    fmt::print("attention  window {}, KV sources {}, index sources {}, top {} of {} candidates\n",
               c.window, Join(c.kv_source_layers), Join(c.index_source_layers), c.index_topk,
               c.candidate_topk_blocks * c.candidate_block_size);
    fmt::print("engram     layers {}\n", Join(c.engram.layer_ids));
    fmt::print("draft      {} layers, block {}\n", c.dspark.num_layers, c.dspark.block_size);
    fmt::print("vision     {}\n", c.has_vision ? "in the checkpoint" : "none");
    fmt::print("context    {} positions at most\n", Grouped(c.max_positions));
    for (const std::string& key : c.unknown_keys) fmt::print("unread     config key {}\n", key);
    fmt::print("\n{:<20} {:>9} {:>18} {:>18}\n", "part", "tensors", "parameters", "bytes");
    for (const PartStats& p : CountParts(model.checkpoint())) {
      fmt::print("{:<20} {:>9} {:>18} {:>18}\n", p.name, p.num_tensors, Grouped(p.parameters),
                 Grouped(p.bytes));
    }
    const KvLayout& k = model.layout();
    fmt::print("\nKV cache   {} bytes per token ({} per {}-token block)\n",
               static_cast<double>(k.block_bytes) / kBlockTokens, Grouped(k.block_bytes),
               kBlockTokens);
    fmt::print("state      {} bytes per running request\n", Grouped(k.slot_bytes));
    fmt::print("weights    {} bytes read per decoded token, batch 1\n",
               Grouped(static_cast<int64_t>(WeightBytesPerDecodedToken(c, model.checkpoint()))));
    for (int64_t n : {int64_t{1024}, int64_t{4096}, int64_t{65536}, int64_t{1048576}}) {
      if (n > c.max_positions) continue;
      const RowFlops f = FlopsPerRow(c, n);
      fmt::print("FLOPs      {:.4g} per decoded token, {:.4g} per prompt token at context {}\n",
                 f.decode(), f.encoder, n);
    }
    return OkStatus();
  }

  static Status PrintJson(const ModelBundle& bundle) {
    const Model& model = *bundle.model;
    const ModelConfig& c = model.config();
    std::string parts;
    for (const PartStats& p : CountParts(model.checkpoint())) {
      parts += fmt::format("{}{}:{{\"tensors\":{},\"parameters\":{},\"bytes\":{}}}",
                           parts.empty() ? "" : ",", JsonString(p.name), p.num_tensors,
                           p.parameters, p.bytes);
    }
    const RowFlops f = FlopsPerRow(c, 1024);
    return PrintLine(fmt::format(
        "{{\"valid\":true,\"layers\":{},\"decoder_start\":{},\"vocab_size\":{},"
        "\"max_positions\":{},\"parts\":{{{}}},\"kv_block_bytes\":{},\"kv_bytes_per_token\":{},"
        "\"state_slot_bytes\":{},\"weight_bytes_per_decoded_token\":{:.0f},"
        "\"flops_per_decoded_token_1k\":{:.0f},\"flops_per_prompt_token_1k\":{:.0f}}}",
        c.num_layers, c.decoder_start(), c.vocab_size, c.max_positions, parts,
        model.layout().block_bytes, static_cast<double>(model.layout().block_bytes) / kBlockTokens,
        model.layout().slot_bytes, WeightBytesPerDecodedToken(c, model.checkpoint()), f.decode(),
        f.encoder));
  }

  ModelFlags flags_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeInspectCommand() { return std::make_unique<InspectCommand>(); }

}  // namespace deepinfer
