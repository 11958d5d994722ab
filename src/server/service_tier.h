// Which class of service a request asks for, and what its answer says about it (docs/api.md
// section 3). Thread rule: pure functions.
#pragma once

#include <string_view>

#include "sched/request_class.h"
#include "server/chat_request.h"

namespace deepinfer {

// A tier that names a class decides; else the priority does, lower first.
inline RequestClass ServiceClass(const RequestLabels& labels) {
  const std::string_view tier = labels.service_tier;
  if (tier == "flex" || tier == "batch") return RequestClass::kBatch;
  if (tier == "priority" || tier == "fast" || tier == "scale") return RequestClass::kInteractive;
  if (labels.priority <= 0) return RequestClass::kInteractive;
  return labels.priority == 1 ? RequestClass::kAgent : RequestClass::kBatch;
}

// The tier that served a request for this one: nothing goes ahead of the default.
inline std::string_view TierUsed(std::string_view asked) {
  return asked == "flex" || asked == "batch" ? asked : "default";
}

}  // namespace deepinfer
