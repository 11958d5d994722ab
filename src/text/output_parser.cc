#include "text/output_parser.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "text/event_writer.h"
#include "text/held_text.h"
#include "text/json_extractor.h"
#include "text/special_tokens.h"
#include "text/stop_matcher.h"
#include "text/tool_section.h"

namespace deepinfer {
namespace {

constexpr int32_t kThinkEndPattern = 0;

}  // namespace

struct OutputParser::Impl {
  enum class Stage : unsigned char { kReasoning, kContent, kTools, kDone };

  explicit Impl(ParserSettings s)
      : settings(std::move(s)), stops(settings.stop_strings), tools(&writer, &malformed) {
    const ParserStart start = settings.start;
    const bool reasoning =
        start == ParserStart::kReasoningStart || start == ParserStart::kReasoningContinuation;
    stage = reasoning ? Stage::kReasoning : Stage::kContent;
    drop_newlines = start == ParserStart::kReasoningStart || start == ParserStart::kContentStart;
    if (settings.parse_tool_calls && settings.starts_in_tool_calls) stage = Stage::kTools;
    if (settings.parse_json_output) extractor.emplace();
  }

  void PushText(std::string_view text);
  void FlushMarkerPrefix();
  void Text(const TextPiece& piece);
  void FreeText(TextPiece piece);
  void ThinkEnd(const TextPiece& piece);
  void Dsml(const TextPiece& piece);
  void Finish();

  size_t HeldSuffix(std::string_view text) const;
  void ReleaseHeld();
  void Emit(const TextPiece& piece);
  void Content(const TextPiece& piece);
  void JsonOrText(const TextPiece& piece);
  void EndContent();

  ParserSettings settings;
  EventWriter writer;
  MalformedCounts malformed;
  Stage stage = Stage::kContent;
  bool drop_newlines = false;  // no text of this stage was kept yet: newlines are dropped
  bool stopped = false;
  bool finished = false;
  HeldText held;  // newlines, then perhaps `<`
  StopMatcher stops;
  HeldText stop_held;  // content that may begin a stop string
  std::optional<JsonExtractor> extractor;
  ToolSection tools;
  std::optional<StopMatcher> markers;  // for text items; made when the first one comes
  std::string marker_prefix;           // text that may begin a marker's string
};

void OutputParser::Impl::PushText(std::string_view text) {
  if (!markers) {
    markers.emplace(
        std::vector<std::string>{std::string(kThinkEndString), std::string(kDsmlString)});
  }
  while (!text.empty()) {
    const StopMatcher::Advance advance = markers->Push(text);
    marker_prefix += text.substr(0, advance.num_read_bytes);
    text.remove_prefix(advance.num_read_bytes);
    std::string free_text = marker_prefix.substr(0, advance.num_released_bytes);
    marker_prefix.erase(0, advance.num_released_bytes);
    Text({free_text});
    if (!markers->matched()) continue;
    const bool is_think_end = markers->match_index() == kThinkEndPattern;
    markers->Restart();
    const std::string marker = std::exchange(marker_prefix, {});
    if (is_think_end) {
      ThinkEnd({marker});
    } else {
      Dsml({marker});
    }
  }
}

void OutputParser::Impl::FlushMarkerPrefix() {
  if (marker_prefix.empty()) return;
  const std::string text = std::exchange(marker_prefix, {});
  markers->Restart();
  Text({text});
}

void OutputParser::Impl::Text(const TextPiece& piece) {
  if (piece.bytes.empty()) return;
  switch (stage) {
    case Stage::kReasoning:
    case Stage::kContent:
      FreeText(piece);
      break;
    case Stage::kTools:
      tools.Text(piece.bytes);
      break;
    case Stage::kDone:
      break;
  }
}

// Newlines at the end may stand before a marker, `<` may be the first byte of a tag.
size_t OutputParser::Impl::HeldSuffix(std::string_view text) const {
  const bool before_tag = settings.parse_tool_calls;
  if (!before_tag && stage == Stage::kContent) return 0;
  size_t count = before_tag && !text.empty() && text.back() == '<' ? 1 : 0;
  while (count < text.size() && text[text.size() - count - 1] == '\n') ++count;
  return count;
}

void OutputParser::Impl::FreeText(TextPiece piece) {
  if (drop_newlines) {
    const size_t begin = piece.bytes.find_first_not_of('\n');
    if (begin == std::string_view::npos) return;
    piece = piece.Sub(begin);
    drop_newlines = false;
  }
  const size_t num_held = HeldSuffix(piece.bytes);
  const bool extends_held = num_held == piece.bytes.size() && !held.EndsWith('<');
  if (!extends_held) ReleaseHeld();
  if (stage == Stage::kDone) return;  // the released text completed a stop string
  Emit(piece.Sub(0, piece.bytes.size() - num_held));
  if (stage != Stage::kDone) held.Append(piece.Sub(piece.bytes.size() - num_held));
}

void OutputParser::Impl::ReleaseHeld() {
  held.ReleaseAll([this](const TextPiece& piece) { Emit(piece); });
}

void OutputParser::Impl::ThinkEnd(const TextPiece& piece) {
  if (stage == Stage::kReasoning) {
    if (held.EndsWith('<')) ReleaseHeld();
    held.Clear();
    stage = Stage::kContent;
    drop_newlines = true;
  } else if (stage == Stage::kContent) {
    // Newlines are only trimmed next to a marker that means something.
    malformed.Add(MalformedKind::kStrayThinkEnd);
    ReleaseHeld();
    drop_newlines = false;
  } else if (!tools.done()) {
    Text(piece);
  }
}

void OutputParser::Impl::Dsml(const TextPiece& piece) {
  if (stage == Stage::kTools) {
    tools.Marker(piece.bytes);
    return;
  }
  const bool opens_block = settings.parse_tool_calls && stage != Stage::kDone && held.EndsWith('<');
  if (!opens_block) {
    Text(piece);
    return;
  }
  held.Clear();
  if (stage == Stage::kReasoning) malformed.Add(MalformedKind::kBlockInReasoning);
  EndContent();
  stage = Stage::kTools;
  tools.EnterBehindMarker();
}

void OutputParser::Impl::Emit(const TextPiece& piece) {
  if (piece.bytes.empty() || stage == Stage::kDone) return;
  if (stage == Stage::kReasoning) {
    writer.Text(OutputEventKind::kReasoning, piece);
  } else {
    Content(piece);
  }
}

void OutputParser::Impl::Content(const TextPiece& piece) {
  if (!stops.active()) {
    JsonOrText(piece);
    return;
  }
  // Text from no token is as good as late.
  const bool may_stop =
      piece.last_token < 0 || piece.last_token >= settings.num_tokens_without_stop;
  const StopMatcher::Advance advance = stops.Push(piece.bytes, may_stop);
  stop_held.Append(piece.Sub(0, advance.num_read_bytes));
  stop_held.Release(advance.num_released_bytes,
                    [this](const TextPiece& released) { JsonOrText(released); });
  if (!stops.matched()) return;
  if (settings.include_stop_string) {
    stop_held.ReleaseAll([this](const TextPiece& released) { JsonOrText(released); });
  }
  stop_held.Clear();
  EndContent();
  writer.Stop(stops.match());
  stopped = true;
  stage = Stage::kDone;
}

void OutputParser::Impl::JsonOrText(const TextPiece& piece) {
  if (!extractor) {
    writer.Text(OutputEventKind::kContent, piece);
    return;
  }
  extractor->Push(
      piece, [this](const TextPiece& kept) { writer.Text(OutputEventKind::kContent, kept); },
      [this] { writer.SignOfLife(); });
}

void OutputParser::Impl::EndContent() {
  stop_held.ReleaseAll([this](const TextPiece& piece) { JsonOrText(piece); });
  if (extractor) {
    extractor->Finish(
        [this](const TextPiece& piece) { writer.Text(OutputEventKind::kContent, piece); });
  }
}

void OutputParser::Impl::Finish() {
  FlushMarkerPrefix();
  switch (stage) {
    case Stage::kReasoning:
      ReleaseHeld();
      malformed.Add(MalformedKind::kNoThinkEnd);
      break;
    case Stage::kContent:
      ReleaseHeld();
      if (stage == Stage::kContent) EndContent();
      break;
    case Stage::kTools:
      tools.Finish();
      break;
    case Stage::kDone:
      break;
  }
  if (stage != Stage::kReasoning) stage = Stage::kDone;
}

OutputParser::OutputParser(ParserSettings settings)
    : impl_(std::make_unique<Impl>(std::move(settings))) {}
OutputParser::~OutputParser() = default;
OutputParser::OutputParser(OutputParser&&) noexcept = default;
OutputParser& OutputParser::operator=(OutputParser&&) noexcept = default;

void OutputParser::TrackTokens() { impl_->writer.TrackTokens(); }

void OutputParser::PushToken(int32_t id, std::string_view text, int64_t first_token,
                             int64_t last_token, std::vector<OutputEvent>* out) {
  Impl& p = *impl_;
  p.writer.Begin(out);
  p.FlushMarkerPrefix();
  const bool is_think_end = id >= 0 && id == p.settings.think_end_id;
  const bool is_dsml = id >= 0 && id == p.settings.dsml_id;
  TextPiece piece{text, first_token, last_token};
  if (is_think_end || is_dsml) {
    // What an unfinished code point before the marker became.
    const std::string_view marker = is_think_end ? kThinkEndString : kDsmlString;
    const size_t marker_begin = text.size() - std::min(text.size(), marker.size());
    p.Text({text.substr(0, marker_begin), first_token, last_token - 1});
    piece = {text.substr(marker_begin), last_token, last_token};
  }
  if (is_think_end) {
    p.ThinkEnd(piece);
  } else if (is_dsml) {
    p.Dsml(piece);
  } else {
    p.Text(piece);
  }
}

void OutputParser::PushText(std::string_view text, std::vector<OutputEvent>* out) {
  impl_->writer.Begin(out);
  impl_->PushText(text);
}

void OutputParser::Finish(std::vector<OutputEvent>* out) {
  if (impl_->finished) return;
  impl_->finished = true;
  impl_->writer.Begin(out);
  impl_->Finish();
}

OutputStage OutputParser::stage() const {
  switch (impl_->stage) {
    case Impl::Stage::kReasoning:
      return OutputStage::kReasoning;
    case Impl::Stage::kContent:
      return OutputStage::kContent;
    case Impl::Stage::kTools:
      return impl_->tools.done() ? OutputStage::kDone : OutputStage::kTools;
    case Impl::Stage::kDone:
      break;
  }
  return OutputStage::kDone;
}

bool OutputParser::stopped() const { return impl_->stopped; }
int32_t OutputParser::num_calls() const { return impl_->writer.num_calls(); }
const MalformedCounts& OutputParser::malformed() const { return impl_->malformed; }

}  // namespace deepinfer
