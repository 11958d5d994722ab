// Flags of other servers that operators carry over: harmless ones are accepted with a warning,
// those that have another name here are translated, and those that would mean something else are
// refused with the right name. Thread rule: main thread.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace deepinfer {

class SpeculationFlags;
struct ServerOptions;

class CompatibilityFlags {
 public:
  void Register(CLI::App* command);

  // Takes over what was translated. Before the rest of the flags is read.
  Status Apply(SpeculationFlags* speculation, ServerOptions* server) const;

 private:
  // A size that can only be one.
  struct Single {
    std::string name;
    int value = 1;
    std::string instead;
  };

  Status ApplyTemplateArguments(ServerOptions* server) const;
  Status ApplySpeculation(SpeculationFlags* speculation) const;

  std::string ignored_value_;
  bool ignored_flag_ = false;
  std::vector<CLI::Option*> ignored_;
  std::vector<Single> singles_;
  std::string vision_ = "off", eplb_ = "off";
  bool remote_images_ = false;
  std::string template_arguments_, speculative_config_;
};

}  // namespace deepinfer
