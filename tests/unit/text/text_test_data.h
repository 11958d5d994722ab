// Loads the tokenizers and JSON files under tests/data and models for the tests of src/text/.
// Thread rule: tests run on one thread.
#pragma once

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "support/source_dir.h"
#include "text/tokenizer.h"

namespace deepinfer::testing {

inline std::filesystem::path SourcePath(std::string_view relative) {
  return std::filesystem::path(SourceDir()) / relative;
}

inline std::string ReadWholeFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

inline std::unique_ptr<Tokenizer> LoadTokenizer(std::string_view relative) {
  Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Load(SourcePath(relative));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

// The three vocabularies of the tests, each loaded once per process. Never null: a test that cannot
// load its tokenizer ends the process.
inline const Tokenizer& SharedTokenizer(std::string_view relative,
                                        std::unique_ptr<Tokenizer>* slot) {
  if (*slot == nullptr) *slot = LoadTokenizer(relative);
  if (*slot == nullptr) std::abort();
  return **slot;
}

inline const Tokenizer& ReleasedTokenizer() {
  static std::unique_ptr<Tokenizer> slot;
  return SharedTokenizer("tests/data/deepseek_v41", &slot);
}

inline const Tokenizer& DemoTokenizer() {
  static std::unique_ptr<Tokenizer> slot;
  return SharedTokenizer("models/deepinfer-tiny", &slot);
}

inline const Tokenizer& TinyTokenizer() {
  static std::unique_ptr<Tokenizer> slot;
  return SharedTokenizer("tests/data/text/tiny_tokenizer.json", &slot);
}

inline std::vector<int32_t> Encode(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> ids;
  tokenizer.EncodeText(text, &ids);
  return ids;
}

inline std::vector<int32_t> EncodeWithSpecials(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> ids;
  tokenizer.EncodeWithSpecials(text, &ids);
  return ids;
}

inline std::vector<int32_t> ToIds(const boost::json::value& array) {
  return boost::json::value_to<std::vector<int32_t>>(array);
}

}  // namespace deepinfer::testing
