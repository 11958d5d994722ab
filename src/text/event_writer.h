// Appends parser events to the caller's list, joining neighbours of one kind and giving every token
// to the first event of each text kind that holds a part of it.
// Thread rule: one object, one thread. Owner: the output parser of one choice.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/held_text.h"
#include "text/output_event.h"
#include "text/tool_section.h"

namespace deepinfer {

class EventWriter final : public ToolCallSink {
 public:
  // Events name their tokens; otherwise they name none.
  void TrackTokens() { track_tokens_ = true; }

  // Events go to `out` until the next call. `out` is empty when the caller took the last batch.
  void Begin(std::vector<OutputEvent>* out) {
    out_ = out;
    if (out->empty()) showed_life_ = false;
  }

  void Text(OutputEventKind kind, const TextPiece& piece) {
    if (piece.bytes.empty()) return;
    showed_life_ = false;
    OutputEvent* event = Join(kind, -1);
    event->text += piece.bytes;
    int64_t* next =
        kind == OutputEventKind::kReasoning ? &next_reasoning_token_ : &next_content_token_;
    if (!track_tokens_ || piece.first_token < 0) return;
    for (int64_t t = std::max(*next, piece.first_token); t <= piece.last_token; ++t) {
      event->tokens.push_back(t);
    }
    *next = std::max(*next, piece.last_token + 1);
  }

  // One space in the answer in place of text that was dropped, at most one per batch.
  void SignOfLife() {
    if (showed_life_) return;
    Text(OutputEventKind::kContent, {" "});
    showed_life_ = true;
  }

  void Stop(std::string_view text) {
    out_->push_back({OutputEventKind::kStopMatched, -1, std::string(text), {}});
  }

  void OnCallStart(std::string_view name) override {
    out_->push_back({OutputEventKind::kCallStart, num_calls_, std::string(name), {}});
    ++num_calls_;
  }
  void OnArguments(std::string_view fragment) override {
    if (fragment.empty()) return;
    Join(OutputEventKind::kArguments, num_calls_ - 1)->text += fragment;
  }
  void OnCallEnd() override {
    out_->push_back({OutputEventKind::kCallEnd, num_calls_ - 1, {}, {}});
  }

  int32_t num_calls() const { return num_calls_; }

 private:
  OutputEvent* Join(OutputEventKind kind, int32_t call_index) {
    if (out_->empty() || out_->back().kind != kind || out_->back().call_index != call_index) {
      out_->push_back({kind, call_index, {}, {}});
    }
    return &out_->back();
  }

  std::vector<OutputEvent>* out_ = nullptr;
  int64_t next_reasoning_token_ = 0;
  int64_t next_content_token_ = 0;
  int32_t num_calls_ = 0;
  bool track_tokens_ = false;
  bool showed_life_ = false;
};

}  // namespace deepinfer
