#include "base/load_progress.h"

namespace deepinfer {

std::string_view LoadPhaseName(LoadPhase phase) {
  switch (phase) {
    case LoadPhase::kStarting:
      return "starting";
    case LoadPhase::kTokenizer:
      return "tokenizer";
    case LoadPhase::kWeights:
      return "weights";
    case LoadPhase::kWarmup:
      return "warmup";
    case LoadPhase::kReady:
      return "ready";
    case LoadPhase::kFailed:
      return "failed";
  }
  return "unknown";
}

}  // namespace deepinfer
