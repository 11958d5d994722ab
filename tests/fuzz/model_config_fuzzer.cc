// Any bytes as config.json. What is accepted must keep the promises that the loader, the step and
// the sampler build on.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "model/kv_layout.h"
#include "model/rope.h"

namespace {

using namespace deepinfer;

void Expect(bool holds) {
  if (!holds) std::abort();
}

bool IsIndex(int32_t index, const std::vector<int32_t>& list) {
  return index >= 0 && static_cast<size_t>(index) < list.size();
}

void CheckRoles(const ModelConfig& c) {
  Expect(c.compress_ratios.size() == static_cast<size_t>(c.num_layers + c.dspark.num_layers));
  Expect(c.decoder_start() < c.num_layers);
  for (int32_t l = 0; l < c.num_layers; ++l) {
    if (c.ratio(l) == 0) {
      Expect(!c.IsKvSource(l) && !c.IsIndexSource(l));
      continue;
    }
    Expect(IsIndex(c.KvSourceOf(l), c.kv_source_layers));
    Expect(IsIndex(c.IndexSourceOf(l), c.index_source_layers));
    // Rows that are not kept never reach a layer behind the cut.
    Expect(!c.IsKvSource(l) || l <= c.decoder_start());
    Expect((l >= c.decoder_start()) == (c.ratio(l) == 1));
  }
  Expect(c.candidate_source_layer == c.decoder_start());
}

void CheckIds(const ModelConfig& c) {
  for (int32_t id : {c.bos_token_id, c.eos_token_id, c.image_token_id}) Expect(id < c.vocab_size);
  Expect(c.engram.layer_ids.empty() || c.engram.layer_ids.back() < c.decoder_start());
  for (int32_t layer : c.dspark.target_layer_ids) Expect(layer >= 0 && layer < c.num_layers);
}

void CheckDerived(const ModelConfig& c) {
  for (KvFormat format : {KvFormat::kQuantized, KvFormat::kFloat32}) {
    const KvLayout layout = KvLayout::Create(c, format);
    Expect(layout.block_bytes > 0 && layout.block_bytes % 64 == 0);
    Expect(layout.compressor_ring_offset >= layout.num_rings * layout.ring_bytes);
    Expect(layout.slot_bytes >= layout.compressor_ring_offset);
    Expect(layout.ring_rows > c.window);
  }
  for (bool compressed : {false, true}) {
    for (float f : RopeFrequencies(c, compressed)) Expect(std::isfinite(f) && f > 0.0f);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto config =
      ModelConfig::Parse(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!config.ok()) {
    Expect(!config.status().message().empty());
    return 0;
  }
  CheckRoles(*config);
  CheckIds(*config);
  CheckDerived(*config);
  return 0;
}
