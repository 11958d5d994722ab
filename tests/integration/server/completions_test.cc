// /v1/completions, /tokenize, /detokenize, models and the small information routes.
#include <gtest/gtest.h>

#include "integration/server/server_fixture.h"

namespace deepinfer {
namespace {

using namespace testing;  // NOLINT: the helpers of this folder

constexpr std::string_view kPath = "/v1/completions";

class CompletionsTest : public ServerTest {
 protected:
  std::vector<int32_t> LastPrompt() { return worker_->submitted().back().prompt_ids; }
};

TEST_F(CompletionsTest, PromptFormsGetOneBeginToken) {
  Start();
  const std::vector<int32_t> expected = Encode("<｜begin▁of▁sentence｜>Once");
  const std::vector<int32_t> bare(expected.begin() + 1, expected.end());
  const json::value prompts[] = {
      "Once",
      "<｜begin▁of▁sentence｜>Once",
      {"Once"},
      json::value_from(expected),
      json::value_from(bare),
      json::array{json::value_from(bare)},
  };
  for (const json::value& prompt : prompts) {
    const ClientResponse response = Post(kPath, CompletionsBody({{"prompt", prompt}}));
    ASSERT_EQ(response.status, 200) << response.body;
    EXPECT_EQ(LastPrompt(), expected) << json::serialize(prompt);
  }
  for (const json::value& prompt : {json::value(nullptr), json::value("")}) {
    ASSERT_EQ(Post(kPath, CompletionsBody({{"prompt", prompt}})).status, 200);
    EXPECT_EQ(LastPrompt(), std::vector<int32_t>{0});
  }
}

TEST_F(CompletionsTest, SpecialStringsAreTextWhenSwitchedOff) {
  options_.raw_prompt_specials = false;
  Start();
  ASSERT_EQ(Post(kPath, CompletionsBody({{"prompt", "<｜User｜>"}})).status, 200);
  for (const int32_t id : LastPrompt()) EXPECT_NE(id, Encode("<｜User｜>").front());
}

TEST_F(CompletionsTest, AnswerStreamAndDefaults) {
  Start();
  SetText(" upon a time");
  const json::value whole = ParseBody(Post(kPath, CompletionsBody()));
  EXPECT_EQ(whole.at("object").as_string(), "text_completion");
  EXPECT_EQ(whole.at("choices").at(0).at("text").as_string(), " upon a time");
  EXPECT_EQ(worker_->submitted().back().sampling.max_tokens, 16);
  for (const int32_t commit : {1, 2, 0}) {
    worker_->SetCommit(commit);
    const auto events = ParseEvents(Post(
        kPath, CompletionsBody({{"stream", true}, {"stream_options", {{"include_usage", true}}}})));
    ASSERT_FALSE(events.empty());
    EXPECT_EQ(JoinDeltas(events, "text"), " upon a time");
    EXPECT_EQ(events.back().at("usage"), whole.at("usage"));
  }
}

TEST_F(CompletionsTest, BatchedPromptsNumberTheirChoicesAndSumUsage) {
  Start();
  worker_->SetOutputOf([](const EngineRequest& request) {
    std::vector<int32_t> output(request.prompt_ids.begin() + 1, request.prompt_ids.end());
    output.push_back(1);
    return output;
  });
  const json::value body =
      ParseBody(Post(kPath, CompletionsBody({{"prompt", {"alpha", "beta"}}, {"n", 2}})));
  const json::array& choices = body.at("choices").as_array();
  ASSERT_EQ(choices.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(choices[i].at("index").as_int64(), static_cast<int64_t>(i));
    EXPECT_EQ(choices[i].at("text").as_string(), i < 2 ? "alpha" : "beta");
  }
  const auto submitted = worker_->submitted();
  EXPECT_EQ(body.at("usage").at("prompt_tokens").as_int64(),
            static_cast<int64_t>(submitted[0].prompt_ids.size() + submitted[2].prompt_ids.size()));
}

TEST_F(CompletionsTest, EchoWithLogprobsGivesPromptValuesAndOneToken) {
  Start();
  worker_->SetOutput(Encode(" upon"), true);
  const ClientResponse response =
      Post(kPath, CompletionsBody({{"max_tokens", 1}, {"echo", true}, {"logprobs", 1}}));
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_TRUE(worker_->submitted().back().sampling.prompt_logprobs);
  EXPECT_EQ(worker_->submitted().back().sampling.num_top_logprobs, 1);
  const json::value logprobs = ParseBody(response).at("choices").at(0).at("logprobs");
  const json::array& values = logprobs.at("token_logprobs").as_array();
  EXPECT_TRUE(values.front().is_null());
  for (size_t i = 1; i < values.size(); ++i) EXPECT_TRUE(values[i].is_number());
  // The prompt as sent, without the begin token, and the one generated token.
  EXPECT_EQ(values.size(), Encode("Once").size() + 1);
  EXPECT_EQ(values.size(), logprobs.at("tokens").as_array().size());
}

TEST_F(CompletionsTest, TheBestOfSeveralAreAnsweredAndAllAreCounted) {
  Start();
  SetText("word");
  const json::value body =
      ParseBody(Post(kPath, CompletionsBody({{"prompt", {"a", "b"}}, {"n", 2}, {"best_of", 3}})));
  EXPECT_EQ(body.at("choices").as_array().size(), 4u);
  EXPECT_EQ(worker_->submitted().size(), 6u);
  EXPECT_EQ(worker_->submitted().front().sampling.num_top_logprobs, 0);
  const auto generated = static_cast<int64_t>(Encode("word").size() + 1);
  EXPECT_EQ(body.at("usage").at("completion_tokens").as_int64(), 6 * generated);
}

TEST_F(CompletionsTest, AnEndTokenHasItsLogprobToo) {
  Start();
  worker_->SetOutput({});  // the end token at once
  const json::object body = CompletionsBody({{"max_tokens", 1}, {"echo", true}, {"logprobs", 1}});
  const json::value logprobs = ParseBody(Post(kPath, body)).at("choices").at(0).at("logprobs");
  EXPECT_EQ(logprobs.at("token_logprobs").as_array().size(), Encode("Once").size() + 1);
  EXPECT_EQ(logprobs.at("tokens").as_array().back(), "<｜end▁of▁sentence｜>");
  json::object streamed = body;
  streamed["stream"] = true;
  size_t streamed_values = 0;
  for (const json::value& event : ParseEvents(Post(kPath, streamed))) {
    const json::value& part = event.at("choices").at(0).at("logprobs");
    if (part.is_object()) streamed_values += part.at("token_logprobs").as_array().size();
  }
  EXPECT_EQ(streamed_values, Encode("Once").size() + 1);
}

TEST_F(CompletionsTest, RenderShowsIdsAndRunsNothing) {
  Start();
  const json::value body =
      ParseBody(Post("/v1/completions/render", CompletionsBody({{"prompt", {"a", "b"}}})));
  EXPECT_EQ(body.at("prompts").as_array().size(), 2u);
  EXPECT_EQ(body.at("prompts").at(0).at("token_ids").at(0).as_int64(), 0);
  EXPECT_TRUE(worker_->submitted().empty());
}

TEST_F(CompletionsTest, TokenizeAndDetokenizeAreInverse) {
  Start();
  const std::string text = "Grüße, 你好 <｜User｜> and \xF0\x9F\x98\x80";
  const json::value tokens = ParseBody(Post("/tokenize", {{"prompt", text}}));
  EXPECT_EQ(tokens.at("count").as_int64(),
            static_cast<int64_t>(tokens.at("tokens").as_array().size()));
  EXPECT_EQ(tokens.at("max_model_len").as_int64(), kContext);
  EXPECT_EQ(tokens.at("tokens").at(0).as_int64(), 0);
  const json::value plain =
      ParseBody(Post("/tokenize", {{"prompt", text}, {"add_special_tokens", false}}));
  EXPECT_EQ(json::value_to<std::vector<int32_t>>(plain.at("tokens")), Encode(text));
  const json::value back = ParseBody(Post("/detokenize", {{"tokens", plain.at("tokens")}}));
  EXPECT_EQ(back.at("prompt").as_string(), text);
}

TEST_F(CompletionsTest, TokenizeOfMessagesCountsLikeTheChatRoute) {
  Start();
  json::object body = ChatBody();
  ASSERT_EQ(Post("/v1/chat/completions", body).status, 200);
  body.erase("model");
  const json::value tokens = ParseBody(Post("/tokenize", body));
  EXPECT_EQ(json::value_to<std::vector<int32_t>>(tokens.at("tokens")), LastPrompt());
}

TEST_F(CompletionsTest, TokenizeFaults) {
  Start();
  for (const json::value& body :
       {json::value{{"prompt", 5}}, json::value(json::object()), json::value(json::array()),
        json::value{{"messages", json::array()}}}) {
    EXPECT_EQ(Post("/tokenize", body).status, 400) << json::serialize(body);
  }
  for (const json::value& tokens :
       {json::value("x"), json::value{1, "x"}, json::value{1.5}, json::value(nullptr)}) {
    EXPECT_EQ(Post("/detokenize", {{"tokens", tokens}}).status, 400) << json::serialize(tokens);
  }
  EXPECT_EQ(Post("/detokenize", json::object()).status, 400);
  EXPECT_EQ(Post("/tokenize", {{"prompt", "x"}, {"model", "nope"}}).status, 404);
}

TEST_F(CompletionsTest, ModelsInBothForms) {
  options_.served_model_names = {"test-model", "second"};
  options_.model_aliases["nick"] = "second";
  Start();
  const json::value list = ParseBody(Get("/v1/models"));
  EXPECT_EQ(list.at("object").as_string(), "list");
  ASSERT_EQ(list.at("data").as_array().size(), 3u);
  EXPECT_EQ(list.at("data").at(0).at("id").as_string(), "test-model");
  EXPECT_EQ(list.at("data").at(0).at("max_model_len").as_int64(), kContext);
  EXPECT_EQ(ParseBody(Get("/v1/models/nick")).at("id").as_string(), "nick");
  const ClientResponse unknown = Get("/v1/models/gpt");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(ErrorCode(unknown), "model_not_found");
  const json::value anthropic = ParseBody(Get("/v1/models", {{"anthropic-version", "2023-06-01"}}));
  EXPECT_EQ(anthropic.at("data").at(0).at("type").as_string(), "model");
  EXPECT_EQ(anthropic.at("first_id").as_string(), "test-model");
  EXPECT_FALSE(anthropic.at("has_more").as_bool());
}

TEST_F(CompletionsTest, InformationRoutes) {
  options_.config_hash = "0123456789abcdef";
  Start();
  const json::value version = ParseBody(Get("/version"));
  EXPECT_EQ(version.at("model_name").as_string(), kModel);
  EXPECT_EQ(version.at("config_hash").as_string(), "0123456789abcdef");
  const json::value info = ParseBody(Get("/tokenizer_info"));
  EXPECT_EQ(info.at("vocab_size").as_int64(), tokenizer_->vocab_size());
  EXPECT_EQ(ParseBody(Get("/openapi.json")).at("openapi").as_string(), "3.1.0");
  const ClientResponse metrics = Get("/metrics");
  EXPECT_TRUE(metrics.headers.at("content-type").starts_with("text/plain; version=0.0.4"));
}

}  // namespace
}  // namespace deepinfer
