// The identity of a checkpoint: every byte and every name counts, and notes save reading.

#include "model/weights_fingerprint.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>

#include "support/checkpoint_copy.h"
#include "unit/model/model_test_data.h"

namespace deepinfer {
namespace {

Sha256Digest FingerprintOf(const std::string& dir, const std::string& notes = {}) {
  const auto checkpoint = Checkpoint::Open(dir);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  const auto digest = WeightsFingerprint(*checkpoint, notes);
  EXPECT_TRUE(digest.ok()) << digest.status().ToString();
  return *digest;
}

Sha256Digest FingerprintAfter(const std::function<void(CheckpointCopy*)>& change) {
  CheckpointCopy copy(TestDataPath("golden/tiny_fp8fp4"));
  change(&copy);
  const TempDir dir;
  copy.Write(dir);
  return FingerprintOf(dir.path());
}

TEST(WeightsFingerprint, EqualFilesAreEqualWhereverTheyLie) {
  const auto nothing = [](CheckpointCopy*) {};
  EXPECT_EQ(FingerprintAfter(nothing), FingerprintAfter(nothing));
}

TEST(WeightsFingerprint, AByteOrANameMakesAnotherModel) {
  const Sha256Digest same = FingerprintAfter([](CheckpointCopy*) {});
  EXPECT_NE(FingerprintAfter(
                [](CheckpointCopy* copy) { copy->tensors.begin()->second.bytes.back() ^= 1; }),
            same);
  EXPECT_NE(FingerprintAfter([](CheckpointCopy* copy) {
              auto node = copy->tensors.extract(copy->tensors.begin());
              node.key() += "x";
              copy->tensors.insert(std::move(node));
            }),
            same);
}

TEST(WeightsFingerprint, NotesAreBelievedUntilAFileChanges) {
  CheckpointCopy copy(TestDataPath("golden/tiny_fp8fp4"));
  const TempDir dir, notes_dir;
  copy.Write(dir);
  const std::string notes = notes_dir.File("digests");
  const Sha256Digest first = FingerprintOf(dir.path(), notes);
  EXPECT_EQ(FingerprintOf(dir.path(), notes), first);
  // A wrong note shows that it is what the next start reads.
  std::string text;
  {
    std::ifstream in(notes);
    std::getline(in, text);
  }
  ASSERT_GT(text.size(), 64u);
  text[0] = text[0] == '0' ? '1' : '0';
  { std::ofstream(notes) << text << "\n"; }
  EXPECT_NE(FingerprintOf(dir.path(), notes), first);

  copy.tensors.begin()->second.bytes.back() ^= 1;
  copy.Write(dir);
  const Sha256Digest changed = FingerprintOf(dir.path(), notes);
  EXPECT_EQ(changed, FingerprintOf(dir.path()));
  EXPECT_NE(changed, first);
}

}  // namespace
}  // namespace deepinfer
