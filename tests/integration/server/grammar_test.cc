// Constraints of a body as they reach the engine, and what clients are told when one is refused.

#include "integration/server/server_fixture.h"

namespace deepinfer::testing {
namespace {

constexpr std::string_view kChat = "/v1/chat/completions";

class GrammarServerTest : public ServerTest {
 protected:
  // The grammar that the engine gets for this body.
  OutputGrammar GrammarOf(const json::object& body, std::string_view path = kChat) {
    SetText("x");
    const size_t before = worker_->submitted().size();
    const ClientResponse response = Post(path, body);
    EXPECT_EQ(response.status, 200) << json::serialize(body) << response.body;
    const std::vector<EngineRequest> submitted = worker_->submitted();
    if (submitted.size() != before + 1 || submitted.back().grammar == nullptr) {
      ADD_FAILURE() << "no grammar for " << json::serialize(body);
      return {};
    }
    return *submitted.back().grammar;
  }
  static json::object Thinking(json::object more) {
    more["thinking"] = {{"type", "enabled"}};
    return ChatBody(more);
  }
  static json::value Tool(std::string_view name, bool strict = false) {
    return {
        {"type", "function"},
        {"function",
         {{"name", name},
          {"strict", strict},
          {"parameters", {{"type", "object"}, {"properties", {{"city", {{"type", "string"}}}}}}}}}};
  }
  static json::object SchemaFormat(bool strict) {
    return {{"type", "json_schema"},
            {"json_schema",
             {{"name", "s"},
              {"strict", strict},
              {"schema", {{"type", "object"}, {"properties", {{"a", {{"type", "integer"}}}}}}}}}};
  }
};

TEST_F(GrammarServerTest, EveryFieldBecomesItsKindOfGrammar) {
  Start();
  const json::object tag = {{"type", "structural_tag"},
                            {"format", {{"type", "const_string"}, {"value", "x"}}}};
  struct Case {
    json::object more;
    GrammarKind kind;
    std::string_view text;
  };
  const Case cases[] = {
      {{{"structured_outputs", {{"regex", "a+"}}}}, GrammarKind::kRegex, "a+"},
      {{{"structured_outputs", {{"choice", {"a", "b"}}}}}, GrammarKind::kChoice, R"(["a","b"])"},
      {{{"structured_outputs", {{"json", {{"type", "array"}}}}}},
       GrammarKind::kJsonSchema,
       R"({"type":"array"})"},
      {{{"structured_outputs", {{"json_object", true}}}}, GrammarKind::kJsonObject, ""},
      {{{"structured_outputs", {{"grammar", "root ::= \"a\""}}}},
       GrammarKind::kEbnf,
       "root ::= \"a\""},
      {{{"structured_outputs", {{"structural_tag", json::serialize(tag)}}}},
       GrammarKind::kStructuralTag,
       ""},
      {{{"guided_regex", "a+"}}, GrammarKind::kRegex, "a+"},
      {{{"guided_json", R"({"type":"array"})"}}, GrammarKind::kJsonSchema, R"({"type":"array"})"},
      {{{"guided_choice", json::array{"a", "b"}}}, GrammarKind::kChoice, R"(["a","b"])"},
      {{{"guided_grammar", "root ::= \"a\""}}, GrammarKind::kEbnf, "root ::= \"a\""},
      {{{"grammar", "root ::= \"a\""}}, GrammarKind::kEbnf, "root ::= \"a\""},
      {{{"json_schema", {{"type", "array"}}}}, GrammarKind::kJsonSchema, R"({"type":"array"})"},
      {{{"response_format", {{"type", "regex"}, {"regex", "a+"}}}}, GrammarKind::kRegex, "a+"},
      {{{"response_format", tag}}, GrammarKind::kStructuralTag, ""},
  };
  for (const Case& c : cases) {
    for (const std::string_view path : {kChat, std::string_view("/v1/completions")}) {
      const OutputGrammar grammar =
          GrammarOf(path == kChat ? ChatBody(c.more) : CompletionsBody(c.more), path);
      EXPECT_EQ(grammar.source.kind, c.kind) << json::serialize(c.more) << path;
      if (!c.text.empty()) {
        EXPECT_EQ(grammar.source.text, c.text);
      }
      EXPECT_TRUE(grammar.trigger.token_ids.empty());
      EXPECT_FALSE(grammar.strict);
    }
  }
}

TEST_F(GrammarServerTest, ExtractedJsonNeedsNoGrammarAndLosesWhatStandsAroundIt) {
  options_.json_mode = JsonMode::kExtract;
  Start();
  const json::object json_object{{"response_format", {{"type", "json_object"}}}};
  json::object body = ChatBody(json_object);
  body["messages"] = {{{"role", "user"}, {"content", "Answer in json."}}};
  SetText("Sure:\n```json\n{\"a\": [1]}\n```\nAnything else?");
  const auto trimmed = [](const json::value& text) {
    std::string_view view = text.as_string();
    view.remove_prefix(std::min(view.find_first_not_of(' '), view.size()));
    return std::string(view.substr(0, view.find_last_not_of(' ') + 1));
  };
  const json::value whole = ParseBody(Post(kChat, body));
  EXPECT_EQ(trimmed(whole.at("choices").at(0).at("message").at("content")), R"({"a": [1]})");
  EXPECT_EQ(worker_->submitted().back().grammar, nullptr);
  body["stream"] = true;
  const auto events = ParseEvents(Post(kChat, body));
  EXPECT_EQ(trimmed(json::value(JoinDeltas(events, "content"))), R"({"a": [1]})");
  const json::object responses{{"model", kModel},
                               {"input", "json please"},
                               {"reasoning", {{"effort", "none"}}},
                               {"text", {{"format", {{"type", "json_object"}}}}}};
  const json::value answer = ParseBody(Post("/v1/responses", responses));
  EXPECT_EQ(trimmed(answer.at("output").at(0).at("content").at(0).at("text")), R"({"a": [1]})");
  // Calls keep their grammar; the answer beside them has none.
  body.erase("stream");
  body["tools"] = json::array{Tool("f")};
  EXPECT_EQ(GrammarOf(body).source.calls_start, CallsStart::kBehindMarker);
  // A schema is enforced in any case.
  EXPECT_EQ(GrammarOf(ChatBody({{"response_format", SchemaFormat(false)}})).source.kind,
            GrammarKind::kJsonSchema);
}

TEST_F(GrammarServerTest, JsonObjectsOfEveryDialectHaveAGrammar) {
  Start();
  json::object chat = ChatBody({{"response_format", {{"type", "json_object"}}}});
  chat["messages"] = {{{"role", "user"}, {"content", "Answer in json."}}};
  EXPECT_EQ(GrammarOf(chat).source.kind, GrammarKind::kJsonObject);
  const json::object responses{{"model", kModel},
                               {"input", "json please"},
                               {"reasoning", {{"effort", "none"}}},
                               {"text", {{"format", {{"type", "json_object"}}}}}};
  EXPECT_EQ(GrammarOf(responses, "/v1/responses").source.kind, GrammarKind::kJsonObject);
}

TEST_F(GrammarServerTest, StrictSchemasAreClosedAndMarked) {
  Start();
  const OutputGrammar strict = GrammarOf(ChatBody({{"response_format", SchemaFormat(true)}}));
  EXPECT_TRUE(strict.strict);
  EXPECT_NE(strict.source.text.find("additionalProperties"), std::string::npos);
  const OutputGrammar loose = GrammarOf(ChatBody({{"response_format", SchemaFormat(false)}}));
  EXPECT_FALSE(loose.strict);
  EXPECT_EQ(loose.source.text.find("additionalProperties"), std::string::npos);
}

TEST_F(GrammarServerTest, ReasoningIsFree) {
  Start();
  const OutputGrammar grammar = GrammarOf(Thinking({{"structured_outputs", {{"regex", "a+"}}}}));
  EXPECT_EQ(grammar.trigger.token_ids, std::vector<int32_t>{*tokenizer_->FindAdded("</think>")});
  EXPECT_FALSE(grammar.trigger.optional);
}

TEST_F(GrammarServerTest, ToolsBeginWhereTheModelOrTheRequestPutsThem) {
  options_.chat.forced_tools_in_thinking = true;
  Start();
  const json::array tools{Tool("f"), Tool("g")};
  const int32_t marker = *tokenizer_->FindAdded("｜DSML｜");
  const int32_t think_end = *tokenizer_->FindAdded("</think>");

  const OutputGrammar by_itself = GrammarOf(ChatBody({{"tools", tools}}));
  EXPECT_EQ(by_itself.source.kind, GrammarKind::kToolCalls);
  EXPECT_EQ(by_itself.source.calls_start, CallsStart::kBehindMarker);
  EXPECT_EQ(by_itself.trigger.token_ids, std::vector<int32_t>{marker});
  EXPECT_EQ(by_itself.trigger.preceding_text, "<");
  EXPECT_TRUE(by_itself.trigger.optional);
  EXPECT_TRUE(by_itself.source.parallel_calls);
  ASSERT_TRUE(by_itself.fallback.has_value());
  EXPECT_EQ(by_itself.fallback->text.find("city"), std::string::npos);

  EXPECT_FALSE(GrammarOf(ChatBody({{"tools", tools}, {"parallel_tool_calls", false}}))
                   .source.parallel_calls);

  const OutputGrammar forced = GrammarOf(ChatBody({{"tools", tools}, {"tool_choice", "required"}}));
  EXPECT_EQ(forced.source.calls_start, CallsStart::kInsideBlock);
  EXPECT_TRUE(forced.trigger.token_ids.empty());

  const json::object named = {{"type", "function"}, {"function", {{"name", "g"}}}};
  const OutputGrammar one = GrammarOf(ChatBody({{"tools", tools}, {"tool_choice", named}}));
  EXPECT_EQ(one.source.text.find("\"f\""), std::string::npos);

  const OutputGrammar behind = GrammarOf(Thinking({{"tools", tools}, {"tool_choice", "required"}}));
  EXPECT_EQ(behind.source.calls_start, CallsStart::kWholeBlock);
  EXPECT_EQ(behind.trigger.token_ids, std::vector<int32_t>{think_end});
  EXPECT_EQ(behind.trigger.banned_ids, std::vector<int32_t>{marker});

  const OutputGrammar either =
      GrammarOf(ChatBody({{"tools", tools}, {"response_format", SchemaFormat(false)}}));
  EXPECT_EQ(either.source.calls_start, CallsStart::kAnswerOrBlock);
  EXPECT_NE(either.source.answer_schema.find("integer"), std::string::npos);

  const json::array strict_tools{Tool("f", true)};
  const OutputGrammar strict = GrammarOf(ChatBody({{"tools", strict_tools}}));
  EXPECT_TRUE(strict.strict);
  EXPECT_FALSE(strict.fallback.has_value());
}

TEST_F(GrammarServerTest, RequestsWithoutConstraintsBringNoGrammar) {
  Start();
  SetText("x");
  const json::array tools{Tool("f")};
  for (const json::object& more :
       {json::object{}, json::object{{"response_format", {{"type", "text"}}}},
        json::object{{"tools", tools}, {"tool_choice", "none"}}}) {
    EXPECT_EQ(Post(kChat, ChatBody(more)).status, 200);
    EXPECT_EQ(worker_->submitted().back().grammar, nullptr) << json::serialize(more);
  }
}

TEST_F(GrammarServerTest, ARefusedGrammarIsA400WithThePathOfItsField) {
  Start();
  worker_->SetFailure(0, InvalidRequest("uniqueItems (at '/properties/a')"),
                      FinishReason::kGrammarError);
  struct Case {
    json::object more;
    std::string_view param;
  };
  const json::array tools{Tool("f")};
  const Case cases[] = {
      {{{"response_format", SchemaFormat(true)}}, "response_format.json_schema.schema"},
      {{{"structured_outputs", {{"regex", "a+"}}}}, "structured_outputs.regex"},
      {{{"guided_json", {{"type", "array"}}}}, "guided_json"},
      {{{"grammar", "root"}}, "grammar"},
      {{{"tools", tools}}, "tools"},
  };
  for (const Case& c : cases) {
    for (const bool stream : {false, true}) {
      json::object body = ChatBody(c.more);
      body["stream"] = stream;
      const ClientResponse response = Post(kChat, body);
      EXPECT_EQ(response.status, 400) << response.body;
      EXPECT_EQ(ErrorCode(response), "invalid_schema");
      EXPECT_EQ(ParseBody(response).at("error").at("param").as_string(), c.param);
      EXPECT_NE(response.body.find("/properties/a"), std::string::npos) << response.body;
    }
  }
}

TEST_F(GrammarServerTest, AFullCompilePoolIsA503) {
  Start();
  worker_->SetFailure(0, Unavailable("too many grammars are waiting to be compiled"),
                      FinishReason::kGrammarError);
  const ClientResponse response =
      Post(kChat, ChatBody({{"structured_outputs", {{"regex", "a"}}}, {"stream", true}}));
  EXPECT_EQ(response.status, 503);
  EXPECT_EQ(ErrorCode(response), "server_overloaded");
}

TEST_F(GrammarServerTest, AStreamUnderAGrammarIsCompleteOnceItBegins) {
  Start();
  SetText("aaaa");
  const ClientResponse response =
      Post(kChat, ChatBody({{"structured_outputs", {{"regex", "a+"}}}, {"stream", true}}));
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(JoinDeltas(ParseEvents(response), "content"), "aaaa");
}

TEST_F(GrammarServerTest, WhatNoGrammarCanJoinIsRefused) {
  Start();
  const json::array tools{Tool("f")};
  ClientResponse response =
      Post(kChat, ChatBody({{"tools", tools}, {"structured_outputs", {{"regex", "a"}}}}));
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(ErrorCode(response), "unsupported_parameter");
  response = Post(
      kChat, ChatBody({{"structured_outputs", {{"regex", "a"}, {"whitespace_pattern", "x"}}}}));
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(ErrorCode(response), "unsupported_parameter");
}

}  // namespace
}  // namespace deepinfer::testing
