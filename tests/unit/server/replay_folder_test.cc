#include "server/replay_folder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "server/replay_store.h"
#include "support/fake_clock.h"
#include "support/temp_dir.h"

namespace deepinfer {
namespace {

namespace fs = std::filesystem;

const ReplayOwner kOurs{{1}, 7};
const ReplayOwner kTheirs{{2}, 8};
// Far from the ages of files, which the system's clock gives.
constexpr int64_t kWeek = int64_t{7} * 24 * 3600;

class ReplayFolderTest : public ::testing::Test {
 protected:
  std::unique_ptr<ReplayFolder> Open(size_t max_files = 1000) {
    return ReplayFolder::Open({.folder = folder_,
                               .max_files = max_files,
                               .utc_now_s = [this] { return SystemNow() + shift_s_; }})
        .value();
  }
  static int64_t SystemNow() {
    return std::chrono::duration_cast<std::chrono::seconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
  }
  static std::shared_ptr<const std::vector<int32_t>> Ids(std::vector<int32_t> ids) {
    return std::make_shared<const std::vector<int32_t>>(std::move(ids));
  }
  std::vector<fs::path> Files() const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
    return files;
  }

  TempDir dir_;
  const std::string folder_ = dir_.File("replay");
  int64_t shift_s_ = 0;
};

TEST_F(ReplayFolderTest, AnotherProcessFindsTurnsByAnyOfTheirCalls) {
  const auto writer = Open();
  writer->Keep(kOurs, {"a", "b"}, Ids({1, -2, 129'279}), 0);
  writer->Flush();
  const auto reader = Open();
  for (const char* call : {"a", "b"}) {
    const auto turn = reader->Find(kOurs, call);
    ASSERT_TRUE(turn.has_value());
    EXPECT_EQ(turn->ids, (std::vector<int32_t>{1, -2, 129'279}));
  }
  EXPECT_FALSE(reader->Find(kOurs, "c"));
  EXPECT_FALSE(reader->Find(kTheirs, "a"));
  // Whoever may not see it does not find it by naming the tenant either.
  EXPECT_FALSE(reader->Find({kTheirs.scope, kOurs.tenant_tag}, "a"));
}

TEST_F(ReplayFolderTest, FilesAreOfTheirOwnerAlone) {
  const auto writer = Open();
  writer->Keep(kOurs, {"../../a"}, Ids({1}), 0);
  writer->Flush();
  const std::vector<fs::path> files = Files();
  ASSERT_EQ(files.size(), 1u);
  EXPECT_EQ(fs::status(files[0]).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(fs::status(folder_).permissions(), fs::perms::owner_all);
}

TEST_F(ReplayFolderTest, DamagedFilesAreNoTurns) {
  const auto folder = Open();
  folder->Keep(kOurs, {"a"}, Ids({1, 2, 3, 4}), 0);
  folder->Flush();
  const fs::path file = Files().at(0);
  std::ifstream in(file, std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(in), {}};
  const auto write = [&](const std::string& bytes) {
    std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
  };
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 0x10);
    write(changed);
    EXPECT_FALSE(folder->Find(kOurs, "a")) << "byte " << at;
    write(whole.substr(0, at));
    EXPECT_FALSE(folder->Find(kOurs, "a")) << "first " << at << " bytes";
  }
  write(whole + "x");
  EXPECT_FALSE(folder->Find(kOurs, "a"));
  write(whole);
  EXPECT_TRUE(folder->Find(kOurs, "a"));
}

TEST_F(ReplayFolderTest, TurnsEndWithTheirLifetime) {
  const auto folder = Open();
  folder->Keep(kOurs, {"short"}, Ids({1}), 3600);
  folder->Keep(kOurs, {"long"}, Ids({1}), 0);
  folder->Flush();
  shift_s_ = 3500;
  EXPECT_TRUE(folder->Find(kOurs, "short"));
  shift_s_ = 3700;
  EXPECT_FALSE(folder->Find(kOurs, "short"));
  EXPECT_TRUE(folder->Find(kOurs, "long"));
  shift_s_ = kWeek + 10;
  EXPECT_FALSE(folder->Find(kOurs, "long"));
  // The next start removes the files too.
  EXPECT_EQ(Files().size(), 2u);
  (void)Open();
  EXPECT_TRUE(Files().empty());
}

TEST_F(ReplayFolderTest, TheOldestFilesGoBeyondTheMost) {
  {
    const auto folder = Open();
    for (int i = 0; i < 10; ++i) folder->Keep(kOurs, {std::to_string(i)}, Ids({i}), 0);
    folder->Flush();
  }
  // All are of one second: their order is made here.
  for (const fs::path& file : Files()) {
    const auto turn = [&] {
      std::ifstream in(file, std::ios::binary);
      return std::string{std::istreambuf_iterator<char>(in), {}};
    }();
    const int age_s = 100 - turn.at(24);
    fs::last_write_time(file, fs::file_time_type::clock::now() - std::chrono::seconds(age_s));
  }
  (void)Open(/*max_files=*/3);
  const auto folder = Open();
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(folder->Find(kOurs, std::to_string(i)).has_value(), i >= 7) << i;
  }
}

TEST_F(ReplayFolderTest, AnErasedTenantIsGoneFromDiskAndFromTheMemoryOfServers) {
  FakeClock clock;
  ReplayStore server(clock);
  server.Use(Open());
  server.Keep(kOurs, {"a"}, {1});
  server.Keep(kTheirs, {"b"}, {2});
  server.Flush();
  ASSERT_NE(server.Find(kOurs, "a"), nullptr);
  EXPECT_EQ(EraseKeptTurns(folder_, kOurs.tenant_tag).value(), 1);
  EXPECT_EQ(server.Find(kOurs, "a"), nullptr);
  EXPECT_NE(server.Find(kTheirs, "b"), nullptr);
  EXPECT_EQ(Open()->Find(kOurs, "a").has_value(), false);
  // What comes later is kept again.
  shift_s_ = 5;
  server.Keep(kOurs, {"c"}, {3});
  EXPECT_NE(server.Find(kOurs, "c"), nullptr);
  EXPECT_EQ(EraseKeptTurns(folder_ + "-none", 1).value(), 0);
}

TEST_F(ReplayFolderTest, AStoreFindsWhatAnotherKeptButNotWhatWasNotToBeWritten) {
  FakeClock clock;
  ReplayStore one(clock), other(clock);
  one.Use(Open());
  other.Use(Open());
  one.Keep(kOurs, {"a", "b"}, {1, 2, 3});
  one.Keep(kOurs, {"secret"}, {4}, /*persists=*/false);
  one.Flush();
  const SampledIds found = other.Find(kOurs, "b");
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(*found, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(other.Find(kOurs, "b"), found);  // from memory now
  EXPECT_EQ(other.Find(kOurs, "secret"), nullptr);
  EXPECT_NE(one.Find(kOurs, "secret"), nullptr);
  // In memory it lives no longer than on disk.
  clock.Advance(kWeek * 1'000'000 + 1);
  EXPECT_EQ(one.Find(kOurs, "secret"), nullptr);
}

TEST_F(ReplayFolderTest, AFullQueueDropsAndADiskThatRefusesIsCounted) {
  const auto folder = ReplayFolder::Open({.folder = folder_, .max_queued_bytes = 10}).value();
  folder->Keep(kOurs, {"a"}, Ids({1, 2, 3}), 0);
  EXPECT_EQ(folder->num_dropped(), 1);
  fs::remove_all(folder_);
  std::ofstream(folder_) << "a file in the place of the folder";
  folder->Keep(kOurs, {"a"}, Ids({1}), 0);
  folder->Flush();
  EXPECT_EQ(folder->num_dropped(), 2);
}

TEST(ReplayFolder, AFolderThatCannotBeIsAnError) {
  const auto folder = ReplayFolder::Open({.folder = "/dev/null/replay"});
  ASSERT_FALSE(folder.ok());
  EXPECT_NE(folder.status().message().find("/dev/null/replay"), std::string::npos);
}

}  // namespace
}  // namespace deepinfer
