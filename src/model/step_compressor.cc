// Compressed entries and index keys of a KV source (model.md §7, §8).

#include <algorithm>

#include "model/step_runner.h"

namespace deepinfer {

void StepRunner::PublishEntries(int32_t layer) {
  const Workspace::Scope scope(context_.workspace);
  if (config_.ratio(layer) == 2) {
    PublishPairs(layer);
  } else {
    PublishSingles(layer);
  }
}

void StepRunner::PublishSingles(int32_t layer) {
  const CompressorWeights& w = Weights(layer).compressor;
  float* latents = Floats(num_rows_ * config_.head_dim);
  linears_.Bf16(u_, num_rows_, w.wkv, stream(), latents);
  std::vector<EntryGroup> groups;
  for (const RowRun& run : runs_) {
    groups.push_back({&run, run.start, run.first_row, run.num_rows});
  }
  StoreEntries(layer, latents, groups, num_rows_);
}

void StepRunner::PublishPairs(int32_t layer) {
  const CompressorWeights& w = Weights(layer).compressor;
  const KvLayout& layout = *context_.layout;
  const int64_t n = config_.head_dim;
  const int32_t source = config_.KvSourceOf(layer);
  float* kv = Floats(num_rows_ * n);
  float* gate = Floats(num_rows_ * n);
  linears_.Bf16(u_, num_rows_, w.wkv, Rounding::kNone, kv);
  linears_.Bf16(u_, num_rows_, w.wgate, Rounding::kNone, gate);

  float* latents = Floats((num_rows_ + static_cast<int64_t>(runs_.size())) / 2 * n + n);
  std::vector<EntryGroup> groups;
  int64_t num_entries = 0;
  for (const RowRun& run : runs_) {
    std::byte* ring = layout.CompressorRing(run.sequence->slot, source);
    const auto ring_row = [&](int64_t p) {
      return reinterpret_cast<float*>(ring + p % layout.compressor_ring_rows *
                                                 layout.compressor_row_bytes);
    };
    const float* run_kv = kv + run.first_row * n;
    const float* run_gate = gate + run.first_row * n;
    EntryGroup group{&run, run.start / 2, num_entries, 0};
    // A group opened by an earlier step closes with the first row of this one.
    if (run.num_rows > 0 && run.start % 2 == 1) {
      const float* open = ring_row(run.start - 1);
      ops_->CompressPair(1, open, open + n, run_kv, run_gate, n, n, stream(),
                         latents + num_entries * n);
      group.count = 1;
    }
    const int64_t skip = run.start % 2;
    const int64_t pairs = std::max<int64_t>(0, run.num_rows - skip) / 2;
    const float* k0 = run_kv + skip * n;
    const float* g0 = run_gate + skip * n;
    ops_->CompressPair(pairs, k0, g0, k0 + n, g0 + n, n, 2 * n, stream(),
                       latents + (num_entries + group.count) * n);
    group.count += pairs;
    num_entries += group.count;
    groups.push_back(group);
    const int64_t keep = std::min<int64_t>(run.num_rows, layout.compressor_ring_rows);
    for (int64_t i = run.num_rows - keep; i < run.num_rows; ++i) {
      float* row = ring_row(run.start + i);
      ops_->CopyOnDevice(row, run_kv + i * n, n * 4);
      ops_->CopyOnDevice(row + n, run_gate + i * n, n * 4);
    }
  }
  StoreEntries(layer, latents, groups, num_entries);
}

void StepRunner::StoreEntries(int32_t layer, float* latents, const std::vector<EntryGroup>& groups,
                              int64_t num_entries) {
  const CompressorWeights& w = Weights(layer).compressor;
  const int64_t n = config_.head_dim, index_dim = config_.index_head_dim;
  const int32_t ratio = config_.ratio(layer), source = config_.KvSourceOf(layer);
  const KvFormat format = context_.layout->format;
  ops_->RmsNorm(num_entries, latents, w.norm, n, config_.rms_eps, stream(), latents);
  Probe("latent", layer, latents, num_entries, n);

  // An entry rotates at the position of its first token.
  std::vector<int32_t> host_positions;
  for (const EntryGroup& g : groups) {
    for (int64_t i = 0; i < g.count; ++i) {
      host_positions.push_back(static_cast<int32_t>((g.first_entry + i) * ratio));
    }
  }
  int32_t* positions = context_.workspace->Array<int32_t>(num_entries);
  ops_->CopyToDevice(positions, host_positions.data(), num_entries * 4);

  float* keys = Floats(num_entries * index_dim);
  linears_.Bf16(latents, num_entries, w.index_wk, stream(), keys);
  ops_->RmsNorm(num_entries, keys, w.index_k_norm, index_dim, config_.rms_eps, stream(), keys);
  ops_->Rope(num_entries, keys, 1, config_.index_head_dim, positions, Rope(layer), false, stream());
  ops_->Rope(num_entries, latents, 1, config_.head_dim, positions, Rope(layer), false, stream());
  Probe("index_key_rotated", layer, keys, num_entries, index_dim);
  Probe("latent_rotated", layer, latents, num_entries, n);
  for (const EntryGroup& g : groups) {
    const SequenceStep& s = *g.run->sequence;
    // Entries of a restored prefix keep their stored bytes (model.md §13.2).
    const int64_t skip = std::clamp<int64_t>(s.write_from / ratio - g.first_entry, 0, g.count);
    const int64_t row = g.first_row + skip;
    const KvPages pages = context_.layout->Pages(source, s.pool, s.block_table);
    ops_->StoreCompressed(g.count - skip, latents + row * n, n, format,
                          context_.arithmetic.fp4_by_reciprocal, g.first_entry + skip, pages);
    ops_->StoreIndexKeys(g.count - skip, keys + row * index_dim, index_dim, format,
                         g.first_entry + skip, pages);
  }
}

}  // namespace deepinfer
