// Places that clients mark in a prompt become places where the engine keeps state (api.md §7). One
// inside a token, as behind a full stop with an empty line after it, is in front of the token.
#include <gtest/gtest.h>

#include "integration/server/server_fixture.h"

namespace deepinfer {
namespace {

using namespace testing;  // NOLINT: the helpers of this folder

const json::value kMark = {{"type", "ephemeral"}};

class CacheMarksTest : public ServerTest {
 protected:
  CacheMarksTest() : ServerTest(/*context=*/4096) { Start(); }

  // The texts in front of the marked places of the last prompt.
  std::vector<std::string> Marked() {
    const EngineRequest request = worker_->submitted().back();
    std::vector<std::string> texts;
    for (const int32_t place : request.state_at) {
      texts.push_back(
          tokenizer_->Decode(std::span(request.prompt_ids).first(static_cast<size_t>(place))));
    }
    return texts;
  }

  static json::object Text(std::string_view text, const char* type = "text") {
    return {{"type", type}, {"text", text}};
  }
  static json::object Marked(json::object block, const char* key, const json::value& mark) {
    block[key] = mark;
    return block;
  }
  static json::object Cached(json::object block) {
    return Marked(std::move(block), "cache_control", kMark);
  }
};

TEST_F(CacheMarksTest, MessagesMarkToolsSystemAndBlocks) {
  const json::object schema{{"type", "object"}};
  const json::object body{
      {"model", kModel},
      {"max_tokens", 4},
      {"thinking", {{"type", "disabled"}}},
      {"tools",
       {Cached({{"name", "first"}, {"input_schema", schema}}),
        {{"name", "second"}, {"input_schema", schema}}}},
      {"system", {Cached(Text("Rules one")), Text("Rules two")}},
      {"messages",
       {{{"role", "user"}, {"content", {Cached(Text("Question")), Text("More.")}}},
        {{"role", "assistant"},
         {"content", {{{"type", "tool_use"}, {"id", "t"}, {"name", "first"}, {"input", {}}}}}},
        {{"role", "user"},
         {"content",
          {Cached({{"type", "tool_result"}, {"tool_use_id", "t"}, {"content", "Result."}}),
           Text("And?")}}}}}};
  ASSERT_EQ(Post("/v1/messages", body).status, 200);
  const std::vector<std::string> marked = Marked();
  ASSERT_EQ(marked.size(), 4u);
  const std::string_view ends[] = {"Rules one",
                                   "\"first\", \"description\": \"\", \"parameters\": "
                                   "{\"type\": \"object\"}",
                                   "Question", "<tool_result>Result.</tool_result"};
  for (size_t i = 0; i < marked.size(); ++i) {
    EXPECT_TRUE(marked[i].ends_with(ends[i])) << marked[i];
  }
}

TEST_F(CacheMarksTest, AMarkOfTheBodyIsBehindItsLastMessage) {
  const json::object body{{"model", kModel},
                          {"max_tokens", 4},
                          {"thinking", {{"type", "disabled"}}},
                          {"cache_control", kMark},
                          {"messages", {{{"role", "user"}, {"content", "Question"}}}}};
  ASSERT_EQ(Post("/v1/messages", body).status, 200);
  const std::vector<std::string> marked = Marked();
  ASSERT_EQ(marked.size(), 1u);
  EXPECT_TRUE(marked[0].ends_with("Question"));
}

TEST_F(CacheMarksTest, ChatMarksParts) {
  const auto breakpoint = [](json::object part, const json::value& mark) {
    return Marked(std::move(part), "prompt_cache_breakpoint", mark);
  };
  const json::object body = ChatBody(
      {{"max_tokens", 4},
       {"messages",
        {{{"role", "system"}, {"content", {breakpoint(Text("Rules"), true)}}},
         {{"role", "user"},
          {"content", {breakpoint(Text("One"), json::object()), breakpoint(Text("Two"), false)}}},
         {{"role", "assistant"}, {"content", {breakpoint(Text("Yes."), true)}}},
         {{"role", "user"}, {"content", "So?"}}}}});
  ASSERT_EQ(Post("/v1/chat/completions", body).status, 200);
  const std::vector<std::string> marked = Marked();
  ASSERT_EQ(marked.size(), 3u);
  EXPECT_TRUE(marked[0].ends_with("Rules")) << marked[0];
  EXPECT_TRUE(marked[1].ends_with("One")) << marked[1];
  EXPECT_TRUE(marked[2].ends_with("Yes.<｜end▁of▁sentence｜>")) << marked[2];
}

TEST_F(CacheMarksTest, ResponsesMarkPartsAndAtMostFour) {
  json::array parts;
  for (int i = 0; i < 5; ++i) {
    parts.push_back(
        Marked(Text("Part " + std::to_string(i), "input_text"), "prompt_cache_breakpoint", true));
  }
  json::object body{{"model", kModel},
                    {"max_output_tokens", 4},
                    {"input", {{{"role", "user"}, {"content", parts}}}}};
  EXPECT_EQ(Post("/v1/responses", body).status, 400);
  parts.pop_back();
  body["input"].at(0).as_object()["content"] = parts;
  ASSERT_EQ(Post("/v1/responses", body).status, 200);
  const std::vector<std::string> marked = Marked();
  ASSERT_EQ(marked.size(), 4u);
  for (size_t i = 0; i < marked.size(); ++i) {
    EXPECT_TRUE(marked[i].ends_with("Part " + std::to_string(i))) << marked[i];
  }
}

}  // namespace
}  // namespace deepinfer
