// Flags that every command with a model shares.
// Thread rule: main thread.
#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"
#include "engine/model_bundle.h"

namespace CLI {
class App;
}

namespace deepinfer {

// The mode of every command that serves or measures.
inline constexpr const char* kServingNumerics = "prod";

struct ModelFlags {
  std::string model;
  int threads = 0;
  std::string isa = "auto";
  std::string pin_threads = "auto";
  std::string numerics;
  bool verify_weights = false;

  // required: the positional MODEL must be given; else it defaults to the bundled demo model.
  // default_numerics: kServingNumerics, or "ref" for the oracle commands.
  void Register(CLI::App* command, bool required, const std::string& default_numerics);

  // The folder to open. not_found when no model was named and none is bundled.
  Result<std::filesystem::path> ModelDir() const;

  // --isa alone, for commands without a model.
  void RegisterIsa(CLI::App* command);

  // invalid_request for an unknown ISA or numerics mode, unsupported for an ISA that this CPU
  // lacks.
  Result<BundleOptions> Bundle() const;

  // Kernel level in use: --isa, or what auto stands for on this CPU. Errors as of Bundle.
  Result<IsaLevel> Isa() const;
};

// The demo model next to the binary: in the source tree, or under share/deepinfer.
Result<std::filesystem::path> BundledModelDir();

// "deepinfer-tiny" for ".../deepinfer-tiny/".
std::string FolderName(const std::filesystem::path& dir);

}  // namespace deepinfer
