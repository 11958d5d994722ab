// Files of web/, embedded in the binary by cmake/EmbedWeb.cmake.
// Thread rule: constants.
#pragma once

#include <span>
#include <string_view>

namespace deepinfer {

struct WebAsset {
  std::string_view name;  // as "chat.js"
  std::string_view bytes;
};

std::span<const WebAsset> WebAssets();

}  // namespace deepinfer
