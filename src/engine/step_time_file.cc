#include "engine/step_time_file.h"

#include <filesystem>
#include <fstream>
#include <system_error>

namespace deepinfer {

Result<StepTimeModel> LoadStepTimes(const std::string& path) {
  std::ifstream in(path);
  if (!in) return NotFound("no step times in " + path);
  std::string line;
  std::getline(in, line);
  return StepTimeModel::FromText(line);
}

Status SaveStepTimes(const std::string& path, const StepTimeModel& model) {
  std::error_code error;
  const std::filesystem::path target(path);
  if (target.has_parent_path()) std::filesystem::create_directories(target.parent_path(), error);
  const std::string fresh = path + ".new";
  {
    std::ofstream out(fresh, std::ios::trunc);
    out << model.ToText() << '\n';
    out.flush();
    if (!out) return Unavailable("cannot write " + fresh);
  }
  std::filesystem::rename(fresh, target, error);
  return error ? Unavailable("cannot write " + path + ": " + error.message()) : OkStatus();
}

}  // namespace deepinfer
