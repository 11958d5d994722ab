#include "tensor/mapped_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "support/temp_dir.h"

namespace deepinfer {
namespace {

std::string Text(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

TEST(MappedFileTest, MapsTheContent) {
  const TempDir dir;
  Result<MappedFile> file = MappedFile::Open(dir.Write("weights", "hello"));
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ(Text(*file), "hello");
  EXPECT_EQ(file->path(), dir.File("weights"));
}

TEST(MappedFileTest, EmptyFileIsAnEmptySpan) {
  const TempDir dir;
  Result<MappedFile> file = MappedFile::Open(dir.Write("empty", ""));
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_TRUE(file->bytes().empty());
  file->Advise(MapAdvice::kWillNeed);
  EXPECT_TRUE(file->Prefault(4096, {}).ok());
}

TEST(MappedFileTest, ErrorsNameThePath) {
  const TempDir dir;
  const Status missing = MappedFile::Open(dir.File("absent")).status();
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  EXPECT_NE(missing.message().find(dir.File("absent")), std::string::npos) << missing.message();

  const Status directory = MappedFile::Open(dir.path()).status();
  EXPECT_EQ(directory.code(), StatusCode::kDataCorruption);
  EXPECT_NE(directory.message().find(dir.path()), std::string::npos) << directory.message();
}

TEST(MappedFileTest, MoveTransfersTheMapping) {
  const TempDir dir;
  Result<MappedFile> a = MappedFile::Open(dir.Write("a", "first"));
  Result<MappedFile> b = MappedFile::Open(dir.Write("b", "second"));
  ASSERT_TRUE(a.ok() && b.ok());
  MappedFile moved = *std::move(a);
  EXPECT_EQ(Text(moved), "first");
  moved = *std::move(b);
  EXPECT_EQ(Text(moved), "second");
}

TEST(MappedFileTest, ContentOutlivesTheName) {
  const TempDir dir;
  Result<MappedFile> file = MappedFile::Open(dir.Write("gone", "still here"));
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(std::filesystem::remove(dir.File("gone")));
  EXPECT_EQ(Text(*file), "still here");
}

TEST(MappedFileTest, ReadingAnewInHugePagesKeepsTheContent) {
  const TempDir dir;
  std::string content(size_t{5} << 20, '\0');
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 7 + i / 4096);
  Result<MappedFile> file = MappedFile::Open(dir.Write("large", content));
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(file->Prefault(1 << 20, {}).ok());  // in small pages
  file->UseHugePages();
  ASSERT_TRUE(file->Prefault(4 << 20, {}).ok());
  EXPECT_EQ(Text(*file), content);
  // Only whole huge pages of the file, where the file system has them.
  EXPECT_LE(file->HugePageBytes(), content.size());
  EXPECT_EQ(file->HugePageBytes() % (2 << 20), 0u);
}

TEST(MappedFileTest, PrefaultReportsEveryChunkUpToTheEnd) {
  const TempDir dir;
  Result<MappedFile> file = MappedFile::Open(dir.Write("big", std::string(40'000, 'x')));
  ASSERT_TRUE(file.ok());
  for (const MapAdvice advice : {MapAdvice::kNormal, MapAdvice::kSequential, MapAdvice::kRandom,
                                 MapAdvice::kWillNeed, MapAdvice::kHugePages}) {
    file->Advise(advice);
  }
  std::vector<uint64_t> done;
  const Status status = file->Prefault(10'000, [&](uint64_t done_bytes, uint64_t total_bytes) {
    EXPECT_EQ(total_bytes, 40'000u);
    done.push_back(done_bytes);
    return true;
  });
  ASSERT_TRUE(status.ok()) << status.ToString();
  ASSERT_GE(done.size(), 3u);  // 10,000 bytes round up to whole pages
  for (size_t i = 1; i < done.size(); ++i) EXPECT_GT(done[i], done[i - 1]);
  EXPECT_EQ(done.back(), 40'000u);
}

TEST(MappedFileTest, PrefaultStopsWhenAsked) {
  const TempDir dir;
  Result<MappedFile> file = MappedFile::Open(dir.Write("big", std::string(100'000, 'x')));
  ASSERT_TRUE(file.ok());
  int calls = 0;
  const Status status = file->Prefault(1, [&](uint64_t, uint64_t) { return ++calls < 2; });
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
  EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace deepinfer
