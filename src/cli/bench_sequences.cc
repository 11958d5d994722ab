#include "cli/bench_sequences.h"

#include <algorithm>
#include <numeric>

#include "base/philox.h"

namespace deepinfer {

namespace {

constexpr uint64_t kSeed = 1;
// Rows of random values that are written again and again.
constexpr int64_t kRandomRows = 1024;

std::vector<int32_t> RandomIds(int32_t count, int32_t sequence, int32_t vocab_size) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < count; ++i) {
    const PhiloxBlock r = RandomBlock(kSeed, static_cast<uint64_t>(i), RandomPurpose::kSample,
                                      static_cast<uint32_t>(sequence));
    // Ids below 3 are begin, end and pad; the last two may be marks without text.
    ids.push_back(3 + static_cast<int32_t>(r[0] % static_cast<uint32_t>(vocab_size - 5)));
  }
  return ids;
}

// Uniform in [-1, 1).
std::vector<float> RandomValues(int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); i += 4) {
    const PhiloxBlock r = RandomBlock(kSeed, i, RandomPurpose::kRace, 0);
    for (size_t j = i; j < std::min(i + 4, values.size()); ++j) {
      values[j] = static_cast<float>(r[j - i] >> 8) * 0x1p-23f - 1.0f;
    }
  }
  return values;
}

Status RunSteps(Model* model, std::span<const SequenceStep> steps) {
  StepOutput out;
  DI_RETURN_IF_ERROR(model->Step(steps, false, &out));
  for (const Status& status : out.status) DI_RETURN_IF_ERROR(status);
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<BenchSequences>> BenchSequences::Create(Model* model, int32_t num_sequences,
                                                               int32_t num_tokens) {
  std::unique_ptr<BenchSequences> s(new BenchSequences(model));
  const KvLayout& layout = model->layout();
  s->num_blocks_ = KvLayout::NumBlocks(num_tokens);
  s->pool_bytes_ = num_sequences * s->num_blocks_ * layout.block_bytes;
  s->slot_bytes_ = num_sequences * layout.slot_bytes;
  s->pool_ = model->ops()->Allocate(s->pool_bytes_);
  s->slots_ = model->ops()->Allocate(s->slot_bytes_);
  if (s->pool_ == nullptr || s->slots_ == nullptr) {
    return ResourceExhausted("no memory for the caches of " + std::to_string(num_sequences) +
                             " sequences of " + std::to_string(num_tokens) + " tokens");
  }
  for (int32_t i = 0; i < num_sequences; ++i) {
    std::vector<int32_t> table(static_cast<size_t>(s->num_blocks_));
    std::iota(table.begin(), table.end(), static_cast<int32_t>(i * s->num_blocks_));
    s->tables_.push_back(std::move(table));
    s->tokens_.push_back(RandomIds(num_tokens, i, model->config().vocab_size));
  }
  return s;
}

BenchSequences::~BenchSequences() {
  model_->ops()->Free(pool_);
  model_->ops()->Free(slots_);
}

Status BenchSequences::FillCaches(int32_t context) {
  const KvLayout& layout = model_->layout();
  Operators* ops = model_->ops();
  const int64_t width = std::max(model_->config().head_dim, model_->config().index_head_dim);
  const std::vector<float> host_rows = RandomValues(kRandomRows * width);
  const auto bytes = static_cast<int64_t>(host_rows.size() * sizeof(float));
  std::byte* device_rows = ops->Allocate(bytes);
  if (device_rows == nullptr) return ResourceExhausted("no memory for random cache rows");
  ops->CopyToDevice(device_rows, host_rows.data(), bytes);
  const auto* rows = reinterpret_cast<const float*>(device_rows);
  FillPages(context, rows, kRandomRows);
  FillSlot(host_rows, rows);
  ops->Free(device_rows);
  // The others get copies: equal contents in memory of their own cost what other contents would.
  const int64_t sequence_bytes = num_blocks_ * layout.block_bytes;
  for (int64_t i = 1; i < num_sequences(); ++i) {
    ops->CopyOnDevice(pool_ + i * sequence_bytes, pool_, sequence_bytes);
    ops->CopyOnDevice(slots_ + i * layout.slot_bytes, slots_, layout.slot_bytes);
  }
  return OkStatus();
}

void BenchSequences::FillPages(int32_t context, const float* rows, int64_t num_rows) {
  const ModelConfig& c = model_->config();
  const KvLayout& layout = model_->layout();
  for (size_t source = 0; source < layout.sections.size(); ++source) {
    const KvPages pages = layout.Pages(static_cast<int32_t>(source), pool_, tables_.front().data());
    const int64_t entries = context / layout.sections[source].ratio;
    for (int64_t first = 0; first < entries; first += num_rows) {
      const int64_t count = std::min(num_rows, entries - first);
      model_->ops()->StoreCompressed(count, rows, c.head_dim, layout.format, false, first, pages);
      model_->ops()->StoreIndexKeys(count, rows, c.index_head_dim, layout.format, first, pages);
    }
  }
}

void BenchSequences::FillSlot(const std::vector<float>& host_rows, const float* rows) {
  const ModelConfig& c = model_->config();
  const KvLayout& layout = model_->layout();
  for (int32_t ring = 0; ring < layout.num_rings; ++ring) {
    model_->ops()->StoreWindowRows(layout.ring_rows, rows, c.head_dim, layout.format,
                                   layout.Ring(slots_, ring));
  }
  for (size_t source = 0; source < layout.sections.size(); ++source) {
    if (layout.sections[source].ratio != 2) continue;
    model_->ops()->CopyToDevice(layout.CompressorRing(slots_, static_cast<int32_t>(source)),
                                host_rows.data(),
                                layout.compressor_ring_rows * layout.compressor_row_bytes);
  }
}

std::vector<SequenceStep> BenchSequences::Steps(int32_t batch, int32_t start,
                                                int32_t num_rows) const {
  std::vector<SequenceStep> steps;
  for (size_t i = 0; i < static_cast<size_t>(batch); ++i) {
    SequenceStep step;
    step.tokens = tokens_[i].data();
    step.start = start;
    step.num_rows = num_rows;
    step.logits_from = start + num_rows;
    step.block_table = tables_[i].data();
    step.pool = pool_;
    step.slot = slots_ + static_cast<int64_t>(i) * model_->layout().slot_bytes;
    steps.push_back(step);
  }
  return steps;
}

Status BenchSequences::Prefill(Model* model, int32_t prompt, int32_t chunk) const {
  const int32_t origin = std::max(0, prompt - model->config().decoder_keep_rows());
  for (int32_t start = 0; start < prompt; start += chunk) {
    std::vector<SequenceStep> steps = Steps(1, start, std::min(chunk, prompt - start));
    SequenceStep& s = steps.front();
    s.decoder_from = s.decoder_origin = origin;
    if (s.start + s.num_rows == prompt) s.logits_from = prompt - 1;
    DI_RETURN_IF_ERROR(RunSteps(model, steps));
  }
  return OkStatus();
}

Status BenchSequences::Decode(Model* model, int32_t batch, int32_t start, int32_t num_steps) const {
  for (int32_t p = start; p < start + num_steps; ++p) {
    std::vector<SequenceStep> steps = Steps(batch, p, 1);
    for (SequenceStep& s : steps) s.logits_from = p;
    DI_RETURN_IF_ERROR(RunSteps(model, steps));
  }
  return OkStatus();
}

}  // namespace deepinfer
