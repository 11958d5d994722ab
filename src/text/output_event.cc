#include "text/output_event.h"

namespace deepinfer {

std::string_view MalformedKindName(MalformedKind kind) {
  switch (kind) {
    case MalformedKind::kNoThinkEnd:
      return "no_think_end";
    case MalformedKind::kBlockInReasoning:
      return "block_in_reasoning";
    case MalformedKind::kStrayThinkEnd:
      return "stray_think_end";
    case MalformedKind::kUnclosedBlock:
      return "unclosed_block";
    case MalformedKind::kTruncatedCall:
      return "truncated_call";
    case MalformedKind::kTruncatedOpener:
      return "truncated_opener";
    case MalformedKind::kMalformedBlock:
      return "malformed_block";
    case MalformedKind::kJunk:
      return "junk";
    case MalformedKind::kDuplicateParameter:
      return "duplicate_parameter";
    case MalformedKind::kBadJsonValue:
      return "bad_json_value";
    case MalformedKind::kBadParameter:
      return "bad_parameter";
  }
  return "unknown";
}

}  // namespace deepinfer
