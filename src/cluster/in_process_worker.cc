#include "cluster/in_process_worker.h"

#include "cluster/incarnation.h"
#include "engine/cut_rows.h"
#include "engine/state_image.h"

namespace deepinfer {

InProcessWorker::InProcessWorker(std::string model_name, Model* model,
                                 std::unique_ptr<Engine> engine, WorkerRole role,
                                 std::string kv_root, std::string weights_hash)
    : engine_(std::move(engine)) {
  WorkerInfo info;
  info.model_name = std::move(model_name);
  info.numerics_id = model->numerics_id();
  info.vocab_size = model->config().vocab_size;
  info.max_model_len = engine_->max_model_len();
  info.eos_token_id = model->config().eos_token_id;
  info.role = role;
  info.kv_slot_bytes = model->layout().slot_bytes;
  info.kv_block_bytes = model->layout().block_bytes;
  info.kv_section_bytes = SectionBytes(model->layout());
  info.cut_row_bytes = CutRowBytes(*model);
  info.kv_root = std::move(kv_root);
  info.weights_hash = std::move(weights_hash);
  info.kv_namespace = engine_->kv_namespace();
  info.answers_probes = engine_->has_store();
  info.encoder_only = model->options().part == ModelPart::kEncoder;
  info.full_decoder_tail = engine_->decoder_tail() == DecoderTail::kFull;
  info.incarnation = NewIncarnation();
  info_ = std::make_shared<const WorkerInfo>(std::move(info));
}

Status InProcessWorker::Submit(EngineRequest request, TokenSink sink) {
  return engine_->Submit(std::move(request), std::move(sink));
}

void InProcessWorker::Cancel(std::string_view request_id) { engine_->Cancel(request_id); }

LoadReport InProcessWorker::Load() const {
  const EngineStatistics stats = engine_->Statistics();
  LoadReport report;
  report.running = stats.running;
  report.waiting = stats.waiting + stats.pending;
  report.max_running = static_cast<int32_t>(stats.slots_total);
  report.kv_tokens = stats.kv_tokens;
  report.kv_capacity_tokens = stats.kv_capacity_tokens;
  report.draining = engine_->draining();
  report.queued_prompt_tokens = stats.waiting_prompt_tokens;
  report.ready = engine_->healthy();
  report.costs = stats.costs;
  return report;
}

EngineStatistics InProcessWorker::Statistics() const {
  EngineStatistics statistics = engine_->Statistics();
  statistics.incarnation = info_->incarnation;
  return statistics;
}

Status InProcessWorker::Profile(int32_t num_steps, int64_t deadline_us, ProfileSink done) {
  return engine_->Profile(num_steps, deadline_us, std::move(done));
}

void InProcessWorker::Drain(int64_t deadline_us) { engine_->Drain(deadline_us); }

}  // namespace deepinfer
