// One piece of a prompt. Only the renderer makes special ones, so text typed by users can never
// become a special token.
// Thread rule: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace deepinfer {

struct Segment {
  enum class Kind : unsigned char { kSpecial, kText, kImage };

  Kind kind = Kind::kText;
  std::string text;          // special: the token string; text: UTF-8; image: empty
  int32_t image_index = -1;  // image: index in the request's image list
  // Text that was sampled: its tokens, whatever the tokenizer would make of it. Else empty.
  std::vector<int32_t> ids = {};
  // Where a later prompt may part from this one: bytes of `text` in front of such places; for
  // anything but text only its end, 0. Ascending.
  std::vector<size_t> resume_points = {};

  bool operator==(const Segment&) const = default;
};

}  // namespace deepinfer
