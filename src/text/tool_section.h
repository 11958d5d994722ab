// The tool section of generated text: tags with the marker ｜DSML｜ become calls with streamed JSON
// arguments; text between tags is dropped (encoding.md §13, §16). Both tag spellings are read.
// Thread rule: one object, one thread. Owner: the output parser of one choice.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>

#include "text/json_value_check.h"
#include "text/output_event.h"

namespace deepinfer {

// Receives what the section finds, in order.
class ToolCallSink {
 public:
  virtual void OnCallStart(std::string_view name) = 0;
  virtual void OnArguments(std::string_view fragment) = 0;
  virtual void OnCallEnd() = 0;

 protected:
  ~ToolCallSink() = default;
};

class ToolSection {
 public:
  // Both are borrowed and outlive this object.
  ToolSection(ToolCallSink* sink, MalformedCounts* malformed)
      : sink_(sink), malformed_(malformed) {}

  // Behind the marker of the block's opening tag, whose `<` the caller consumed.
  void EnterBehindMarker() { BeginTag(TagForm::kOpen); }

  void Text(std::string_view bytes);
  // The marker itself, `spelling` being its text. A tag if `<` or `</` stands before it.
  void Marker(std::string_view spelling);
  void Finish();

  // The block was closed: nothing behind it is read.
  bool done() const { return state_ == State::kDone; }

 private:
  enum class State : unsigned char {
    kBetweenTags,
    kTagName,        // behind the marker of a tag
    kInvokeName,     // behind `invoke name="`
    kParameterKey,   // behind `parameter name="`
    kParameterForm,  // behind `" string="`
    kValue,
    kDone,
  };
  enum class TagForm : unsigned char { kOpen, kClose };

  // Each consumes some of the text from `offset` and returns the offset behind it.
  size_t ReadBetweenTags(std::string_view text, size_t offset);
  size_t ReadTagName(std::string_view text, size_t offset);
  size_t ReadInvokeName(std::string_view text, size_t offset);
  size_t ReadParameterKey(std::string_view text, size_t offset);
  size_t ReadParameterForm(std::string_view text, size_t offset);
  void ReadFree(std::string_view text);  // text that holds no part of a tag

  void BeginTag(TagForm form);
  // The text in `partial_` cannot become the head of a tag that is read here.
  void RejectTag();
  void OpenTag(std::string_view head);
  void CloseTag(std::string_view name);
  void SkipTag();
  void LeaveTag();

  void OpenParameter(bool is_string);
  void BeginArgument();
  void WriteValue(std::string_view text);
  void EndValue();
  void EndCall();
  void EndBlock();
  void FinishTruncatedCall();
  void WriteCutKey();

  ToolCallSink* sink_;
  MalformedCounts* malformed_;
  State state_ = State::kBetweenTags;
  TagForm tag_form_ = TagForm::kOpen;
  std::string held_;     // `<` or `</` at the end of the text, which a marker would turn into a tag
  std::string partial_;  // tag name, tool name, key or form read so far
  std::string key_;      // of the parameter being opened
  std::string scratch_;
  int64_t num_arguments_ = 0;  // of the open call
  int64_t num_calls_ = 0;
  bool in_call_ = false;
  bool value_is_string_ = false;
  bool closes_value_ = false;     // the tag being read ended a value
  bool expect_tag_end_ = false;   // the next byte should be the `>` of the tag before
  bool gap_is_junk_ = false;      // this gap between tags was counted already
  bool rejected_invoke_ = false;  // an invoke tag with another attribute form
  std::unordered_set<std::string> keys_;
  std::unique_ptr<JsonValueCheck> value_check_;
};

}  // namespace deepinfer
