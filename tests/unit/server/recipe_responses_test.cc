// Responses requests: the recorded conversions, and the points where this server is wider or
// stricter (docs/api.md section 22).
#include <gtest/gtest.h>

#include <string>

#include "server/custom_input.h"
#include "server/responses_request.h"
#include "text/prompt_encoder.h"
#include "unit/server/recipe_requests.h"

namespace deepinfer {
namespace {

using namespace testing;

ApiResult<ResponsesRequest> Parse(const std::string& members,
                                  const ChatRequestOptions& options = {}) {
  return ParseResponsesRequest(R"({"model":"m",)" + members + "}", options);
}

TEST(RecipeResponses, EveryRecordedCaseConvertsAlike) {
  EXPECT_EQ(ExpectRecordedConversions("responses", "recipe_responses.json"), 222u);
}

// The official rules take such an output for text of the user; a client that forgot the id would
// lose it without a word.
TEST(ResponsesRequest, AnOutputWithoutCallIdIsRefused) {
  const auto request = Parse(R"("input":[{"type":"message","role":"user","content":"q"},)"
                             R"({"type":"function_call_output","output":"r"}])");
  ASSERT_FALSE(request);
  EXPECT_EQ(request.error().param, "input[1].call_id");
  EXPECT_EQ(request.error().code, "missing_required_parameter");
}

TEST(ResponsesRequest, KeptHistoryIsRefusedInsteadOfLost) {
  for (const std::string& member :
       {std::string(R"("previous_response_id":"r")"), std::string(R"("conversation":"c")"),
        std::string(R"("background":true)"), std::string(R"("truncation":"auto")")}) {
    const auto request = Parse(R"("input":"q",)" + member);
    ASSERT_FALSE(request) << member;
    EXPECT_EQ(request.error().code, "unsupported_parameter") << member;
  }
  EXPECT_TRUE(Parse(R"("input":"q","background":false,"truncation":"disabled")"));
}

TEST(ResponsesRequest, InputOfUnknownItemsAloneIsRefused) {
  const auto request = Parse(R"("input":[{"type":"hologram"}])");
  ASSERT_FALSE(request);
  EXPECT_EQ(request.error().param, "input");
  EXPECT_TRUE(Parse(R"("input":[{"type":"hologram"},{"role":"user","content":"q"}])"));
}

TEST(ResponsesRequest, CustomToolsTakeOneText) {
  const auto request =
      Parse(R"("input":"q","tools":[{"type":"custom","name":"run","description":"Runs."}])");
  ASSERT_TRUE(request) << request.error().message;
  ASSERT_EQ(request->common.conversation.tools.size(), 1u);
  EXPECT_EQ(request->common.conversation.tools[0].parameters_json,
            R"({"type": "object", "properties": {"input": {"type": "string"}}, )"
            R"("required": ["input"]})");
  EXPECT_EQ(request->tools.at("run").kind, ResponsesToolKind::kCustom);
}

TEST(CustomInput, GivesTheTextOrTheArgumentsHoweverTheyAreCut) {
  const std::pair<std::string, std::string> cases[] = {
      {R"({"input": "a\nb\"c\\d\u001f\t"})", "a\nb\"c\\d\x1f\t"},
      {R"({"input": ""})", ""},
      {R"({"path": "p", "input": "i"})", R"({"path": "p", "input": "i"})"},
      {R"({"input": 5})", R"({"input": 5})"},
      {R"({"input": "cut \u00)", "cut "},
      {R"({"inp)", R"({"inp)"},
      {"{}", "{}"},
      {"", ""},
  };
  for (const auto& [arguments, expected] : cases) {
    for (size_t size = 1; size <= arguments.size() + 1; ++size) {
      CustomInput input;
      std::string text;
      for (size_t i = 0; i < arguments.size(); i += size) {
        text += input.Push(std::string_view(arguments).substr(i, size));
      }
      text += input.Finish();
      EXPECT_EQ(text, expected) << arguments << " in pieces of " << size;
    }
  }
}

}  // namespace
}  // namespace deepinfer
