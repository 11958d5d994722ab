#include "tensor/safetensors.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "support/temp_dir.h"
#include "unit/tensor/safetensors_image.h"

namespace deepinfer {
namespace {

Status ParseStatus(std::string_view header, size_t data_bytes) {
  const std::string image = SafetensorsImage(header, data_bytes);
  return ParseSafetensors(ImageBytes(image)).status();
}

TEST(SafetensorsTest, ReadsTensorsAndMetadata) {
  const std::string image =
      SafetensorsImage(R"({"__metadata__":{"format":"pt","note":"a\nb"},)"
                       R"("b":{"dtype":"U8","shape":[2,3],"data_offsets":[4,10]},)"
                       R"("a":{"data_offsets":[0,4],"shape":[],"dtype":"F32"},)"
                       R"("none":{"dtype":"BF16","shape":[5,0],"data_offsets":[4,4]}}  )",
                       10);
  Result<SafetensorsContent> content = ParseSafetensors(ImageBytes(image));
  ASSERT_TRUE(content.ok()) << content.status().ToString();
  ASSERT_EQ(content->tensors.size(), 3u);
  EXPECT_EQ(content->tensors[0].name, "a");
  EXPECT_EQ(content->tensors[0].view.dtype, DType::kF32);
  EXPECT_EQ(content->tensors[0].view.shape, Shape());
  EXPECT_EQ(content->tensors[1].name, "none");
  EXPECT_EQ(content->tensors[1].view.size_bytes, 0u);
  EXPECT_EQ(content->tensors[1].view.shape, Shape({5, 0}));
  EXPECT_EQ(content->tensors[2].name, "b");
  EXPECT_EQ(content->tensors[2].view.bytes()[0], 5);
  EXPECT_EQ(content->tensors[2].view.bytes().size(), 6u);
  EXPECT_EQ(content->metadata.at("note"), "a\nb");
}

TEST(SafetensorsTest, AcceptsAnEmptyFileOfTensors) {
  EXPECT_TRUE(ParseStatus("{}", 0).ok());
  EXPECT_TRUE(ParseStatus("{\"__metadata__\":{}}   ", 0).ok());
}

TEST(SafetensorsTest, NamesKeepEscapesAndNonAscii) {
  const std::string image =
      SafetensorsImage(R"({"\u00e4\"/x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1);
  Result<SafetensorsContent> content = ParseSafetensors(ImageBytes(image));
  ASSERT_TRUE(content.ok()) << content.status().ToString();
  EXPECT_EQ(content->tensors[0].name, "\xC3\xA4\"/x");
}

TEST(SafetensorsTest, SmallZeroPaddingAfterTheDataIsAccepted) {
  const std::string image =
      SafetensorsImage(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1);
  EXPECT_TRUE(ParseSafetensors(ImageBytes(image + std::string(4095, '\0'))).ok());
  EXPECT_FALSE(ParseSafetensors(ImageBytes(image + std::string(4096, '\0'))).ok());
  EXPECT_FALSE(ParseSafetensors(ImageBytes(image + "x")).ok());
}

TEST(SafetensorsTest, EveryTruncationIsRefused) {
  const std::string image =
      SafetensorsImage(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                       R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
                       12);
  ASSERT_TRUE(ParseSafetensors(ImageBytes(image)).ok());
  for (size_t size = 0; size < image.size(); ++size) {
    const Status status = ParseSafetensors(ImageBytes(image).first(size)).status();
    EXPECT_EQ(status.code(), StatusCode::kDataCorruption) << size;
  }
}

struct HostileHeader {
  const char* label;
  const char* header;
  const char* expected_message;
  StatusCode expected_code = StatusCode::kDataCorruption;
};

void PrintTo(const HostileHeader& hostile, std::ostream* out) { *out << hostile.label; }

class HostileHeaderTest : public ::testing::TestWithParam<HostileHeader> {};

// Each header describes 8 bytes of data unless its fault says otherwise.
TEST_P(HostileHeaderTest, IsRefusedWithAReason) {
  const Status status = ParseStatus(GetParam().header, 8);
  EXPECT_EQ(status.code(), GetParam().expected_code) << status.ToString();
  EXPECT_NE(status.message().find(GetParam().expected_message), std::string::npos)
      << status.message();
}

const HostileHeader kHostileHeaders[] = {
    {"NotAnObject", R"([1])", "does not start with '{'"},
    {"LeadingSpace", R"( {})", "does not start with '{'"},
    {"Unterminated", R"({"a":{"dtype":"U8")", "bad JSON"},
    {"TextAfterTheEnd", R"({} {})", "bad JSON"},
    {"TrailingComma", R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},})", "bad JSON"},
    {"BadUtf8", "{\"a\xff\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}", "bad JSON"},
    {"ControlCharacter", "{\"a\x01\":{}}", "bad JSON"},
    {"ScalarTensor", R"({"a":7})", "tensor \"a\": must be a JSON object, found a number"},
    {"ArrayTensor", R"({"a":[]})", "tensor \"a\": must be a JSON object, found an array"},
    {"NullTensor", R"({"a":null})", "tensor \"a\": must be a JSON object, found null"},
    {"EmptyTensor", R"({"a":{}})", "tensor \"a\": field \"dtype\" is missing"},
    {"NoShape", R"({"a":{"dtype":"U8","data_offsets":[0,8]}})", "\"shape\" is missing"},
    {"NoOffsets", R"({"a":{"dtype":"U8","shape":[8]}})", "\"data_offsets\" is missing"},
    {"UnknownField", R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8],"x":1}})",
     "tensor \"a\": unknown field \"x\""},
    {"FieldTwice", R"({"a":{"dtype":"U8","shape":[8],"shape":[8],"data_offsets":[0,8]}})",
     "field \"shape\" is given twice"},
    {"DtypeTwice", R"({"a":{"dtype":"U8","dtype":"U8","shape":[8],"data_offsets":[0,8]}})",
     "field \"dtype\" is given twice"},
    {"OffsetsTwice",
     R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8],"data_offsets":[0,8]}})",
     "field \"data_offsets\" is given twice"},
    {"UnknownDtype", R"({"a":{"dtype":"F13","shape":[8],"data_offsets":[0,8]}})",
     "tensor \"a\": unknown dtype \"F13\"", StatusCode::kUnsupported},
    {"LowerCaseDtype", R"({"a":{"dtype":"f32","shape":[2],"data_offsets":[0,8]}})",
     "unknown dtype \"f32\"", StatusCode::kUnsupported},
    {"NumericDtype", R"({"a":{"dtype":3,"shape":[8],"data_offsets":[0,8]}})",
     "\"dtype\" must be a string, found a number"},
    {"ObjectDtype", R"({"a":{"dtype":{},"shape":[8],"data_offsets":[0,8]}})",
     "\"dtype\" must be a string, found an object"},
    {"ScalarShape", R"({"a":{"dtype":"U8","shape":8,"data_offsets":[0,8]}})",
     "\"shape\" must be an array, found a number"},
    {"StringShape", R"({"a":{"dtype":"U8","shape":"8","data_offsets":[0,8]}})",
     "\"shape\" must be an array, found a string"},
    {"NegativeDimension", R"({"a":{"dtype":"U8","shape":[-8],"data_offsets":[0,8]}})",
     "\"shape\" must be a non-negative integer, found a negative number"},
    {"TwoNegativeDimensions", R"({"a":{"dtype":"U8","shape":[-2,-4],"data_offsets":[0,8]}})",
     "a negative number"},
    {"FractionalDimension", R"({"a":{"dtype":"U8","shape":[8.0],"data_offsets":[0,8]}})",
     "a number that is no 64-bit integer"},
    {"ExponentDimension", R"({"a":{"dtype":"U8","shape":[8e0],"data_offsets":[0,8]}})",
     "a number that is no 64-bit integer"},
    {"HugeDimension", R"({"a":{"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,8]}})",
     "a number that is no 64-bit integer"},
    {"DimensionBeyondInt64",
     R"({"a":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,8]}})", "is too large"},
    {"StringDimension", R"({"a":{"dtype":"U8","shape":["8"],"data_offsets":[0,8]}})",
     "found a string"},
    {"NestedShape", R"({"a":{"dtype":"U8","shape":[[8]],"data_offsets":[0,8]}})", "bad JSON"},
    {"TooManyDimensions",
     R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,8],"data_offsets":[0,8]}})",
     "more than 8 dimensions", StatusCode::kUnsupported},
    {"ProductOverflow",
     R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,8]}})", "overflows"},
    {"ProductOverflowHiddenByZero",
     R"({"a":{"dtype":"U8","shape":[4294967296,4294967296,0],"data_offsets":[0,0]}})", "overflows"},
    {"ItemSizeOverflow",
     R"({"a":{"dtype":"F64","shape":[2305843009213693953],"data_offsets":[0,8]}})", "overflows"},
    {"ProductWrapsToTheRightSize",
     R"({"a":{"dtype":"U8","shape":[4294967296,4294967296,8],"data_offsets":[0,8]}})", "overflows"},
    {"HalfByte", R"({"a":{"dtype":"F4","shape":[15],"data_offsets":[0,8]}})", "whole byte"},
    {"RangeTooShort", R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})",
     "tensor \"a\": F32 [3] needs 12 bytes, but its byte range [0, 8) has 8"},
    {"RangeTooLong", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}})",
     "needs 4 bytes, but its byte range [0, 8) has 8"},
    {"RangeBackwards", R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[8,0]}})",
     "ends before it begins"},
    {"RangeBeyondTheFile", R"({"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}})",
     "tensor \"a\": byte range [0, 9) exceeds the 8 bytes of data"},
    {"RangeFarBeyondTheFile",
     R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[9000000000000,9000000000000]}})",
     "belong to no tensor"},
    {"NegativeOffset", R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[-8,0]}})",
     "\"data_offsets\" must be a non-negative integer, found a negative number"},
    {"OneOffset", R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[8]}})", "exactly two numbers"},
    {"ThreeOffsets", R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8,8]}})",
     "exactly two numbers"},
    {"NameTwice",
     R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
     R"("a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
     "tensor \"a\": the name is given twice"},
    {"Overlap",
     R"({"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]},)"
     R"("b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
     "tensor \"b\": byte range [4, 8) overlaps tensor \"a\""},
    {"SameRange",
     R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},)"
     R"("b":{"dtype":"I8","shape":[8],"data_offsets":[0,8]}})",
     "overlaps"},
    {"EmptyInsideAnother",
     R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},)"
     R"("b":{"dtype":"U8","shape":[0],"data_offsets":[4,4]}})",
     "overlaps"},
    {"Hole",
     R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
     R"("b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
     "tensor \"b\": 1 bytes before its byte range"},
    {"HoleAtTheStart", R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
     "belong to no tensor"},
    {"UnusedData", R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
     "4 bytes after the last tensor"},
    {"MetadataNumber", R"({"__metadata__":{"x":1}})",
     "__metadata__: \"x\" must be a string, found a number"},
    {"MetadataNested", R"({"__metadata__":{"x":{}}})", "must be a string, found an object"},
    {"MetadataString", R"({"__metadata__":"x"})", "__metadata__: must be a JSON object"},
    {"MetadataTwice", R"({"__metadata__":{},"__metadata__":{}})", "__metadata__ is given twice"},
    {"MetadataKeyTwice", R"({"__metadata__":{"x":"1","x":"2"}})", "\"x\" is given twice"},
};

INSTANTIATE_TEST_SUITE_P(All, HostileHeaderTest, ::testing::ValuesIn(kHostileHeaders),
                         [](const auto& param_info) { return param_info.param.label; });

TEST(SafetensorsTest, HeaderLengthBeyondLimitOrFileIsRefused) {
  const std::string padding(100, ' ');
  for (const uint64_t length : {uint64_t{101}, uint64_t{99'999'999}, uint64_t{100'000'001},
                                uint64_t{1} << 63, UINT64_MAX, UINT64_MAX - 7}) {
    const std::string image = SafetensorsLength(length) + padding;
    const Status status = ParseSafetensors(ImageBytes(image)).status();
    EXPECT_EQ(status.code(), StatusCode::kDataCorruption) << length;
  }
}

TEST(SafetensorsTest, DeepNestingIsRefusedAtOnce) {
  std::string image = SafetensorsLength(kMaxSafetensorsHeaderBytes);
  image += "{\"a\":{\"shape\":";
  image.resize(8 + kMaxSafetensorsHeaderBytes, '[');
  EXPECT_EQ(ParseSafetensors(ImageBytes(image)).status().code(), StatusCode::kDataCorruption);
  image[8] = '[';
  EXPECT_EQ(ParseSafetensors(ImageBytes(image)).status().code(), StatusCode::kDataCorruption);
}

TEST(SafetensorsTest, MessagesStayShortAndPrintable) {
  const std::string name(3000, 'n');
  const Status status = ParseStatus("{\"\\u0007" + name + "\":{}}", 0);
  EXPECT_LT(status.message().size(), 400u);
  EXPECT_EQ(status.message().find('\a'), std::string::npos);
  EXPECT_FALSE(ParseStatus("{\"" + name + name + "\":{}}", 0).ok()) << "name above 4096 bytes";
}

TEST(SafetensorsTest, LfsPointerIsNamedAsSuch) {
  const Status status =
      ParseSafetensors(ImageBytes("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"))
          .status();
  EXPECT_NE(status.message().find("Git LFS"), std::string::npos) << status.message();
}

TEST(SafetensorsFileTest, OpensAndFindsByExactName) {
  const TempDir dir;
  const std::string path = dir.Write(
      "x.safetensors",
      SafetensorsImage(R"({"gate.bias":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                       R"("gate.bias_vl":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                       2));
  Result<SafetensorsFile> file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  ASSERT_NE(file->Find("gate.bias"), nullptr);
  EXPECT_EQ(file->Find("gate.bias")->bytes()[0], 1);
  EXPECT_EQ(file->Find("gate.bias_vl")->bytes()[0], 2);
  EXPECT_EQ(file->Find("gate.bia"), nullptr);
  EXPECT_EQ(file->path(), path);
}

TEST(SafetensorsFileTest, ErrorsNameTheFile) {
  const TempDir dir;
  const std::string path = dir.Write("bad.safetensors", "short");
  const Status status = SafetensorsFile::Open(path).status();
  EXPECT_EQ(status.code(), StatusCode::kDataCorruption);
  EXPECT_NE(status.message().find(path), std::string::npos) << status.message();
  EXPECT_EQ(SafetensorsFile::Open(dir.File("absent")).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(SafetensorsFile::Open(dir.Write("empty.safetensors", "")).status().code(),
            StatusCode::kDataCorruption);
}

}  // namespace
}  // namespace deepinfer
