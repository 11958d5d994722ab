// Segments -> prompt string, special ranges and token ids.
// Thread rule: pure functions; the tokenizer is only read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/renderer.h"

namespace deepinfer {

class Tokenizer;

// The string the prompt shows for an image; ids are the same whatever the spelling.
inline constexpr std::string_view kImagePlaceholder = "<｜deepseek_image｜>";
inline constexpr std::string_view kImagePlaceholderOfVectors = "<｜image｜>";

struct PromptText {
  std::string prompt;
  // Half-open ranges of code points of `prompt` that are real special tokens, image placeholders
  // included; everything else is plain text whatever it looks like.
  std::vector<std::pair<int64_t, int64_t>> special_ranges;
  std::vector<int32_t> image_indexes;  // request image of each placeholder, in prompt order
};

PromptText BuildPromptText(const std::vector<Segment>& segments,
                           std::string_view image_placeholder = kImagePlaceholder);

// One id per special segment and image, text in between encoded without added tokens.
// resume_points: null, or takes how many tokens stand in front of each resume point, ascending; one
// inside a token counts as in front of it.
// unsupported: the tokenizer lacks a special token the prompt needs (an image on a text model).
Result<std::vector<int32_t>> EncodeSegments(const Tokenizer& tokenizer,
                                            const std::vector<Segment>& segments,
                                            std::vector<int32_t>* resume_points = nullptr);

}  // namespace deepinfer
