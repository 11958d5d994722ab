// A transport is tried out before others rely on it.

#include "transfer/self_test.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "transfer/extent.h"

namespace deepinfer {
namespace {

// Changes a byte of every extent after the second.
class BrokenPath final : public ExtentPath {
 public:
  explicit BrokenPath(std::unique_ptr<ExtentPath> path) : path_(std::move(path)) {}
  Status Send(const Extent& extent, std::span<const std::byte> bytes,
              SocketDeadline deadline) override {
    std::vector<std::byte> copy(bytes.begin(), bytes.end());
    if (++num_sent_ > 2) copy.back() ^= std::byte{1};
    return path_->Send(extent, copy, deadline);
  }
  bool needs_message() const override { return path_->needs_message(); }
  void Interrupt() override { path_->Interrupt(); }

 private:
  std::unique_ptr<ExtentPath> path_;
  int num_sent_ = 0;
};

class SelfTest : public ::testing::TestWithParam<SelfTestWay> {
 protected:
  void SetUp() override {
    if (GetParam() != SelfTestWay::kUcx) return;
    const auto context = OpenUcx({"tcp"});
    ASSERT_TRUE(context.ok()) << context.status().ToString();
    options_.ucx = *context;
  }
  SelfTestOptions options_{
      .way = GetParam(), .host = "127.0.0.1", .size_bytes = 20 * kExtentBytes + 999};
};

TEST_P(SelfTest, PassesWhereBytesArrive) {
  const Status status = TestTransport(options_);
  EXPECT_TRUE(status.ok()) << status.ToString();
}

TEST_P(SelfTest, FailsWhereTheyAreChanged) {
  options_.wrap_path = [](std::unique_ptr<ExtentPath> path) {
    return std::make_unique<BrokenPath>(std::move(path));
  };
  EXPECT_FALSE(TestTransport(options_).ok());
}

TEST_P(SelfTest, FailsWhereNobodyCanListen) {
  options_.host = "203.0.113.1";
  const bool listens = GetParam() == SelfTestWay::kTcp;
  EXPECT_EQ(TestTransport(options_).code(), listens ? StatusCode::kUnavailable : StatusCode::kOk);
}

std::vector<SelfTestWay> BuiltWays() {
  if (!HasUcx()) return {SelfTestWay::kSharedMemory, SelfTestWay::kTcp};
  return {SelfTestWay::kSharedMemory, SelfTestWay::kTcp, SelfTestWay::kUcx};
}

INSTANTIATE_TEST_SUITE_P(Ways, SelfTest, ::testing::ValuesIn(BuiltWays()));

}  // namespace
}  // namespace deepinfer
