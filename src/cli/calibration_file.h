// The file of a calibration of the confidence head: written by `calibrate`, read by the commands
// that run an engine (dspark.md §7).
// Thread rule: main thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace deepinfer {

struct CalibrationFile {
  std::vector<double> temperatures;  // of draft 1, 2, ...
  std::string dataset;               // what it was fitted on
  int64_t num_samples = 0;
  double ece_before = 0;  // mean expected calibration error over the drafts
  double ece_after = 0;
};

// One line of JSON.
std::string FormatCalibration(const CalibrationFile& file);

// invalid_request names what is wrong with the file: it must hold a list "temperatures" of positive
// numbers; whether their number fits the model shows when the engine starts.
Result<CalibrationFile> ReadCalibration(const std::string& path);

}  // namespace deepinfer
