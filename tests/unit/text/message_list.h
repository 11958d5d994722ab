// Message lists of the message-level vectors -> Conversation. The HTTP dialects have their own
// readers; this one knows the fields of those vectors only.
// Thread rule: tests run on one thread.
#pragma once

#include <boost/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "text/conversation.h"
#include "text/renderer.h"

namespace deepinfer::testing {

struct MessageList {
  Conversation conversation;
  RenderOptions options;
  std::vector<boost::json::value> images;  // the blocks, by image_index
};

// Nothing if the list is one that the vectors mark as an error.
std::optional<MessageList> ReadMessageList(const boost::json::object& test_case);

}  // namespace deepinfer::testing
