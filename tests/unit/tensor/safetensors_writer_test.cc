#include "tensor/safetensors_writer.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "support/temp_dir.h"

namespace deepinfer {
namespace {

NamedTensor Tensor(std::string name, DType dtype, const Shape& shape,
                   const std::vector<uint8_t>& bytes) {
  return {std::move(name),
          {dtype, shape, reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()}};
}

size_t NumFiles(const TempDir& dir) {
  const std::filesystem::directory_iterator files(dir.path());
  return static_cast<size_t>(std::distance(begin(files), end(files)));
}

bool SameTensor(const TensorView& a, const TensorView& b) {
  return a.dtype == b.dtype && a.shape == b.shape && std::ranges::equal(a.bytes(), b.bytes());
}

TEST(SafetensorsWriterTest, WhatIsWrittenReadsBackAligned) {
  const TempDir dir;
  const std::vector<uint8_t> odd = {1, 2, 3};
  const std::vector<uint8_t> wide(24, 7);
  const std::vector<uint8_t> half = {4, 5};
  const std::vector<NamedTensor> tensors = {
      Tensor("z.odd", DType::kF8E4M3, {3}, odd), Tensor("a.half", DType::kBF16, {}, half),
      Tensor("m.wide", DType::kF64, {3, 1}, wide), Tensor("empty", DType::kF32, {0, 4}, {})};
  const std::string path = dir.File("out.safetensors");
  const Status status = WriteSafetensors(path, tensors, {{"format", "pt"}, {"quote", "\"\n"}});
  ASSERT_TRUE(status.ok()) << status.ToString();

  Result<SafetensorsFile> file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  ASSERT_EQ(file->tensors().size(), tensors.size());
  for (const NamedTensor& tensor : tensors) {
    ASSERT_NE(file->Find(tensor.name), nullptr) << tensor.name;
    EXPECT_TRUE(SameTensor(*file->Find(tensor.name), tensor.view)) << tensor.name;
  }
  EXPECT_TRUE(file->Find("m.wide")->As<double>().ok());
  EXPECT_TRUE(file->Find("a.half")->As<uint16_t>().ok());
  EXPECT_EQ(file->metadata().at("quote"), "\"\n");
  EXPECT_EQ(NumFiles(dir), 1u) << "the temporary file must be gone";
}

TEST(SafetensorsWriterTest, ReplacesAnOpenFileWithoutDisturbingItsReader) {
  const TempDir dir;
  const std::vector<uint8_t> old_bytes = {1};
  const std::vector<uint8_t> new_bytes = {2};
  const std::string path = dir.File("out.safetensors");
  ASSERT_TRUE(WriteSafetensors(path, {{Tensor("a", DType::kU8, {1}, old_bytes)}}).ok());
  Result<SafetensorsFile> reader = SafetensorsFile::Open(path);
  ASSERT_TRUE(reader.ok());
  ASSERT_TRUE(WriteSafetensors(path, {{Tensor("a", DType::kU8, {1}, new_bytes)}}).ok());
  EXPECT_EQ(reader->Find("a")->bytes()[0], 1);
  EXPECT_EQ(SafetensorsFile::Open(path)->Find("a")->bytes()[0], 2);
}

TEST(SafetensorsWriterTest, RefusesWhatCouldNotBeReadAndLeavesNoFile) {
  const TempDir dir;
  const std::string path = dir.File("out.safetensors");
  const std::vector<uint8_t> bytes = {1, 2, 3, 4};
  const std::vector<std::vector<NamedTensor>> refused = {
      {Tensor("a", DType::kU8, {4}, bytes), Tensor("a", DType::kF32, {1}, bytes)},
      {Tensor("a", DType::kU8, {3}, bytes)},
      {Tensor("__metadata__", DType::kU8, {4}, bytes)},
      {Tensor("bad\xff", DType::kU8, {4}, bytes)},
      {Tensor(std::string(5000, 'n'), DType::kU8, {4}, bytes)},
  };
  for (const std::vector<NamedTensor>& tensors : refused) {
    const Status status = WriteSafetensors(path, tensors);
    EXPECT_EQ(status.code(), StatusCode::kInvalidRequest) << status.ToString();
    EXPECT_EQ(NumFiles(dir), 0u);
  }
}

TEST(SafetensorsWriterTest, UnwritableDirectoryIsAnError) {
  const TempDir dir;
  const Status status = WriteSafetensors(dir.File("absent/out.safetensors"), {});
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("absent/out.safetensors"), std::string::npos);
}

RC_GTEST_PROP(SafetensorsWriterProperty, AnyTensorsRoundTrip, ()) {
  const auto names = *rc::gen::container<std::set<std::string>>(
      rc::gen::container<std::string>(rc::gen::inRange<char>(0, 127)));
  std::vector<std::vector<uint8_t>> storage;
  std::vector<NamedTensor> tensors;
  for (const std::string& name : names) {
    const DType dtype = static_cast<DType>(*rc::gen::inRange(0, kNumDTypes));
    auto dims =
        *rc::gen::resize(Shape::kMaxRank - 1,
                         rc::gen::container<std::vector<int64_t>>(rc::gen::inRange<int64_t>(0, 4)));
    dims.push_back(8);  // whole bytes for the sub-byte types
    const Shape shape{std::span<const int64_t>(dims)};
    const uint64_t size_bytes = *TensorSizeBytes(dtype, shape);
    storage.push_back(
        *rc::gen::container<std::vector<uint8_t>>(size_bytes, rc::gen::arbitrary<uint8_t>()));
    tensors.push_back(Tensor(name, dtype, shape, storage.back()));
  }
  const TempDir dir;
  const std::string path = dir.File("out.safetensors");
  const Status status = WriteSafetensors(path, tensors);
  RC_ASSERT(status.ok());
  Result<SafetensorsFile> file = SafetensorsFile::Open(path);
  RC_ASSERT(file.ok());
  RC_ASSERT(file->tensors().size() == tensors.size());
  for (const NamedTensor& tensor : tensors) {
    const TensorView* view = file->Find(tensor.name);
    RC_ASSERT(view != nullptr);
    RC_ASSERT(SameTensor(*view, tensor.view));
  }
}

}  // namespace
}  // namespace deepinfer
