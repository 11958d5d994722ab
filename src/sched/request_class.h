// Service classes of requests, in order of urgency.
// Thread rule: values.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "sched/limits.h"

namespace deepinfer {

enum class RequestClass : uint8_t { kInteractive = 0, kAgent = 1, kBatch = 2 };

inline constexpr std::array<RequestClass, 3> kRequestClasses = {
    RequestClass::kInteractive, RequestClass::kAgent, RequestClass::kBatch};

constexpr std::string_view RequestClassName(RequestClass c) {
  switch (c) {
    case RequestClass::kInteractive:
      return "interactive";
    case RequestClass::kAgent:
      return "agent";
    case RequestClass::kBatch:
      return "batch";
  }
  return "interactive";
}

constexpr int64_t MaxWaitUs(RequestClass c) {
  switch (c) {
    case RequestClass::kInteractive:
      return kMaxWaitInteractiveUs;
    case RequestClass::kAgent:
      return kMaxWaitAgentUs;
    case RequestClass::kBatch:
      return kMaxWaitBatchUs;
  }
  return kMaxWaitInteractiveUs;
}

}  // namespace deepinfer
