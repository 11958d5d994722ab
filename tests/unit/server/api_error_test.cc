#include "server/api_error.h"

#include <gtest/gtest.h>

#include "server/cache_controls.h"
#include "server/image_url.h"
#include "server/json_body.h"

namespace deepinfer {
namespace {

TEST(ApiError, StatusCodesMapToHttp) {
  const std::pair<StatusCode, int> map[] = {
      {StatusCode::kInvalidRequest, 400}, {StatusCode::kUnsupported, 400},
      {StatusCode::kNotFound, 404},       {StatusCode::kResourceExhausted, 429},
      {StatusCode::kDeadline, 504},       {StatusCode::kCancelled, 499},
      {StatusCode::kUnavailable, 503},    {StatusCode::kDataCorruption, 500},
      {StatusCode::kInternal, 500},
  };
  for (const auto& [code, http] : map) {
    const ApiError error = ApiErrorFromStatus(Status(code, "detail"));
    EXPECT_EQ(error.status, http) << StatusCodeName(code);
    EXPECT_EQ(error.message == "detail", http != 500) << StatusCodeName(code);
    EXPECT_EQ(error.retry_after_s > 0, http == 429 || http == 503) << StatusCodeName(code);
  }
}

TEST(ApiError, EveryOverloadLooksTheSame) {
  const ApiError from_status = ApiErrorFromStatus(Unavailable("busy"));
  for (const ApiError& error : {from_status, OverloadedError("busy"), QueueTimeoutError()}) {
    EXPECT_EQ(error.status, 503);
    EXPECT_EQ(error.type, "server_error");
    EXPECT_EQ(error.retry_after_s, from_status.retry_after_s);
  }
  EXPECT_EQ(from_status.code, "server_overloaded");
  EXPECT_EQ(QueueTimeoutError().code, "queue_timeout");
}

TEST(ApiError, BodiesHaveTheFieldsOfTheirDialect) {
  ApiError error;
  error.message = "a \"b\"\n";
  EXPECT_EQ(OpenAiErrorBody(error),
            R"({"error":{"message":"a \"b\"\n","type":"invalid_request_error","param":null,)"
            R"("code":"invalid_value"}})");
  error.param = "messages[0]";
  EXPECT_NE(OpenAiErrorBody(error).find(R"("param":"messages[0]")"), std::string::npos);
  EXPECT_EQ(AnthropicErrorBody(error, "r1"),
            R"({"type":"error","error":{"type":"invalid_request_error","message":"a \"b\"\n"},)"
            R"("request_id":"r1"})");
  const std::string too_long = OpenAiErrorBody(ContextLengthError("prompt", 9, 8));
  EXPECT_NE(too_long.find(R"("n_prompt_tokens":9,"n_ctx":8)"), std::string::npos);
  EXPECT_NE(too_long.find(R"("param":"prompt")"), std::string::npos);
}

TEST(ApiError, OverloadIs529OnTheMessagesRoutes) {
  EXPECT_EQ(AnthropicHttpStatus(ApiErrorFromStatus(Unavailable("x"))), 529);
  EXPECT_EQ(AnthropicHttpStatus(ApiErrorFromStatus(NotFound("x"))), 404);
}

TEST(JsonBody, FaultsNameTheirPlace) {
  const auto document = ParseJsonBody("{\"a\":tru}");
  ASSERT_FALSE(document.has_value());
  EXPECT_EQ(document.error().status, 400);
  EXPECT_EQ(document.error().code, "invalid_json");
  EXPECT_EQ(document.error().stage, ErrorStage::kParse);
  EXPECT_NE(document.error().message.find("line 1 column"), std::string::npos);
}

TEST(ImageUrl, FormsAndMediaTypesAreChecked) {
  const auto fault = [](std::string_view url, ImageField field = ImageField::kImageUrl) {
    return CheckImageUrl(url, field).fault;
  };
  for (std::string_view url :
       {"https://a/b.png", "HTTP://a", "data:image/png;base64,AAAA",
        "DATA:image/PNG;base64,AA==", "data:image/jpg;base64,AAA", "data:image/gif;base64,",
        "data:image/webp;x=1;base64,A A\nAA", "data:image/png;base64,%41AAA"}) {
    EXPECT_EQ(fault(url), "") << url;
  }
  for (std::string_view url :
       {"", "x", "ftp://a", "file:///a", " http://a", "data:image/png,AAAA",
        "data:image/png;base64", "data:image/bmp;base64,AAAA", "data:;base64,AAAA",
        "data:image/png;base64,A", "data:image/png;base64,AA=", "data:image/png;base64,AA-_"}) {
    EXPECT_NE(fault(url), "") << url;
  }
  EXPECT_NE(fault("https://a/b.png", ImageField::kFileData), "");
}

TEST(ImageUrl, DataUrlsAreDecoded) {
  EXPECT_EQ(DecodeDataUrl("data:image/png;base64,aGkh"), "hi!");
  EXPECT_EQ(DecodeDataUrl("data:image/png;base64,aGk="), "hi");
  EXPECT_EQ(DecodeDataUrl("data:image/png;base64,aG%6B"), "hi");
  EXPECT_EQ(DecodeDataUrl("data:image/png;base64,aGk"), "hi");
  EXPECT_EQ(DecodeDataUrl("data:image/png;base64,a"), std::nullopt);
  EXPECT_EQ(DecodeDataUrl("http://a"), std::nullopt);
}

TEST(CacheControls, LifetimesFollowTheGrammar) {
  EXPECT_EQ(ParseCacheLifetimeSeconds("in_memory"), 0);
  EXPECT_EQ(ParseCacheLifetimeSeconds("in-memory"), 0);
  EXPECT_EQ(ParseCacheLifetimeSeconds("30m"), 1800);
  EXPECT_EQ(ParseCacheLifetimeSeconds("24h"), 86400);
  EXPECT_EQ(ParseCacheLifetimeSeconds("3d"), 259200);
  for (std::string_view text :
       {"", "h", "0h", "-1h", "1", "1w", "1 h", "1hh", "99999999999999999d"}) {
    EXPECT_EQ(ParseCacheLifetimeSeconds(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace deepinfer
