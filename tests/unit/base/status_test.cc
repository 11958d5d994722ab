#include "base/status.h"

#include <gtest/gtest.h>

#include "base/result.h"

namespace deepinfer {
namespace {

Result<int> ParsePositive(int x) {
  if (x <= 0) return InvalidRequest("x must be positive");
  return x;
}

Result<int> AddOne(int x) {
  DI_ASSIGN_OR_RETURN(int y, ParsePositive(x));
  return y + 1;
}

TEST(Status, AnnotateKeepsTheCodeAndPrefixesTheMessage) {
  Status s = NotFound("tensor a").Annotate("shard 3");
  EXPECT_EQ(s.code(), StatusCode::kNotFound);
  EXPECT_EQ(s.message(), "shard 3: tensor a");
  EXPECT_TRUE(OkStatus().Annotate("x").ok());
}

TEST(Result, AssignOrReturnPropagatesTheError) {
  ASSERT_TRUE(AddOne(4).ok());
  EXPECT_EQ(*AddOne(4), 5);
  EXPECT_EQ(AddOne(-1).status().code(), StatusCode::kInvalidRequest);
}

}  // namespace
}  // namespace deepinfer
