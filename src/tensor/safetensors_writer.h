// Writer of safetensors files for tools and tests.
// Thread rule: pure apart from the file system; callers do not write one path concurrently.
#pragma once

#include <map>
#include <span>
#include <string>

#include "base/status.h"
#include "tensor/safetensors.h"

namespace deepinfer {

// Writes the tensors to path through a temporary file beside it, synced and renamed, so a reader
// sees the old file or the new one. Wide elements come first and the data starts on 8 bytes, so
// every tensor is aligned for its type. invalid_request for content the reader would refuse
// (duplicate or non-UTF-8 names, sizes not matching shapes); unavailable when the system refuses.
Status WriteSafetensors(const std::string& path, std::span<const NamedTensor> tensors,
                        const std::map<std::string, std::string>& metadata = {});

}  // namespace deepinfer
