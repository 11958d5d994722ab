#include "engine/kv_namespace.h"

#include <fmt/core.h>

namespace deepinfer {

namespace {

// Rendering rules of prompts (docs/encoding.md); equal ids are equal blocks, so this only keeps
// prompts of different rules apart.
constexpr const char* kPromptCodec = "v41-1";

// The rows of the released model with fp4 entries (kv_format.md §2).
KvBlockLayout ReleasedLayout() {
  KvBlockLayout layout;
  layout.format_id = kFormatFp4;
  layout.block_tokens = 128;
  layout.sections = {{2, 64, 288, 68}, {8, 64, 288, 68}, {14, 64, 288, 68}, {20, 128, 288, 68}};
  return layout;
}

std::string Hex(const Sha256Digest& digest) { return BlockKey{digest}.Hex(); }

}  // namespace

KvBlockLayout MakeBlockLayout(const KvLayout& kv) {
  KvBlockLayout layout;
  layout.block_tokens = kBlockTokens;
  for (const KvSection& section : kv.sections) {
    layout.sections.push_back({static_cast<uint16_t>(section.layer),
                               static_cast<uint16_t>(section.entries_per_block),
                               static_cast<uint16_t>(kv.main_row_bytes),
                               static_cast<uint16_t>(kv.index_code_bytes + kv.index_scale_bytes)});
  }
  const KvBlockLayout released = ReleasedLayout();
  const bool is_released =
      kv.format == KvFormat::kQuantized && layout.sections == released.sections;
  layout.format_id =
      is_released ? kFormatFp4 : kFirstTestFormat + (kv.format == KvFormat::kQuantized ? 0 : 1);
  return layout;
}

KvNamespace MakeKvNamespace(const Model& model, const ModelFiles& files) {
  const ModelConfig& c = model.config();
  KvNamespace space;
  space.weights_fingerprint = files.weights;
  space.tokenizer_hash = files.tokenizer;
  space.prompt_codec_version = kPromptCodec;
  space.format_id = MakeBlockLayout(model.layout()).format_id;
  space.block_tokens = kBlockTokens;
  space.rope_and_context =
      fmt::format("rope {} {} {} yarn {} {} {} {} window {} config {}", c.rope_dim, c.rope_theta,
                  c.compress_rope_theta, c.yarn.factor, c.yarn.beta_fast, c.yarn.beta_slow,
                  c.yarn.original_max_positions, c.window, Hex(files.config));
  space.numerics_id = model.numerics_id();
  return space;
}

std::string DescribeNamespace(const KvNamespace& space) {
  return fmt::format(
      "weights = \"{}\"\ntokenizer = \"{}\"\nprompt_codec = \"{}\"\nformat = {}\n"
      "block_tokens = {}\npositions = \"{}\"\nnumerics = \"{}\"\n",
      Hex(space.weights_fingerprint), Hex(space.tokenizer_hash), space.prompt_codec_version,
      space.format_id, space.block_tokens, space.rope_and_context, space.numerics_id);
}

}  // namespace deepinfer
