// Facts of this build, set by CMake.
// Thread rule: constants.
#pragma once

#include <string_view>

namespace deepinfer {

// Short commit id; "unknown" outside a git checkout.
extern const std::string_view kCommit;
extern const std::string_view kBuildType;  // "Release", ...
extern const std::string_view kCompiler;   // "GNU 12.2.0"

#ifdef DEEPINFER_TEST_HOOKS
inline constexpr bool kHasTestHooks = true;
#else
inline constexpr bool kHasTestHooks = false;
#endif

}  // namespace deepinfer
