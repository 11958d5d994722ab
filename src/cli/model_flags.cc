#include "cli/model_flags.h"

#include <CLI/CLI.hpp>

namespace deepinfer {

namespace fs = std::filesystem;

namespace {
constexpr const char* kBundledModel = "deepinfer-tiny";
}  // namespace

void ModelFlags::Register(CLI::App* command, bool required, const std::string& default_numerics) {
  numerics = default_numerics;
  command
      ->add_option("MODEL,-m,--model,--model-path", model,
                   required ? "Model folder (config.json, tokenizer.json, *.safetensors)"
                            : "Model folder; default: the bundled demo model")
      ->required(required);
  command->add_option("--threads", threads, "Compute threads; 0 = one per available core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  RegisterIsa(command);
  command
      ->add_option("--pin-threads", pin_threads,
                   "Keep compute threads on cores of their own: auto (with several memory nodes), "
                   "on, off")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str();
  command->add_option("--numerics", numerics, "Arithmetic: prod, ref_actq or ref")
      ->capture_default_str();
  command->add_flag("--verify-weights", verify_weights,
                    "Read all weights at load and refuse NaN codes");
}

void ModelFlags::RegisterIsa(CLI::App* command) {
  command
      ->add_option(
          "--isa", isa,
          "Kernel level: auto, scalar, avx2, avx512 or avx512_bf16; all give the same bits")
      ->capture_default_str();
}

Result<fs::path> ModelFlags::ModelDir() const {
  if (model.empty()) return BundledModelDir();
  std::error_code ec;
  if (!fs::is_directory(model, ec)) {
    return NotFound("'" + model +
                    "' is not a folder: MODEL must hold config.json, "
                    "tokenizer.json and the safetensors files");
  }
  return fs::path(model);
}

Result<BundleOptions> ModelFlags::Bundle() const {
  BundleOptions options;
  options.num_threads = threads;
  options.placement = pin_threads == "on"    ? ThreadPlacement::kPinned
                      : pin_threads == "off" ? ThreadPlacement::kScheduler
                                             : ThreadPlacement::kAuto;
  const std::optional<Numerics> mode = ParseNumerics(numerics);
  if (!mode) {
    return InvalidRequest("--numerics " + numerics + " is unknown: use prod, ref_actq or ref");
  }
  options.model.numerics = *mode;
  options.model.weight_checks.scan_codes = verify_weights;
  DI_ASSIGN_OR_RETURN(options.isa, Isa());
  return options;
}

Result<IsaLevel> ModelFlags::Isa() const {
  const IsaLevel highest = DetectIsaLevel();
  if (isa == "auto") return highest;
  const std::optional<IsaLevel> level = ParseIsaLevel(isa);
  if (!level) {
    return InvalidRequest("--isa " + isa +
                          " is unknown: use auto, scalar, avx2, avx512 or avx512_bf16");
  }
  if (*level > highest) {
    return Unsupported("--isa " + isa + ": this CPU offers " + std::string(IsaLevelName(highest)) +
                       " at most");
  }
  return *level;
}

Result<fs::path> BundledModelDir() {
  std::error_code ec;
  const fs::path binary = fs::read_symlink("/proc/self/exe", ec);
  for (fs::path dir = binary.parent_path(); !ec && !dir.empty(); dir = dir.parent_path()) {
    for (const char* place : {"models", "share/deepinfer/models"}) {
      const fs::path candidate = dir / place / kBundledModel;
      if (fs::exists(candidate / "config.json", ec)) return candidate;
    }
    if (dir == dir.root_path()) break;
  }
  return NotFound("the bundled demo model was not found beside the binary: name a MODEL folder");
}

std::string FolderName(const fs::path& dir) {
  const fs::path normal = fs::absolute(dir).lexically_normal();
  return normal.has_filename() ? normal.filename().string()
                               : normal.parent_path().filename().string();
}

}  // namespace deepinfer
