// Throughput of the tokenizer on the released vocabulary, per kind of text, and the time to load
// it. usage: tokenizer_bench [--benchmark_filter=...]
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace deepinfer {
namespace {

constexpr size_t kTextBytes = size_t{1} << 20;

std::filesystem::path SourcePath(std::string_view relative) {
  return std::filesystem::path(DEEPINFER_SOURCE_DIR) / relative;
}

const Tokenizer& Released() {
  static const std::unique_ptr<Tokenizer> tokenizer = [] {
    Result<std::unique_ptr<Tokenizer>> loaded =
        Tokenizer::Load(SourcePath("tests/data/deepseek_v41"));
    if (!loaded.ok()) {
      std::fprintf(stderr, "%s\n", loaded.status().ToString().c_str());
      std::exit(1);
    }
    return *std::move(loaded);
  }();
  return *tokenizer;
}

std::string ReadWholeFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// All files below the folder with this extension, in order of their paths.
std::string FilesBelow(std::string_view folder, std::string_view extension) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(SourcePath(folder))) {
    if (entry.path().extension() == extension) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::string text;
  for (const std::filesystem::path& path : paths) text += ReadWholeFile(path);
  return text;
}

std::string RepeatToSize(const std::string& text) {
  std::string repeated;
  while (repeated.size() < kTextBytes && !text.empty()) repeated += text;
  return repeated;
}

// Vocabulary entries drawn at random with a bias to frequent ones: ids follow the order of merges,
// so this mixes languages, code and numbers as the vocabulary does.
std::string MixedText() {
  std::mt19937 random(1);
  std::exponential_distribution<double> id(1.0 / 8000);
  std::string text;
  while (text.size() < kTextBytes) {
    text += Released().TokenBytes(259 + static_cast<int32_t>(id(random)) % 127741);
  }
  return text;
}

void EncodeLoop(benchmark::State& state, const std::string& text) {
  std::vector<int32_t> ids;
  for (auto _ : state) {
    ids.clear();
    Released().EncodeText(text, &ids);
    benchmark::DoNotOptimize(ids.data());
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(text.size()));
  state.counters["bytes/token"] =
      static_cast<double>(text.size()) / static_cast<double>(ids.size());
}

void BM_EncodeMixed(benchmark::State& state) { EncodeLoop(state, MixedText()); }
void BM_EncodeRecordedCases(benchmark::State& state) {
  EncodeLoop(state,
             RepeatToSize(ReadWholeFile(SourcePath("tests/data/text/tokenizer_cases.json"))));
}
void BM_EncodeCode(benchmark::State& state) { EncodeLoop(state, FilesBelow("src", ".cc")); }
void BM_EncodeOneLetter(benchmark::State& state) {
  EncodeLoop(state, std::string(kTextBytes, 'a'));
}
void BM_EncodeRandomBytes(benchmark::State& state) {
  std::mt19937 random(1);
  std::string text;
  for (size_t i = 0; i < kTextBytes; ++i) text += static_cast<char>(random());
  EncodeLoop(state, text);
}

void BM_EncodeMixedWithSpecials(benchmark::State& state) {
  const std::string text = MixedText();
  std::vector<int32_t> ids;
  for (auto _ : state) {
    ids.clear();
    Released().EncodeWithSpecials(text, &ids);
    benchmark::DoNotOptimize(ids.data());
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(text.size()));
}

void BM_DecodeMixed(benchmark::State& state) {
  const std::string text = MixedText();
  std::vector<int32_t> ids;
  Released().EncodeText(text, &ids);
  for (auto _ : state) benchmark::DoNotOptimize(Released().Decode(ids));
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(text.size()));
}

void BM_LoadReleased(benchmark::State& state) {
  const std::filesystem::path path = SourcePath("tests/data/deepseek_v41/tokenizer.json");
  for (auto _ : state) {
    const auto tokenizer = Tokenizer::Load(path);
    if (!tokenizer.ok()) state.SkipWithError(tokenizer.status().ToString().c_str());
  }
  state.SetBytesProcessed(state.iterations() *
                          static_cast<int64_t>(std::filesystem::file_size(path)));
}

BENCHMARK(BM_EncodeMixed)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_EncodeRecordedCases)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_EncodeCode)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_EncodeOneLetter)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_EncodeRandomBytes)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_EncodeMixedWithSpecials)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_DecodeMixed)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_LoadReleased)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace deepinfer

BENCHMARK_MAIN();
