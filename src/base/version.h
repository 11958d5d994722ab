// Version of the build, set by CMake.
// Thread rule: constants.
#pragma once

#include <string_view>

namespace deepinfer {

inline constexpr std::string_view kVersion = DEEPINFER_VERSION;

}  // namespace deepinfer
