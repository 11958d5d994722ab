// The JSON header of a safetensors file, validated but not yet tied to data. Shared by the reader
// and the writer, so nothing is written that would not be read back.
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tensor/tensor_view.h"

namespace deepinfer {

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::kU8;
  Shape shape;
  uint64_t begin = 0;  // byte range [begin, end) within the data
  uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // ascending by (begin, end, name)
  std::map<std::string, std::string> metadata;
};

// Checks all that the header alone decides: JSON, fields, dtypes, shapes, range sizes, unique
// names, and ranges that follow each other from byte 0 without hole or overlap.
Result<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json);

}  // namespace deepinfer
