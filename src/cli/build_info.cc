#include "cli/build_info.h"

namespace deepinfer {

const std::string_view kCommit = DEEPINFER_COMMIT;
const std::string_view kBuildType = DEEPINFER_BUILD_TYPE;
const std::string_view kCompiler = DEEPINFER_COMPILER;

}  // namespace deepinfer
