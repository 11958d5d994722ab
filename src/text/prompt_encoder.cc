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

// Text that is encoded in one piece, with the places in it that are looked for.
class TextRun {
 public:
  void Add(const Segment& segment) {
    for (const size_t point : segment.resume_points) points_.push_back(text_.size() + point);
    text_.append(segment.text);
  }

  void Encode(const Tokenizer& tokenizer, std::vector<int32_t>* ids,
              std::vector<int32_t>* resume_points) {
    size_t token = ids->size();
    if (!text_.empty()) tokenizer.EncodeText(text_, ids);
    size_t num_bytes = 0;
    for (const size_t point : points_) {
      while (token < ids->size()) {
        const size_t end = num_bytes + tokenizer.TokenBytes((*ids)[token]).size();
        if (end > point) break;
        num_bytes = end;
        ++token;
      }
      if (resume_points != nullptr) resume_points->push_back(static_cast<int32_t>(token));
    }
    text_.clear();
    points_.clear();
  }

 private:
  std::string text_;
  std::vector<size_t> points_;
};

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
                                            const std::vector<Segment>& segments,
                                            std::vector<int32_t>* resume_points) {
  std::vector<int32_t> ids;
  TextRun run;
  const auto end_segment = [&](const Segment& segment) {
    if (resume_points == nullptr || segment.resume_points.empty()) return;
    resume_points->push_back(static_cast<int32_t>(ids.size()));
  };
  for (const Segment& segment : segments) {
    if (segment.kind == Segment::Kind::kText && segment.ids.empty()) {
      run.Add(segment);
      continue;
    }
    run.Encode(tokenizer, &ids, resume_points);
    if (segment.kind == Segment::Kind::kText) {
      ids.insert(ids.end(), segment.ids.begin(), segment.ids.end());
      end_segment(segment);
      continue;
    }
    const std::string_view token =
        segment.kind == Segment::Kind::kImage ? kImageString : std::string_view(segment.text);
    const std::optional<int32_t> id = tokenizer.FindAdded(token);
    if (!id) return Unsupported(fmt::format("the model's tokenizer has no token {}", token));
    ids.push_back(*id);
    end_segment(segment);
  }
  run.Encode(tokenizer, &ids, resume_points);
  return ids;
}

}  // namespace deepinfer
