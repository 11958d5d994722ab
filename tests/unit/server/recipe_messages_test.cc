// Anthropic Messages requests: the recorded conversions, and the points where this server is wider
// (docs/api.md section 22).
#include <gtest/gtest.h>

#include <string>

#include "server/messages_request.h"
#include "text/prompt_encoder.h"
#include "unit/server/recipe_requests.h"

namespace deepinfer {
namespace {

using namespace testing;

ApiResult<MessagesRequest> Parse(const std::string& members,
                                 const ChatRequestOptions& options = {}) {
  return ParseMessagesRequest(R"({"model":"m","max_tokens":9,)" + members + "}", options);
}

constexpr std::string_view kQuestion = R"("messages":[{"role":"user","content":"q"}])";
constexpr std::string_view kTool = R"("tools":[{"name":"f","input_schema":{"type":"object"}}])";

std::string Join(std::string_view a, std::string_view b) {
  return std::string(a) + "," + std::string(b);
}

TEST(RecipeMessages, EveryRecordedCaseConvertsAlike) {
  EXPECT_EQ(ExpectRecordedConversions("messages", "recipe_messages.json"), 192u);
}

TEST(MessagesRequest, AnyForcesACallWithThePromptOfAuto) {
  const std::string any = R"("tool_choice":{"type":"any"})";
  const auto automatic = Parse(Join(kQuestion, kTool));
  const auto forced = Parse(Join(Join(kQuestion, kTool), any));
  ASSERT_TRUE(automatic && forced);
  EXPECT_EQ(Render(automatic->common.conversation), Render(forced->common.conversation));
  EXPECT_EQ(automatic->common.constraint->kind, ConstraintKind::kToolCall);
  EXPECT_EQ(forced->common.constraint->kind, ConstraintKind::kToolCallRequired);
  EXPECT_TRUE(forced->common.force_calls_after_reasoning);
  EXPECT_FALSE(forced->common.parsing.starts_in_tool_calls);
}

TEST(MessagesRequest, OneCallAtMostIsKeptApart) {
  const auto request = Parse(Join(
      Join(kQuestion, kTool), R"("tool_choice":{"type":"auto","disable_parallel_tool_use":true})"));
  ASSERT_TRUE(request);
  EXPECT_FALSE(request->common.parallel_tool_calls);
}

TEST(MessagesRequest, OutputFormatIsEnforcedAndNotShown) {
  const std::string format =
      R"("output_config":{"format":{"type":"json_schema","schema":{"type":"object"}}})";
  const auto plain = Parse(std::string(kQuestion));
  const auto shaped = Parse(Join(kQuestion, format));
  ASSERT_TRUE(plain && shaped);
  EXPECT_EQ(Render(plain->common.conversation), Render(shaped->common.conversation));
  ASSERT_TRUE(shaped->common.constraint);
  EXPECT_EQ(shaped->common.constraint->schema, R"({"type":"object"})");
}

TEST(MessagesRequest, RedactedThinkingIsDroppedAndCustomToolsAreClientTools) {
  const auto request =
      Parse(R"("messages":[{"role":"user","content":"q"},{"role":"assistant","content":[)"
            R"({"type":"redacted_thinking","data":"x"},{"type":"text","text":"a"}]},)"
            R"({"role":"user","content":"r"}],)"
            R"("tools":[{"type":"custom","name":"f","input_schema":{"type":"object"}}])");
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(request->common.tool_names, std::vector<std::string>{"f"});
  const std::string prompt = BuildPromptText(Render(request->common.conversation)).prompt;
  EXPECT_NE(prompt.find("<think></think>a<"), std::string::npos) << prompt;
}

TEST(MessagesRequest, PrefillContinuesTheLastAssistantMessage) {
  const std::string members =
      R"("thinking":{"type":"disabled"},"messages":[{"role":"user","content":"q"},)"
      R"({"role":"assistant","content":"Once"}])";
  ChatRequestOptions options;
  options.messages_prefill = true;
  const auto finished = Parse(members);
  const auto open = Parse(members, options);
  ASSERT_TRUE(finished && open);
  const auto prompt = [](const MessagesRequest& request) {
    return BuildPromptText(Render(request.common.conversation)).prompt;
  };
  EXPECT_TRUE(prompt(*finished).ends_with("Once<｜end▁of▁sentence｜><｜Assistant｜></think>"));
  EXPECT_TRUE(prompt(*open).ends_with("Once"));
}

TEST(MessagesRequest, ServerToolsAreDroppedOnlyWhenToldTo) {
  const std::string tools = R"("tools":[{"type":"bash_20250124","name":"bash"}])";
  const auto refused = Parse(Join(kQuestion, tools));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().param, "tools[0]");
  ChatRequestOptions options;
  options.drop_server_tools = true;
  const auto dropped = Parse(Join(kQuestion, tools), options);
  ASSERT_TRUE(dropped) << dropped.error().message;
  EXPECT_TRUE(dropped->common.conversation.tools.empty());
}

TEST(MessagesRequest, CacheMarksAreCountedAndLimited) {
  const std::string mark = R"({"type":"text","text":"t","cache_control":{"type":"ephemeral"}})";
  const auto with = [&](int count) {
    std::string blocks;
    for (int i = 0; i < count; ++i) blocks += (i > 0 ? "," : "") + mark;
    return Parse(R"("messages":[{"role":"user","content":[)" + blocks + "]}]");
  };
  ASSERT_TRUE(with(4));
  EXPECT_EQ(with(4)->cache_marks.count, 4);
  EXPECT_FALSE(with(4)->cache_marks.last_lives_1h);
  ASSERT_FALSE(with(5));
  EXPECT_EQ(with(5).error().param, "cache_control");
  const auto long_lived =
      Parse(Join(kQuestion, R"("cache_control":{"type":"ephemeral","ttl":"1h"})"));
  ASSERT_TRUE(long_lived);
  EXPECT_TRUE(long_lived->cache_marks.last_lives_1h);
  EXPECT_FALSE(Parse(Join(kQuestion, R"("cache_control":{"type":"ephemeral","ttl":"2h"})")));
}

TEST(MessagesRequest, UserIdNarrowsTheCacheNamespace) {
  const auto request = Parse(Join(kQuestion, R"("metadata":{"user_id":"u1"})"));
  ASSERT_TRUE(request);
  EXPECT_EQ(request->common.labels.user_id, "u1");
}

}  // namespace
}  // namespace deepinfer
