#include "cli/calibration_file.h"

#include <boost/json.hpp>
#include <cmath>

#include "cli/io.h"

namespace deepinfer {

namespace json = boost::json;

namespace {

Result<std::vector<double>> ParseTemperatures(const json::object& object) {
  const json::value* list = object.if_contains("temperatures");
  if (list == nullptr || !list->is_array()) return InvalidRequest("temperatures must be a list");
  std::vector<double> temperatures;
  for (const json::value& item : list->get_array()) {
    const double t = item.is_number() ? item.to_number<double>() : 0.0;
    if (!(std::isfinite(t) && t > 0.0)) {
      return InvalidRequest("temperatures must be positive numbers");
    }
    temperatures.push_back(t);
  }
  return temperatures;
}

double NumberOr(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(name);
  return value != nullptr && value->is_number() ? value->to_number<double>() : 0.0;
}

}  // namespace

std::string FormatCalibration(const CalibrationFile& file) {
  return json::serialize(json::object{{"temperatures", json::value_from(file.temperatures)},
                                      {"dataset", file.dataset},
                                      {"num_samples", file.num_samples},
                                      {"ece_before", file.ece_before},
                                      {"ece_after", file.ece_after}});
}

Result<CalibrationFile> ReadCalibration(const std::string& path) {
  DI_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  boost::system::error_code error;
  const json::value value = json::parse(text, error);
  if (error || !value.is_object()) return InvalidRequest(path + ": not a JSON object");
  const json::object& object = value.get_object();
  Result<std::vector<double>> temperatures = ParseTemperatures(object);
  if (!temperatures.ok()) return temperatures.status().Annotate(path);
  CalibrationFile file;
  file.temperatures = *std::move(temperatures);
  if (const json::value* name = object.if_contains("dataset"); name && name->is_string()) {
    file.dataset = name->get_string();
  }
  file.num_samples = static_cast<int64_t>(NumberOr(object, "num_samples"));
  file.ece_before = NumberOr(object, "ece_before");
  file.ece_after = NumberOr(object, "ece_after");
  return file;
}

}  // namespace deepinfer
