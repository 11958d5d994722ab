// Conversation -> segments of a prompt (encoding.md §6, §8, §11).
// Thread rule: pure functions.
#pragma once

#include <vector>

#include "text/conversation.h"
#include "text/segment.h"

namespace deepinfer {

// Knobs of the message-level API; the HTTP dialects use the defaults.
struct RenderOptions {
  bool add_begin_token = true;
  bool keep_reasoning = false;        // keep the reasoning of finished turns also without tools
  bool add_generation_header = true;  // off: the prompt ends behind the last turn
  // Turns before it were rendered earlier: neither they nor the head of the prompt are repeated.
  size_t first_turn = 0;
};

// Segments in prompt order; neighbouring text segments are already joined.
std::vector<Segment> Render(const Conversation& conversation, const RenderOptions& options = {});

}  // namespace deepinfer
