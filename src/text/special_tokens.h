// Ids of the added tokens the prompt format uses, looked up by string (encoding.md §3).
// Thread rule: values. Owner: whoever resolved them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/result.h"

namespace deepinfer {

class Tokenizer;

// Strings of the added tokens. The bars are U+FF5C and the joints U+2581.
inline constexpr std::string_view kBosString = "<｜begin▁of▁sentence｜>";
inline constexpr std::string_view kEosString = "<｜end▁of▁sentence｜>";
inline constexpr std::string_view kPadString = "<｜▁pad▁｜>";
inline constexpr std::string_view kSystemString = "<｜System｜>";
inline constexpr std::string_view kUserString = "<｜User｜>";
inline constexpr std::string_view kAssistantString = "<｜Assistant｜>";
inline constexpr std::string_view kThinkBeginString = "<think>";
inline constexpr std::string_view kThinkEndString = "</think>";
inline constexpr std::string_view kDsmlString = "｜DSML｜";
inline constexpr std::string_view kLatestReminderString = "<｜latest_reminder｜>";
inline constexpr std::string_view kFimHoleString = "<｜fim▁hole｜>";
inline constexpr std::string_view kFimBeginString = "<｜fim▁begin｜>";
inline constexpr std::string_view kFimEndString = "<｜fim▁end｜>";
inline constexpr std::string_view kActionString = "<｜action｜>";
inline constexpr std::string_view kQueryString = "<｜query｜>";
inline constexpr std::string_view kAuthorityString = "<｜authority｜>";
inline constexpr std::string_view kDomainString = "<｜domain｜>";
inline constexpr std::string_view kTitleString = "<｜title｜>";
inline constexpr std::string_view kReadUrlString = "<｜read_url｜>";
inline constexpr std::string_view kImageString = "<｜deepseek_image｜>";

struct SpecialTokens {
  int32_t bos = -1;
  int32_t eos = -1;
  int32_t pad = -1;
  int32_t system = -1;
  int32_t user = -1;
  int32_t assistant = -1;
  int32_t think_begin = -1;
  int32_t think_end = -1;
  int32_t dsml = -1;
  int32_t latest_reminder = -1;

  // Absent in vocabularies that lack them; `image` is required by a model with vision.
  std::optional<int32_t> image;
  std::optional<int32_t> fim_hole;
  std::optional<int32_t> fim_begin;
  std::optional<int32_t> fim_end;
  std::optional<int32_t> action;
  std::optional<int32_t> query;
  std::optional<int32_t> authority;
  std::optional<int32_t> domain;
  std::optional<int32_t> title;
  std::optional<int32_t> read_url;

  // Error: not_found naming the first required token the tokenizer lacks.
  static Result<SpecialTokens> Resolve(const Tokenizer& tokenizer);
};

}  // namespace deepinfer
