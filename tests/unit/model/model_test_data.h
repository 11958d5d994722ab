// Configurations the model tests start from.
// Thread rule: test thread.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "model/config.h"
#include "support/source_dir.h"

namespace deepinfer {

inline std::string TestDataPath(const std::string& name) {
  return SourceDir() + "/tests/data/" + name;
}

inline std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

inline ModelConfig ParseConfig(const std::string& name) {
  Result<ModelConfig> config = ModelConfig::Parse(ReadText(TestDataPath(name)));
  if (!config.ok()) {
    ADD_FAILURE() << config.status().ToString();
    return {};
  }
  return *std::move(config);
}

inline ModelConfig ReleasedConfig() { return ParseConfig("configs/v41_flash.json"); }
inline ModelConfig TinyConfig() { return ParseConfig("golden/tiny_fp8fp4/config.json"); }

}  // namespace deepinfer
