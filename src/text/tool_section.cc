#include "text/tool_section.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/json_escape.h"

namespace deepinfer {
namespace {

// What may stand behind the marker, without the optional space.
constexpr std::string_view kInvokeHead = "invoke name=\"";
constexpr std::string_view kParameterHead = "parameter name=\"";
constexpr std::string_view kCallsName = "calls";
constexpr std::string_view kCallsNameV4 = "tool_calls";
constexpr std::string_view kInvokeName = "invoke";
constexpr std::string_view kParameterName = "parameter";

constexpr std::array<std::string_view, 4> kOpenHeads = {kInvokeHead, kParameterHead, kCallsName,
                                                        kCallsNameV4};
constexpr std::array<std::string_view, 4> kCloseHeads = {kInvokeName, kParameterName, kCallsName,
                                                         kCallsNameV4};

constexpr std::string_view kKeyEnd = "\" string=\"";
constexpr std::string_view kStringForm = "true\">";
constexpr std::string_view kJsonForm = "false\">";

bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

bool StartsWith(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

// Length of the longest suffix of `text` that is `<` or `</`.
size_t TagBeginSuffix(std::string_view text) {
  if (text.empty()) return 0;
  if (text.back() == '<') return 1;
  return text.size() >= 2 && text.substr(text.size() - 2) == "</" ? 2 : 0;
}

}  // namespace

void ToolSection::Text(std::string_view bytes) {
  if (bytes.empty()) return;
  if (held_ == "<" && bytes.front() == '/') {
    held_ = "</";
    bytes.remove_prefix(1);
    if (bytes.empty()) return;
  }
  if (!held_.empty()) {
    const std::string released = std::exchange(held_, {});
    ReadFree(released);
  }
  const size_t num_held = TagBeginSuffix(bytes);
  ReadFree(bytes.substr(0, bytes.size() - num_held));
  held_ = bytes.substr(bytes.size() - num_held);
}

void ToolSection::Marker(std::string_view spelling) {
  const bool closes = held_ == "</";
  const bool is_data = (state_ == State::kValue && !closes) || done();
  if (held_.empty() || is_data) {
    // Openers inside a value are data; a bare marker is text everywhere.
    const std::string released = std::exchange(held_, {});
    ReadFree(released);
    ReadFree(spelling);
    return;
  }
  held_.clear();
  closes_value_ = state_ == State::kValue;
  if (closes_value_) EndValue();
  if (state_ == State::kTagName) RejectTag();
  if (state_ == State::kInvokeName) rejected_invoke_ = true;
  if (state_ == State::kParameterKey || state_ == State::kParameterForm) {
    malformed_->Add(MalformedKind::kBadParameter);
  }
  BeginTag(closes ? TagForm::kClose : TagForm::kOpen);
}

void ToolSection::ReadFree(std::string_view text) {
  size_t offset = 0;
  while (offset < text.size()) {
    switch (state_) {
      case State::kBetweenTags:
      case State::kDone:
        offset = ReadBetweenTags(text, offset);
        break;
      case State::kTagName:
        offset = ReadTagName(text, offset);
        break;
      case State::kInvokeName:
        offset = ReadInvokeName(text, offset);
        break;
      case State::kParameterKey:
        offset = ReadParameterKey(text, offset);
        break;
      case State::kParameterForm:
        offset = ReadParameterForm(text, offset);
        break;
      case State::kValue:
        WriteValue(text.substr(offset));
        return;
    }
  }
}

size_t ToolSection::ReadBetweenTags(std::string_view text, size_t offset) {
  if (expect_tag_end_) {
    expect_tag_end_ = false;
    if (text[offset] == '>') return offset + 1;
  }
  if (!gap_is_junk_ &&
      !std::all_of(text.begin() + static_cast<std::ptrdiff_t>(offset), text.end(), IsBlank)) {
    gap_is_junk_ = true;
    malformed_->Add(MalformedKind::kJunk);
  }
  return text.size();
}

void ToolSection::BeginTag(TagForm form) {
  state_ = State::kTagName;
  tag_form_ = form;
  partial_.clear();
}

size_t ToolSection::ReadTagName(std::string_view text, size_t offset) {
  const auto& heads = tag_form_ == TagForm::kOpen ? kOpenHeads : kCloseHeads;
  for (; offset < text.size(); ++offset) {
    if (partial_.empty() && text[offset] == ' ') {
      partial_.push_back(' ');  // the space of the V4.1 spelling
      continue;
    }
    partial_ += text[offset];
    std::string_view name = partial_;
    if (name.front() == ' ') name.remove_prefix(1);
    const auto match = std::find_if(heads.begin(), heads.end(),
                                    [&](std::string_view head) { return StartsWith(head, name); });
    if (match == heads.end()) {
      RejectTag();
      return offset;  // the byte that does not fit is text between tags
    }
    if (match->size() == name.size()) {
      if (tag_form_ == TagForm::kOpen) {
        OpenTag(*match);
      } else {
        CloseTag(*match);
      }
      return offset + 1;
    }
  }
  return offset;
}

void ToolSection::RejectTag() {
  std::string_view name = partial_;
  if (!name.empty() && name.front() == ' ') name.remove_prefix(1);
  if (tag_form_ == TagForm::kOpen && StartsWith(name, kInvokeName)) {
    rejected_invoke_ = true;
  } else if (tag_form_ == TagForm::kOpen && StartsWith(name, kParameterName) && in_call_) {
    malformed_->Add(MalformedKind::kBadParameter);
  } else {
    malformed_->Add(MalformedKind::kJunk);
  }
  LeaveTag();
  gap_is_junk_ = true;
}

void ToolSection::LeaveTag() {
  state_ = State::kBetweenTags;
  partial_.clear();
  expect_tag_end_ = false;
  gap_is_junk_ = false;
}

void ToolSection::SkipTag() {
  LeaveTag();
  expect_tag_end_ = true;
}

void ToolSection::OpenTag(std::string_view head) {
  if (head == kInvokeHead && !in_call_) {
    state_ = State::kInvokeName;
    partial_.clear();
    return;
  }
  if (head == kParameterHead && in_call_) {
    state_ = State::kParameterKey;
    partial_.clear();
    return;
  }
  const bool is_calls = head == kCallsName || head == kCallsNameV4;
  SkipTag();
  if (is_calls) return;
  malformed_->Add(MalformedKind::kJunk);
  gap_is_junk_ = true;
}

void ToolSection::CloseTag(std::string_view name) {
  if (name == kParameterName || (name == kInvokeName && !in_call_)) {
    SkipTag();
    return;
  }
  if (in_call_) EndCall();
  if (name == kInvokeName) {
    SkipTag();
  } else {
    EndBlock();
  }
}

size_t ToolSection::ReadInvokeName(std::string_view text, size_t offset) {
  const size_t end = text.find('"', offset);
  partial_ += text.substr(offset, end == std::string_view::npos ? end : end - offset);
  if (end == std::string_view::npos) return text.size();
  in_call_ = true;
  num_arguments_ = 0;
  keys_.clear();
  ++num_calls_;
  sink_->OnCallStart(partial_);
  SkipTag();
  return end + 1;
}

size_t ToolSection::ReadParameterKey(std::string_view text, size_t offset) {
  // The end mark may have begun in the key read so far.
  const size_t search_from =
      partial_.size() < kKeyEnd.size() ? 0 : partial_.size() - kKeyEnd.size();
  const size_t size_before = partial_.size();
  partial_ += text.substr(offset);
  const size_t end = partial_.find(kKeyEnd, search_from);
  if (end == std::string::npos) return text.size();
  const size_t num_read = end + kKeyEnd.size() - size_before;
  key_ = partial_.substr(0, end);
  partial_.clear();
  state_ = State::kParameterForm;
  return offset + num_read;
}

size_t ToolSection::ReadParameterForm(std::string_view text, size_t offset) {
  for (; offset < text.size(); ++offset) {
    partial_ += text[offset];
    const bool is_string = partial_ == kStringForm;
    if (is_string || partial_ == kJsonForm) {
      OpenParameter(is_string);
      return offset + 1;
    }
    if (!StartsWith(kStringForm, partial_) && !StartsWith(kJsonForm, partial_)) {
      malformed_->Add(MalformedKind::kBadParameter);
      LeaveTag();
      gap_is_junk_ = true;
      return offset;
    }
  }
  return offset;
}

void ToolSection::BeginArgument() {
  scratch_ = num_arguments_ == 0 ? "{\"" : ", \"";
  ++num_arguments_;
}

void ToolSection::OpenParameter(bool is_string) {
  BeginArgument();
  // The key stands as it was written, as in the reference.
  scratch_ += key_;
  scratch_ += is_string ? "\": \"" : "\": ";
  sink_->OnArguments(scratch_);
  if (!keys_.insert(key_).second) malformed_->Add(MalformedKind::kDuplicateParameter);
  LeaveTag();
  state_ = State::kValue;
  value_is_string_ = is_string;
  if (!is_string) value_check_ = std::make_unique<JsonValueCheck>();
}

void ToolSection::WriteValue(std::string_view text) {
  if (!value_is_string_) {
    value_check_->Push(text);
    sink_->OnArguments(text);
    return;
  }
  scratch_.clear();
  AppendJsonEscaped(text, &scratch_);
  sink_->OnArguments(scratch_);
}

void ToolSection::EndValue() {
  if (value_is_string_) {
    sink_->OnArguments("\"");
  } else if (!value_check_->Finish()) {
    malformed_->Add(MalformedKind::kBadJsonValue);
  }
}

void ToolSection::EndCall() {
  sink_->OnArguments(num_arguments_ == 0 ? "{}" : "}");
  sink_->OnCallEnd();
  in_call_ = false;
}

void ToolSection::EndBlock() {
  if (rejected_invoke_) {
    malformed_->Add(num_calls_ == 0 ? MalformedKind::kMalformedBlock : MalformedKind::kJunk);
  }
  SkipTag();
  state_ = State::kDone;
}

void ToolSection::Finish() {
  if (!held_.empty()) {
    const std::string released = std::exchange(held_, {});
    ReadFree(released);
  }
  if (done()) return;
  if (in_call_) {
    FinishTruncatedCall();
    return;
  }
  if (state_ == State::kInvokeName || (num_calls_ == 0 && !rejected_invoke_)) {
    malformed_->Add(MalformedKind::kTruncatedOpener);
  } else if (num_calls_ > 0) {
    malformed_->Add(MalformedKind::kUnclosedBlock);
  }
  EndBlock();
}

void ToolSection::FinishTruncatedCall() {
  std::string_view name = partial_;
  if (!name.empty() && name.front() == ' ') name.remove_prefix(1);
  if (state_ == State::kTagName && tag_form_ == TagForm::kClose && !closes_value_ &&
      (StartsWith(kInvokeName, name) || StartsWith(kCallsName, name) ||
       StartsWith(kCallsNameV4, name))) {
    // The tag that was cut can only be the one that closes this call.
    EndCall();
    malformed_->Add(MalformedKind::kUnclosedBlock);
    state_ = State::kDone;
    return;
  }
  malformed_->Add(MalformedKind::kTruncatedCall);
  if (state_ == State::kParameterKey) WriteCutKey();
  if (state_ == State::kParameterForm) {
    BeginArgument();
    scratch_ += key_ + "\": ";
    sink_->OnArguments(scratch_);
  }
  state_ = State::kDone;
}

// As far as the reference writes a key that was cut: the key, its closing quote once read, and the
// separator once the blank behind the quote was read.
void ToolSection::WriteCutKey() {
  BeginArgument();
  const size_t quote = partial_.rfind('"');
  const bool closed =
      quote != std::string::npos && StartsWith(kKeyEnd, std::string_view(partial_).substr(quote));
  if (closed && partial_.size() - quote > 1) {
    scratch_ += partial_.substr(0, quote) + "\": ";
  } else {
    scratch_ += partial_;
  }
  sink_->OnArguments(scratch_);
}

}  // namespace deepinfer
