#include "text/prompt_encoder.h"

#include <fmt/format.h>

#include "text/special_tokens.h"
#include "text/tokenizer.h"

namespace deepinfer {
namespace {

int64_t CountCodePoints(std::string_view utf8) {
  int64_t count = 0;
  for (char c : utf8) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

}  // namespace

PromptText BuildPromptText(const std::vector<Segment>& segments,
                           std::string_view image_placeholder) {
  PromptText result;
  int64_t position = 0;
  for (const Segment& segment : segments) {
    const bool is_image = segment.kind == Segment::Kind::kImage;
    const std::string_view text = is_image ? image_placeholder : std::string_view(segment.text);
    const int64_t end = position + CountCodePoints(text);
    result.prompt.append(text);
    if (segment.kind != Segment::Kind::kText) result.special_ranges.emplace_back(position, end);
    if (is_image) result.image_indexes.push_back(segment.image_index);
    position = end;
  }
  return result;
}

Result<std::vector<int32_t>> EncodeSegments(const Tokenizer& tokenizer,
                                            const std::vector<Segment>& segments) {
  std::vector<int32_t> ids;
  std::string text;
  for (const Segment& segment : segments) {
    if (segment.kind == Segment::Kind::kText) {
      text.append(segment.text);
      continue;
    }
    if (!text.empty()) tokenizer.EncodeText(text, &ids);
    text.clear();
    const std::string_view token =
        segment.kind == Segment::Kind::kImage ? kImageString : std::string_view(segment.text);
    const std::optional<int32_t> id = tokenizer.FindAdded(token);
    if (!id) return Unsupported(fmt::format("the model's tokenizer has no token {}", token));
    ids.push_back(*id);
  }
  if (!text.empty()) tokenizer.EncodeText(text, &ids);
  return ids;
}

}  // namespace deepinfer
