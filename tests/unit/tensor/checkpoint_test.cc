#include "tensor/checkpoint.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "support/temp_dir.h"
#include "tensor/safetensors_writer.h"

namespace deepinfer {
namespace {

constexpr char kIndexName[] = "model.safetensors.index.json";

// A shard of one-byte tensors; the value of each is its position.
void WriteShard(const TempDir& dir, const std::string& file,
                const std::vector<std::string>& names) {
  std::vector<uint8_t> bytes(names.size());
  std::vector<NamedTensor> tensors;
  for (size_t i = 0; i < names.size(); ++i) {
    bytes[i] = static_cast<uint8_t>(i);
    tensors.push_back({names[i], {DType::kU8, {1}, reinterpret_cast<std::byte*>(&bytes[i]), 1}});
  }
  const Status status = WriteSafetensors(dir.File(file), tensors);
  ASSERT_TRUE(status.ok()) << status.ToString();
}

// Two shards with an index that fits them.
void WriteTwoShards(const TempDir& dir) {
  WriteShard(dir, "s1.safetensors", {"embed.weight", "layers.0.w"});
  WriteShard(dir, "s2.safetensors", {"head.weight"});
  dir.Write(kIndexName, R"({"metadata":{"total_size":3,"more":[{"deep":null}]},"weight_map":{
      "layers.0.w":"s1.safetensors","head.weight":"s2.safetensors",
      "embed.weight":"s1.safetensors"}})");
}

std::string OpenError(const TempDir& dir) {
  const Status status = Checkpoint::Open(dir.path()).status();
  return status.ok() ? "opened" : status.ToString();
}

void ExpectOpenError(const TempDir& dir, const std::vector<std::string>& parts) {
  const std::string error = OpenError(dir);
  for (const std::string& part : parts) {
    EXPECT_NE(error.find(part), std::string::npos) << "\"" << part << "\" not in: " << error;
  }
}

TEST(CheckpointTest, OpensShardsOfTheIndex) {
  const TempDir dir;
  WriteTwoShards(dir);
  Result<Checkpoint> checkpoint = Checkpoint::Open(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  EXPECT_EQ(checkpoint->num_shards(), 2u);
  ASSERT_EQ(checkpoint->num_tensors(), 3u);
  EXPECT_EQ(checkpoint->name(0), "embed.weight");
  EXPECT_EQ(checkpoint->name(1), "head.weight");
  EXPECT_EQ(checkpoint->name(2), "layers.0.w");
  EXPECT_EQ(checkpoint->view(2).bytes()[0], 1);
  EXPECT_EQ(checkpoint->total_bytes(), 3u);
  EXPECT_EQ(checkpoint->shard_path(static_cast<size_t>(checkpoint->ShardOf("head.weight"))),
            dir.File("s2.safetensors"));
  EXPECT_EQ(checkpoint->ShardOf("embed.weight"), checkpoint->ShardOf("layers.0.w"));
  EXPECT_EQ(checkpoint->ShardOf("absent"), -1);
  EXPECT_EQ(checkpoint->Find("layers.0"), nullptr);
}

TEST(CheckpointTest, ViewsSurviveAMove) {
  const TempDir dir;
  WriteTwoShards(dir);
  Result<Checkpoint> opened = Checkpoint::Open(dir.path());
  ASSERT_TRUE(opened.ok());
  const TensorView view = *opened->Find("layers.0.w");
  const Checkpoint moved = *std::move(opened);
  EXPECT_EQ(view.bytes()[0], 1);
  EXPECT_EQ(moved.Find("layers.0.w")->data, view.data);
}

TEST(CheckpointTest, OpensASingleFileOfAnyName) {
  const TempDir dir;
  WriteShard(dir, "weights.safetensors", {"a"});
  dir.Write("config.json", "{}");
  EXPECT_TRUE(Checkpoint::Open(dir.path()).ok()) << OpenError(dir);
  WriteShard(dir, "model.safetensors", {"b"});
  Result<Checkpoint> checkpoint = Checkpoint::Open(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << "model.safetensors is taken before others";
  EXPECT_NE(checkpoint->Find("b"), nullptr);
  EXPECT_EQ(checkpoint->Find("a"), nullptr);
}

TEST(CheckpointTest, RequireMatchesNameDtypeAndShapeExactly) {
  const TempDir dir;
  WriteTwoShards(dir);
  Result<Checkpoint> checkpoint = Checkpoint::Open(dir.path());
  ASSERT_TRUE(checkpoint.ok());
  EXPECT_TRUE(checkpoint->Require("head.weight", DType::kU8, {1}).ok());
  EXPECT_TRUE(checkpoint->Require("head.weight", {DType::kI8, DType::kU8}, {1}).ok());

  const Status missing = checkpoint->Require("head", DType::kU8, {1}).status();
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  EXPECT_NE(missing.message().find("tensor \"head\" (U8 [1]) is missing"), std::string::npos)
      << missing.message();

  const Status dtype =
      checkpoint->Require("head.weight", {DType::kBF16, DType::kF8E8M0}, {1}).status();
  EXPECT_EQ(dtype.code(), StatusCode::kDataCorruption);
  EXPECT_NE(dtype.message().find("s2.safetensors: tensor \"head.weight\": expected BF16 or "
                                 "F8_E8M0 [1], found U8 [1]"),
            std::string::npos)
      << dtype.message();

  const Status shape = checkpoint->Require("head.weight", DType::kU8, {1, 1}).status();
  EXPECT_NE(shape.message().find("expected U8 [1, 1], found U8 [1]"), std::string::npos)
      << shape.message();
}

TEST(CheckpointTest, OnlySuccessfulRequireConsumes) {
  const TempDir dir;
  WriteTwoShards(dir);
  Result<Checkpoint> checkpoint = Checkpoint::Open(dir.path());
  ASSERT_TRUE(checkpoint.ok());
  EXPECT_EQ(checkpoint->UnconsumedNames().size(), 3u);
  EXPECT_NE(checkpoint->Find("embed.weight"), nullptr);
  EXPECT_FALSE(checkpoint->Require("embed.weight", DType::kF32, {1}).ok());
  ASSERT_TRUE(checkpoint->Require("head.weight", DType::kU8, {1}).ok());
  EXPECT_EQ(checkpoint->UnconsumedNames(),
            (std::vector<std::string_view>{"embed.weight", "layers.0.w"}));
}

TEST(CheckpointTest, PrefaultCoversAllShards) {
  const TempDir dir;
  WriteTwoShards(dir);
  Result<Checkpoint> checkpoint = Checkpoint::Open(dir.path());
  ASSERT_TRUE(checkpoint.ok());
  checkpoint->Advise(MapAdvice::kRandom);
  const uint64_t file_bytes = std::filesystem::file_size(dir.File("s1.safetensors")) +
                              std::filesystem::file_size(dir.File("s2.safetensors"));
  uint64_t last = 0;
  const Status status = checkpoint->Prefault(4096, [&](uint64_t done, uint64_t total) {
    EXPECT_EQ(total, file_bytes);
    EXPECT_GT(done, last);
    last = done;
    return true;
  });
  EXPECT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(last, file_bytes);
  EXPECT_EQ(checkpoint->Prefault(4096, [](uint64_t, uint64_t) { return false; }).code(),
            StatusCode::kCancelled);
}

TEST(CheckpointTest, OptionalPrefixIsRemoved) {
  const TempDir dir;
  WriteShard(dir, "s1.safetensors", {"model.layers.0.w", "head.weight"});
  dir.Write(kIndexName, R"({"weight_map":{"model.layers.0.w":"s1.safetensors",
                                          "head.weight":"s1.safetensors"}})");
  Result<Checkpoint> checkpoint = Checkpoint::Open(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  EXPECT_NE(checkpoint->Find("layers.0.w"), nullptr);
  EXPECT_EQ(checkpoint->Find("model.layers.0.w"), nullptr);
}

TEST(CheckpointTest, BothFormsOfANameAreAnError) {
  const TempDir dir;
  WriteShard(dir, "model.safetensors", {"model.layers.0.w", "layers.0.w"});
  ExpectOpenError(dir, {"model.safetensors", "tensor \"layers.0.w\"", "with and without"});
}

TEST(CheckpointTest, MissingDirectoryFilesAndIndex) {
  const TempDir dir;
  const Status absent = Checkpoint::Open(dir.File("absent")).status();
  EXPECT_EQ(absent.code(), StatusCode::kNotFound);
  EXPECT_NE(absent.message().find(dir.File("absent")), std::string::npos);
  ExpectOpenError(dir, {"not_found", dir.path(), "no .safetensors file"});
  WriteShard(dir, "a.safetensors", {"a"});
  WriteShard(dir, "b.safetensors", {"b"});
  ExpectOpenError(dir, {"2 .safetensors files but no model.safetensors.index.json"});
}

TEST(CheckpointTest, MissingShardsAreListedTogether) {
  const TempDir dir;
  WriteTwoShards(dir);
  std::filesystem::remove(dir.File("s1.safetensors"));
  std::filesystem::remove(dir.File("s2.safetensors"));
  ExpectOpenError(dir, {"not_found", "2 of 2 shards", "s1.safetensors, s2.safetensors"});
}

TEST(CheckpointTest, DirectoryInPlaceOfAShardIsRefused) {
  const TempDir dir;
  WriteTwoShards(dir);
  std::filesystem::remove(dir.File("s2.safetensors"));
  std::filesystem::create_directory(dir.File("s2.safetensors"));
  ExpectOpenError(dir, {"s2.safetensors", "not a regular file"});
}

TEST(CheckpointTest, IndexAndShardsMustListTheSameTensors) {
  {
    const TempDir dir;
    WriteTwoShards(dir);
    WriteShard(dir, "s2.safetensors", {"head.weight", "mtp.extra"});
    ExpectOpenError(dir, {kIndexName, "tensor \"mtp.extra\" of s2.safetensors is not listed"});
    WriteShard(dir, "s2.safetensors", {"zzz"});
    ExpectOpenError(dir, {"tensor \"head.weight\" is not in its shard s2.safetensors"});
  }
  const TempDir dir;
  WriteTwoShards(dir);
  WriteShard(dir, "s1.safetensors", {"layers.0.w", "head.weight"});
  WriteShard(dir, "s2.safetensors", {"embed.weight"});
  ExpectOpenError(dir, {"tensor \"embed.weight\" is not in its shard s1.safetensors"});
}

TEST(CheckpointTest, TensorInTwoShardsIsRefused) {
  const TempDir dir;
  WriteTwoShards(dir);
  WriteShard(dir, "s2.safetensors", {"head.weight", "layers.0.w"});
  ExpectOpenError(dir, {"s2.safetensors: tensor \"layers.0.w\" is also in s1.safetensors"});
}

TEST(CheckpointTest, DamagedShardIsNamed) {
  const TempDir dir;
  WriteTwoShards(dir);
  std::filesystem::resize_file(dir.File("s1.safetensors"),
                               std::filesystem::file_size(dir.File("s1.safetensors")) - 1);
  ExpectOpenError(dir, {"data_corruption", dir.File("s1.safetensors"), "truncated"});
}

struct HostileIndex {
  const char* label;
  const char* json;
  const char* expected_message;
};

void PrintTo(const HostileIndex& hostile, std::ostream* out) { *out << hostile.label; }

class HostileIndexTest : public ::testing::TestWithParam<HostileIndex> {};

TEST_P(HostileIndexTest, IsRefusedWithAReason) {
  const TempDir dir;
  WriteShard(dir, "s1.safetensors", {"a"});
  dir.Write(kIndexName, GetParam().json);
  ExpectOpenError(dir, {dir.File(kIndexName), GetParam().expected_message});
}

const HostileIndex kHostileIndexes[] = {
    {"Empty", "", "bad JSON"},
    {"Array", "[]", "must be a JSON object, found an array"},
    {"Number", "7", "must be a JSON object, found a number"},
    {"NoWeightMap", R"({"metadata":{"weight_map":{"a":"s1.safetensors"}}})",
     "\"weight_map\" is missing"},
    {"ArrayWeightMap", R"({"weight_map":[]})", "\"weight_map\" must be an object, found an array"},
    {"StringWeightMap", R"({"weight_map":"s1.safetensors"})",
     "\"weight_map\" must be an object, found a string"},
    {"WeightMapTwice", R"({"weight_map":{},"weight_map":{"a":"s1.safetensors"}})",
     "\"weight_map\" is given twice"},
    {"NumberShard", R"({"weight_map":{"a":1}})", "its shard must be a string, found a number"},
    {"NullShard", R"({"weight_map":{"a":null}})", "its shard must be a string, found null"},
    {"ObjectShard", R"({"weight_map":{"a":{}}})", "its shard must be a string, found an object"},
    {"ArrayShard", R"({"weight_map":{"a":["s1.safetensors"]}})",
     "its shard must be a string, found an array"},
    {"ParentPath", R"({"weight_map":{"a":"../../etc/passwd"}})",
     "tensor \"a\": shard \"../../etc/passwd\" is not the plain name"},
    {"ParentPathWithSuffix", R"({"weight_map":{"a":"../s1.safetensors"}})", "not the plain name"},
    {"AbsolutePath", R"({"weight_map":{"a":"/s1.safetensors"}})", "not the plain name"},
    {"Backslash", R"({"weight_map":{"a":"..\\s1.safetensors"}})", "not the plain name"},
    {"EmbeddedNul", R"({"weight_map":{"a":"x\u0000y.safetensors"}})", "not the plain name"},
    {"OtherSuffix", R"({"weight_map":{"a":"config.json"}})", "not the plain name"},
    {"SuffixOnly", R"({"weight_map":{"a":".safetensors"}})", "not the plain name"},
    {"EmptyShard", R"({"weight_map":{"a":""}})", "not the plain name"},
    {"TensorTwice", R"({"weight_map":{"a":"s1.safetensors","a":"s1.safetensors"}})",
     "tensor \"a\" is listed twice"},
    {"TensorTwiceByPrefix", R"({"weight_map":{"a":"s1.safetensors","model.a":"s1.safetensors"}})",
     "tensor \"a\" is listed twice"},
    {"UnknownTensor", R"({"weight_map":{"a":"s1.safetensors","b":"s1.safetensors"}})",
     "tensor \"b\" is not in its shard s1.safetensors"},
    {"BadUtf8", "{\"weight_map\":{\"a\xff\":\"s1.safetensors\"}}", "bad JSON"},
    {"Truncated", R"({"weight_map":{"a":"s1.safetensors")", "bad JSON"},
};

INSTANTIATE_TEST_SUITE_P(All, HostileIndexTest, ::testing::ValuesIn(kHostileIndexes),
                         [](const auto& param_info) { return param_info.param.label; });

TEST(CheckpointTest, EmptyWeightMapHoldsNothing) {
  const TempDir dir;
  WriteShard(dir, "s1.safetensors", {"a"});
  dir.Write(kIndexName, R"({"weight_map":{}})");
  Result<Checkpoint> checkpoint = Checkpoint::Open(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  EXPECT_EQ(checkpoint->num_tensors(), 0u);
}

TEST(CheckpointTest, DeeplyNestedIndexIsRefused) {
  const TempDir dir;
  dir.Write(kIndexName, "{\"metadata\":" + std::string(1'000'000, '['));
  ExpectOpenError(dir, {"bad JSON"});
}

}  // namespace
}  // namespace deepinfer
