// Flags of speculative decoding, shared by the commands that run an engine.
// Thread rule: main thread.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "engine/options.h"

namespace CLI {
class App;
}

namespace deepinfer {

class SpeculationFlags {
 public:
  void Register(CLI::App* command);
  // 0 to 5, in place of what the flags say.
  void SetDraftTokens(int32_t num) { options_.draft_tokens = num; }
  // invalid_request or not_found when the calibration cannot be read.
  Result<SpeculationOptions> Options() const;

 private:
  std::string spec_ = "dspark";
  std::string verify_ = "scheduled";
  std::string calibration_file_;
  SpeculationOptions options_;
};

}  // namespace deepinfer
