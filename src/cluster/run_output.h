// Where the events of a run of a worker go.
// Thread rule: any thread; events of one run come one at a time.
#pragma once

#include <cstdint>
#include <string>

#include "engine/request.h"

namespace deepinfer {

class RunOutput {
 public:
  virtual ~RunOutput() = default;

  virtual void SendEvent(const std::string& request_id, uint32_t attempt, TokenEvent event) = 0;
};

}  // namespace deepinfer
