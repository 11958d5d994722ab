// The secret and the name of a namespace: small files on which everything else depends, whatever
// crashed while they were made.
#include "kvcache/store_secret.h"

#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <thread>

#include "base/log.h"
#include "kvcache/store_folders.h"
#include "support/kv_store_fixture.h"

namespace deepinfer {
namespace {

constexpr char kRoot[] = "/kv";
constexpr char kPath[] = "/kv/v1/secret";

// The disk is gone after so many operations that change it.
class FailingDisk {
 public:
  explicit FailingDisk(MemoryFileSystem* files) : files_(files) {}
  void FailAfter(int64_t num_changes) {
    files_->set_fault([this, num_changes](const std::string& operation, const std::string&) {
      if (operation == "read" || operation == "stat" || operation == "list") return OkStatus();
      return num_changes_++ < num_changes ? OkStatus() : Unavailable("the disk is gone");
    });
  }
  int64_t num_changes() const { return num_changes_; }

 private:
  MemoryFileSystem* files_;
  int64_t num_changes_ = 0;
};

void WriteContent(FileSystem* files, const std::string& path, size_t size, std::byte value) {
  (void)files->Remove(path);
  const std::vector<std::byte> content(size, value);
  const auto file = files->Open(path, OpenMode::kCreatePrivate, false);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE((*file)->WriteAt(content, 0).ok());
}

TEST(StoreSecretFile, StaysTheSameAndIsReadableByItsOwnerOnly) {
  MemoryFileSystem files;
  const auto first = LoadOrCreateSecret(&files, kRoot);
  const auto second = LoadOrCreateSecret(&files, kRoot);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(*first, *second);
  EXPECT_EQ(files.Stat(kPath)->permissions, 0600u);
}

TEST(StoreSecretFile, APowerCutAtAnyOperationLeavesAWholeOneOrNone) {
  MemoryFileSystem undisturbed;
  FailingDisk counter(&undisturbed);
  counter.FailAfter(INT64_MAX);
  ASSERT_TRUE(LoadOrCreateSecret(&undisturbed, kRoot).ok());
  ASSERT_GT(counter.num_changes(), 6);
  for (int64_t cut = 0; cut <= counter.num_changes(); ++cut) {
    for (uint32_t seed = 0; seed < 20; ++seed) {
      std::mt19937 random(seed);
      MemoryFileSystem files;
      FailingDisk disk(&files);
      disk.FailAfter(cut);
      const auto before = LoadOrCreateSecret(&files, kRoot);
      const auto image = files.PowerCut(&random);
      const auto info = image->Stat(kPath);
      EXPECT_TRUE(!info.ok() || info->size_bytes == 32) << cut;
      const auto after = LoadOrCreateSecret(image.get(), kRoot);
      ASSERT_TRUE(after.ok()) << after.status().ToString() << ", cut " << cut;
      EXPECT_TRUE(!before.ok() || *before == *after) << "one that was used is lost, cut " << cut;
    }
  }
}

TEST(StoreSecretFile, ATornOneIsMadeAnewWhileNoBlockDependsOnIt) {
  InitLogging(LogLevel::kOff, LogFormat::kText);
  for (const auto& [size, value] : {std::pair{0, 7}, {10, 7}, {32, 0}}) {
    KvStoreFixture fixture;
    fixture.Open();  // a namespace without segments
    fixture.store.reset();
    WriteContent(fixture.files.get(), kPath, static_cast<size_t>(size),
                 static_cast<std::byte>(value));
    const auto made = LoadOrCreateSecret(fixture.files.get(), kRoot);
    ASSERT_TRUE(made.ok()) << made.status().ToString() << ", " << size << " bytes";
    EXPECT_EQ(*LoadOrCreateSecret(fixture.files.get(), kRoot), *made);
  }
}

TEST(StoreSecretFile, ATornOneOnWhichBlocksDependIsAnErrorThatNamesTheFile) {
  KvStoreFixture fixture;
  fixture.Open();
  fixture.PublishChain(1, 3);
  fixture.store->Flush(true);
  for (const auto& [size, value] : {std::pair{0, 7}, {31, 7}, {32, 0}}) {
    WriteContent(fixture.files.get(), kPath, static_cast<size_t>(size),
                 static_cast<std::byte>(value));
    const Status status = LoadOrCreateSecret(fixture.files.get(), kRoot).status();
    EXPECT_EQ(status.code(), StatusCode::kDataCorruption) << size << " bytes";
    EXPECT_NE(status.message().find(kPath), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("delete it"), std::string::npos) << status.message();
    EXPECT_EQ(fixture.files->Stat(kPath)->size_bytes, size) << "it may still be looked at";
  }
  // What the message says.
  ASSERT_TRUE(fixture.files->Remove(kPath).ok());
  EXPECT_TRUE(LoadOrCreateSecret(fixture.files.get(), kRoot).ok());
}

TEST(StoreSecretFile, IsNotTakenFromAFileThatIsTooLong) {
  MemoryFileSystem files;
  ASSERT_TRUE(files.MakeDirectory(kRoot).ok() && files.MakeDirectory("/kv/v1").ok());
  WriteContent(&files, kPath, 33, std::byte{7});
  EXPECT_EQ(LoadOrCreateSecret(&files, kRoot).status().code(), StatusCode::kDataCorruption);
}

TEST(StoreSecretFile, ProcessesThatBeginTogetherAgree) {
  for (int round = 0; round < 20; ++round) {
    MemoryFileSystem files;
    std::optional<StoreSecret> other;
    std::thread second([&] {
      const auto secret = LoadOrCreateSecret(&files, kRoot);
      if (secret.ok()) other = *secret;
    });
    const auto secret = LoadOrCreateSecret(&files, kRoot);
    second.join();
    ASSERT_TRUE(secret.ok()) << secret.status().ToString();
    EXPECT_EQ(other, *secret);
  }
}

TEST(NamespaceFile, APowerCutAtAnyOperationLetsTheNextStartBegin) {
  const Sha256Digest space = Sha256("a namespace");
  for (int64_t cut = 0; cut < 12; ++cut) {
    for (uint32_t seed = 0; seed < 20; ++seed) {
      std::mt19937 random(seed);
      MemoryFileSystem files;
      FailingDisk disk(&files);
      disk.FailAfter(cut);
      (void)PrepareNamespace(&files, kRoot, space, "model = \"m\"\n");
      const auto image = files.PowerCut(&random);
      const Status status = PrepareNamespace(image.get(), kRoot, space, "model = \"m\"\n");
      EXPECT_TRUE(status.ok()) << status.ToString() << ", cut " << cut;
    }
  }
}

TEST(NamespaceFile, OneWithoutAWordIsWrittenAgainAndOneOfAnotherIsNot) {
  const Sha256Digest space = Sha256("a namespace");
  const std::string path = NamespaceFolder(kRoot, space) + "/ns.toml";
  MemoryFileSystem files;
  ASSERT_TRUE(PrepareNamespace(&files, kRoot, space, "").ok());
  const int64_t size = files.Stat(path)->size_bytes;
  for (const int64_t zeros : {int64_t{0}, size}) {
    WriteContent(&files, path, static_cast<size_t>(zeros), std::byte{0});
    EXPECT_TRUE(PrepareNamespace(&files, kRoot, space, "").ok());
    EXPECT_EQ(files.Stat(path)->size_bytes, size);
    EXPECT_EQ(files.At(path, 0), std::byte{'n'});
  }
  files.At(path, 20) ^= std::byte{1};
  EXPECT_EQ(PrepareNamespace(&files, kRoot, space, "").code(), StatusCode::kDataCorruption);
}

}  // namespace
}  // namespace deepinfer
