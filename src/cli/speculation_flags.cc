#include "cli/speculation_flags.h"

#include <CLI/CLI.hpp>
#include <utility>

#include "cli/calibration_file.h"
#include "cli/value_checks.h"

namespace deepinfer {

void SpeculationFlags::Register(CLI::App* c) {
  c->add_option("--spec", spec_,
                "dspark: the draft model proposes tokens where the checkpoint has one")
      ->check(CLI::IsMember({"dspark", "off"}))
      ->capture_default_str();
  c->add_option("--draft-tokens,--spec-depth", options_.draft_tokens,
                "Drafts of a request in one step at most")
      ->check(CLI::Range(0, 5))
      ->capture_default_str();
  c->add_option("--verify", verify_,
                "Drafts that are verified: scheduled by their worth, all, or up to the first whose "
                "confidence is below --confidence-threshold")
      ->check(CLI::IsMember({"scheduled", "fixed", "threshold"}))
      ->capture_default_str();
  c->add_option("--confidence-threshold", options_.confidence_threshold,
                "Least confidence of a draft under --verify threshold")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  CLI::Option* temperatures =
      c->add_option("--confidence-temperatures", options_.confidence_temperatures,
                    "Calibration: what the raw confidence of draft 1, 2, ... is divided by")
          ->check(Positive())
          ->delimiter(',');
  c->add_option("--confidence-calibration", calibration_file_,
                "File with these temperatures, from deepinfer calibrate")
      ->excludes(temperatures);
}

Result<SpeculationOptions> SpeculationFlags::Options() const {
  SpeculationOptions options = options_;
  options.enabled = spec_ == "dspark";
  options.verify = verify_ == "fixed"       ? VerifyPolicy::kFixed
                   : verify_ == "threshold" ? VerifyPolicy::kThreshold
                                            : VerifyPolicy::kScheduled;
  if (!calibration_file_.empty()) {
    Result<CalibrationFile> file = ReadCalibration(calibration_file_);
    if (!file.ok()) return file.status().Annotate("--confidence-calibration");
    options.confidence_temperatures = std::move(file->temperatures);
  }
  return options;
}

}  // namespace deepinfer
