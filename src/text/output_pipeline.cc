#include "text/output_pipeline.h"

#include <utility>

namespace deepinfer {

OutputPipeline::OutputPipeline(const Tokenizer& tokenizer, ParserSettings settings)
    : detokenizer_(tokenizer), parser_(std::move(settings)) {}

size_t OutputPipeline::Push(std::span<const int32_t> ids, std::vector<OutputEvent>* out) {
  size_t num_taken = 0;
  while (num_taken < ids.size() && !parser_.stopped() && !finished_) {
    PushOne(ids[num_taken++], out);
  }
  NoteStop(*out);
  return num_taken;
}

void OutputPipeline::PushOne(int32_t id, std::vector<OutputEvent>* out) {
  const int64_t index = counts_.taken++;
  const std::string text = detokenizer_.Push(id);
  parser_.PushToken(id, text, first_pending_token_, index, out);
  // Whatever the detokenizer still holds came from this token alone once older bytes went out.
  if (detokenizer_.num_pending_bytes() == 0) {
    first_pending_token_ = index + 1;
  } else if (!text.empty()) {
    first_pending_token_ = index;
  }
  if (parser_.stage() == OutputStage::kReasoning) ++counts_.reasoning;
}

void OutputPipeline::SkipToken() {
  ++counts_.taken;
  if (parser_.stage() == OutputStage::kReasoning) ++counts_.reasoning;
}

void OutputPipeline::PushText(std::string_view text, std::vector<OutputEvent>* out) {
  if (finished_ || parser_.stopped()) return;
  parser_.PushText(text, out);
  NoteStop(*out);
}

void OutputPipeline::Finish(std::vector<OutputEvent>* out) {
  if (finished_) return;
  finished_ = true;
  detokenizer_.Finish();
  parser_.Finish(out);
  NoteStop(*out);
}

void OutputPipeline::NoteStop(const std::vector<OutputEvent>& events) {
  if (!stop_string_.empty() || events.empty()) return;
  if (events.back().kind == OutputEventKind::kStopMatched) stop_string_ = events.back().text;
}

}  // namespace deepinfer
