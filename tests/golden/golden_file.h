// Arrays of a golden safetensors file.
// Thread rule: test thread.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "support/source_dir.h"
#include "tensor/safetensors.h"

namespace deepinfer {

inline std::string GoldenPath(const std::string& name) {
  return SourceDir() + "/tests/data/golden/" + name;
}

class GoldenFile {
 public:
  explicit GoldenFile(const std::string& name)
      : file_(SafetensorsFile::Open(GoldenPath(name + ".safetensors"))) {
    if (!file_.ok()) ADD_FAILURE() << file_.status().ToString();
  }

  bool Has(const std::string& name) const { return file_->Find(name) != nullptr; }

  template <typename T>
  std::vector<T> Get(const std::string& name) const {
    const TensorView* view = file_->Find(name);
    if (view == nullptr) {
      ADD_FAILURE() << "no array " << name;
      return {};
    }
    std::vector<T> out(view->size_bytes / sizeof(T));
    std::memcpy(out.data(), view->data, view->size_bytes);
    return out;
  }
  std::vector<float> Floats(const std::string& name) const { return Get<float>(name); }
  std::vector<int32_t> Ints(const std::string& name) const { return Get<int32_t>(name); }

 private:
  Result<SafetensorsFile> file_;
};

}  // namespace deepinfer
