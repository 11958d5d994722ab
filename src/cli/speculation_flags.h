// Flags of speculative decoding, shared by the commands that run an engine.
// Thread rule: main thread.
#pragma once

#include <string>
#include <vector>

#include "engine/options.h"

namespace CLI {
class App;
}

namespace deepinfer {

class SpeculationFlags {
 public:
  void Register(CLI::App* command);
  SpeculationOptions Options() const;

 private:
  std::string spec_ = "dspark";
  std::string verify_ = "scheduled";
  SpeculationOptions options_;
};

}  // namespace deepinfer
