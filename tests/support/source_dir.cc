#include "support/source_dir.h"

namespace deepinfer {

std::string SourceDir() { return DEEPINFER_SOURCE_DIR; }

}  // namespace deepinfer
