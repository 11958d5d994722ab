// What clients get wrong, and what the server answers (api.md §12).
#include <gtest/gtest.h>

#include "integration/server/server_fixture.h"

namespace deepinfer {
namespace {

using namespace testing;  // NOLINT: the helpers of this folder

class ErrorsTest : public ServerTest {
 protected:
  // Error fields of the answer to a chat body with `more`.
  struct Fault {
    int status;
    std::string code;
    std::string param;
  };
  Fault FaultOf(const ClientResponse& response) {
    Fault fault{response.status, ErrorCode(response), ""};
    const json::value body = ParseBody(response);
    const json::value* error = body.as_object().if_contains("error");
    if (error == nullptr) return fault;
    const json::value& param = error->at("param");
    if (param.is_string()) fault.param = std::string(param.get_string());
    return fault;
  }
};

TEST_F(ErrorsTest, MalformedJson) {
  Start();
  for (const char* text : {"", "{", "{} x", "[1,]", "{\"a\":NaN}", "{\"a\":\"\\ud800\"}", "\xff",
                           "{\"model\":\"m\",\"model\":\"n\",\"messages\":[]}"}) {
    for (const char* path : {"/v1/chat/completions", "/v1/completions"}) {
      const ClientResponse response = PostText(path, text);
      EXPECT_EQ(response.status, 400) << text;
      EXPECT_EQ(ErrorCode(response), "invalid_json") << path << text;
    }
  }
  EXPECT_EQ(PostText("/v1/chat/completions", std::string(500, '[')).status, 400);
  ExpectAlive();
}

TEST_F(ErrorsTest, WrongTypesAndRangesOfChatFields) {
  Start();
  const struct {
    json::object more;
    std::string_view param;
  } cases[] = {
      {{{"messages", "x"}}, "messages"},
      {{{"messages", json::array()}}, "messages"},
      {{{"messages", {{{"role", "robot"}, {"content", "x"}}}}}, "messages[0].role"},
      {{{"messages", {{{"role", "user"}, {"content", 5}}}}}, "messages[0].content"},
      {{{"model", 5}}, "model"},
      {{{"max_tokens", 0}}, "max_tokens"},
      {{{"max_tokens", -1}}, "max_tokens"},
      {{{"max_tokens", "5"}}, "max_tokens"},
      {{{"max_tokens", 400'000}}, "max_tokens"},
      {{{"temperature", 2.5}}, "temperature"},
      {{{"temperature", "hot"}}, "temperature"},
      {{{"top_p", 0}}, "top_p"},
      {{{"top_k", -2}}, "top_k"},
      {{{"min_p", 1.5}}, "min_p"},
      {{{"n", 0}}, "n"},
      {{{"n", 129}}, "n"},
      {{{"seed", -1}}, "seed"},
      {{{"seed", 1.5}}, "seed"},
      {{{"stop", ""}}, "stop"},
      {{{"stop", {"a", 1}}}, "stop"},
      {{{"stop", json::array(17, "x")}}, "stop"},
      {{{"logit_bias", {{"AI", -100}}}}, "logit_bias"},
      {{{"logit_bias", {{"999999", 1}}}}, "logit_bias"},
      {{{"logit_bias", {{"5", 101}}}}, "logit_bias"},
      {{{"top_logprobs", 2}}, "top_logprobs"},
      {{{"logprobs", true}, {"top_logprobs", 21}}, "top_logprobs"},
      {{{"logprobs", 1}}, "logprobs"},
      {{{"stream", "yes"}}, "stream"},
      {{{"stream_options", {{"include_usage", true}}}}, "stream_options"},
      {{{"tools", {{{"type", "function"}}}}}, "tools[0].function"},
      {{{"thinking", {{"type", "maybe"}}}}, "thinking.type"},
      {{{"reasoning_effort", "enormous"}}, "reasoning_effort"},
  };
  for (const auto& entry : cases) {
    const ClientResponse response = Post("/v1/chat/completions", ChatBody(entry.more));
    EXPECT_EQ(response.status, 400) << json::serialize(entry.more) << response.body;
    const Fault fault = FaultOf(response);
    EXPECT_TRUE(fault.param.starts_with(entry.param))
        << json::serialize(entry.more) << " " << response.body;
    EXPECT_EQ(ParseBody(response).at("error").at("type").as_string(), "invalid_request_error");
    json::object streamed = entry.more;
    if (!streamed.contains("stream")) streamed["stream"] = true;
    if (entry.param != "stream_options") {
      EXPECT_EQ(Post("/v1/chat/completions", ChatBody(streamed)).status, 400)
          << json::serialize(streamed);
    }
  }
  EXPECT_TRUE(worker_->submitted().empty());
  ExpectAlive();
}

TEST_F(ErrorsTest, WrongTypesAndRangesOfCompletionsFields) {
  Start();
  const struct {
    json::object more;
    std::string_view param;
  } cases[] = {
      {{{"prompt", 5}}, "prompt"},
      {{{"prompt", json::array()}}, "prompt"},
      {{{"prompt", {"a", 5}}}, "prompt"},
      {{{"prompt", {5, "a"}}}, "prompt"},
      {{{"prompt", {{-1}}}}, "prompt"},
      {{{"prompt", {{1'000'000}}}}, "prompt"},
      {{{"prompt", {5'000'000'000}}}, "prompt"},
      {{{"max_tokens", 0}}, "max_tokens"},
      {{{"logprobs", -1}}, "logprobs"},
      {{{"logprobs", 1001}}, "logprobs"},
      {{{"logprobs", "all"}}, "logprobs"},
      {{{"echo", 1}}, "echo"},
      {{{"n", 2}, {"best_of", 1}}, "best_of"},
      {{{"best_of", 3}, {"stream", true}}, "best_of"},
      {{{"best_of", 129}}, "best_of"},
      {{{"suffix", "end"}}, "suffix"},
      {{{"suffix", 5}}, "suffix"},
      {{{"temperature", -1}}, "temperature"},
      {{{"stop", ""}}, "stop"},
  };
  for (const auto& entry : cases) {
    const ClientResponse response = Post("/v1/completions", CompletionsBody(entry.more));
    EXPECT_EQ(response.status, 400) << json::serialize(entry.more) << response.body;
    EXPECT_TRUE(FaultOf(response).param.starts_with(entry.param))
        << json::serialize(entry.more) << response.body;
  }
  EXPECT_TRUE(worker_->submitted().empty());
  ExpectAlive();
}

TEST_F(ErrorsTest, MissingFieldsAndUnknownModel) {
  Start();
  ClientResponse response = PostText("/v1/chat/completions", R"({"model":"test-model"})");
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(FaultOf(response).code, "missing_required_parameter");
  EXPECT_EQ(FaultOf(response).param, "messages");
  for (const char* path : {"/v1/chat/completions", "/v1/completions"}) {
    json::object body = ChatBody({{"model", "gpt-x"}});
    body["prompt"] = "x";
    response = Post(path, body);
    EXPECT_EQ(response.status, 404) << response.body;
    EXPECT_EQ(ErrorCode(response), "model_not_found");
    EXPECT_NE(response.body.find(kModel), std::string::npos);
  }
}

TEST_F(ErrorsTest, WhatThisServerCannotRunIsRefusedNotIgnored) {
  Start();
  const json::array tools{json::object{{"type", "function"}, {"function", {{"name", "f"}}}}};
  const json::object cases[] = {
      {{"tools", tools}, {"structured_outputs", {{"regex", "a+"}}}},
      {{"tools", tools}, {"thinking", {{"type", "enabled"}}}, {"tool_choice", "required"}},
      {{"add_generation_prompt", false}},
      {{"messages",
        {{{"role", "user"},
          {"content",
           {{{"type", "image_url"},
             {"image_url", {{"url", "data:image/png;base64,iVBORw0KGgo="}}}}}}}}}},
  };
  for (const json::object& more : cases) {
    const ClientResponse response = Post("/v1/chat/completions", ChatBody(more));
    EXPECT_EQ(response.status, 400) << json::serialize(more) << response.body;
    EXPECT_EQ(ErrorCode(response), "unsupported_parameter") << json::serialize(more);
  }
  EXPECT_TRUE(worker_->submitted().empty());
}

TEST_F(ErrorsTest, RoutesAndMethods) {
  Start();
  ClientResponse response = Get("/v1/chat/completions");
  EXPECT_EQ(response.status, 405);
  EXPECT_EQ(response.headers.at("allow"), "POST");
  EXPECT_EQ(ErrorCode(response), "method_not_allowed");
  response = PostText("/v1/models", "{}");
  EXPECT_EQ(response.status, 405);
  EXPECT_EQ(response.headers.at("allow"), "GET, HEAD");
  EXPECT_EQ(ErrorCode(Get("/nothing")), "unknown_url");
  EXPECT_EQ(Get("/nothing").status, 404);
  for (const char* path : {"/v1/embeddings", "/v1/moderations"}) {
    response = PostText(path, "{}");
    EXPECT_EQ(response.status, 404);
    EXPECT_EQ(ErrorCode(response), "unsupported_endpoint");
  }
  response = *TestClient(port()).Request("OPTIONS", "/v1/chat/completions", {},
                                         {{"Origin", "https://a.example"}});
  EXPECT_EQ(response.status, 405);
  EXPECT_FALSE(response.headers.contains("access-control-allow-origin"));
}

TEST_F(ErrorsTest, CorsAnswersConfiguredOriginsOnly) {
  options_.cors.allowed_origins = {"https://a.example"};
  Start();
  ClientResponse response = *TestClient(port()).Request("OPTIONS", "/v1/chat/completions", {},
                                                        {{"Origin", "https://a.example"}});
  EXPECT_EQ(response.status, 204);
  EXPECT_EQ(response.headers.at("access-control-allow-origin"), "https://a.example");
  response = Get("/v1/models", {{"Origin", "https://a.example"}});
  EXPECT_EQ(response.headers.at("access-control-allow-origin"), "https://a.example");
  response = Get("/v1/models", {{"Origin", "https://b.example"}});
  EXPECT_EQ(response.status, 200);
  EXPECT_FALSE(response.headers.contains("access-control-allow-origin"));
}

TEST_F(ErrorsTest, KeysAreAskedForExceptByProbes) {
  options_.api_keys = {"secret-one", "secret-two"};
  Start();
  for (const char* path : {"/live", "/health", "/v1/health", "/ping", "/ready"}) {
    EXPECT_EQ(Get(path).status, 200) << path;
  }
  for (const char* path : {"/v1/models", "/metrics", "/version", "/openapi.json", "/tokenizer_info",
                           "/health_generate"}) {
    EXPECT_EQ(Get(path).status, 401) << path;
    EXPECT_EQ(Get(path, {{"Authorization", "Bearer secret-two"}}).status, 200) << path;
  }
  const ClientResponse refused =
      Post("/v1/chat/completions", ChatBody(), {{"Authorization", "Bearer secret"}});
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(ErrorCode(refused), "invalid_api_key");
  EXPECT_EQ(ParseBody(refused).at("error").at("type").as_string(), "authentication_error");
  EXPECT_EQ(Post("/v1/chat/completions", ChatBody(), {{"x-api-key", "secret-one"}}).status, 200);
  EXPECT_EQ(
      Post("/v1/chat/completions", ChatBody(), {{"authorization", "bearer secret-one"}}).status,
      200);
}

TEST_F(ErrorsTest, OpenAddressNeedsKeys) {
  options_.http.host = "0.0.0.0";
  EXPECT_EQ(Server::Start(options_, &progress_).status().code(), StatusCode::kInvalidRequest);
  options_.allow_unauthenticated = true;
  EXPECT_TRUE(Server::Start(options_, &progress_).ok());
  options_.enable_test_hooks = true;
  EXPECT_EQ(Server::Start(options_, &progress_).status().code(), StatusCode::kInvalidRequest);
}

TEST_F(ErrorsTest, EngineRefusalsBecomeStatusCodesBeforeTheStream) {
  Start();
  const struct {
    Status status;
    int http;
    std::string_view code;
  } cases[] = {
      {ResourceExhausted("full"), 429, "rate_limit_exceeded"},
      {Unavailable("gone"), 503, "server_overloaded"},
      {Internal("secret path /x/y"), 500, ""},
  };
  for (const auto& entry : cases) {
    worker_->SetSubmitStatus(entry.status);
    for (const bool stream : {false, true}) {
      const ClientResponse response =
          Post("/v1/chat/completions", ChatBody({{"stream", stream}, {"n", 2}}));
      EXPECT_EQ(response.status, entry.http);
      EXPECT_EQ(response.headers.at("content-type"), "application/json");
      if (!entry.code.empty()) {
        EXPECT_EQ(ErrorCode(response), entry.code);
      }
      EXPECT_EQ(response.body.find("/x/y"), std::string::npos);
      EXPECT_EQ(response.headers.contains("retry-after"), entry.http != 500);
    }
  }
  worker_->SetSubmitStatus(OkStatus());
  ExpectAlive();
}

TEST_F(ErrorsTest, FailureAfterHeadersIsOneErrorEvent) {
  Start();
  worker_->SetOutput(Encode("word "), true);
  worker_->SetFailure(2, Internal("secret detail"));
  const ClientResponse stream =
      Post("/v1/chat/completions", ChatBody({{"stream", true}, {"max_tokens", 8}}));
  const auto events = ParseEvents(stream);
  ASSERT_GE(events.size(), 2u);
  EXPECT_TRUE(events.back().as_object().contains("error"));
  EXPECT_EQ(stream.body.find("secret detail"), std::string::npos);
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    EXPECT_FALSE(events[i].as_object().contains("error"));
  }
  EXPECT_EQ(Post("/v1/chat/completions", ChatBody({{"max_tokens", 8}})).status, 500);
}

TEST_F(ErrorsTest, DeadlineIs504OrAFinishReason) {
  Start();
  worker_->SetOutput(Encode("word "), true);
  worker_->SetFailure(2, DeadlineExceeded("too late"), FinishReason::kDeadline);
  const ClientResponse whole = Post("/v1/chat/completions", ChatBody({{"max_tokens", 8}}));
  EXPECT_EQ(whole.status, 504);
  EXPECT_EQ(ErrorCode(whole), "deadline_exceeded");
  const auto events =
      ParseEvents(Post("/v1/chat/completions", ChatBody({{"stream", true}, {"max_tokens", 8}})));
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back().at("choices").at(0).at("finish_reason").as_string(),
            "insufficient_system_resource");
}

TEST_F(ErrorsTest, QueueTimeOutIs503WithItsOwnCode) {
  Start();
  worker_->SetOutput(Encode("word "), true);
  worker_->SetFailure(0, Unavailable("waited"), FinishReason::kQueueTimeout);
  const ClientResponse whole = Post("/v1/chat/completions", ChatBody({{"max_tokens", 8}}));
  EXPECT_EQ(whole.status, 503);
  EXPECT_EQ(ErrorCode(whole), "queue_timeout");
  EXPECT_EQ(ParseBody(whole).at("error").at("type").as_string(), "server_error");
  EXPECT_TRUE(whole.headers.contains("retry-after"));
  for (const std::string_view path : {"/v1/chat/completions", "/v1/completions"}) {
    json::object body = path == "/v1/completions" ? CompletionsBody() : ChatBody();
    body["stream"] = true;
    const auto events = ParseEvents(Post(path, body));
    ASSERT_EQ(events.size(), 1u) << path;
    EXPECT_EQ(events[0].at("error").at("code").as_string(), "queue_timeout");
  }
}

TEST_F(ErrorsTest, ARequestInQuarantineIsNotToBeSentAgain) {
  Start();
  worker_->SetFailure(0, Unavailable("lost"), FinishReason::kQuarantined);
  const ClientResponse whole = Post("/v1/chat/completions", ChatBody());
  EXPECT_EQ(whole.status, 500);
  EXPECT_EQ(ErrorCode(whole), "request_quarantined");
  EXPECT_EQ(whole.headers.at("x-should-retry"), "false");
  EXPECT_FALSE(whole.headers.contains("retry-after"));
}

TEST_F(ErrorsTest, NothingLeftToSampleIsTheRequestsFault) {
  Start();
  worker_->SetFailure(0, InvalidRequest("every token is banned at this position"));
  const ClientResponse whole = Post("/v1/chat/completions", ChatBody());
  EXPECT_EQ(whole.status, 400);
  EXPECT_EQ(ErrorCode(whole), "grammar_dead_end");
}

TEST_F(ErrorsTest, BodyLimit) {
  options_.http.max_body_bytes = 1000;
  Start();
  const ClientResponse response = PostText("/v1/chat/completions", std::string(2000, ' '));
  EXPECT_EQ(response.status, 413);
  EXPECT_EQ(ErrorCode(response), "request_too_large");
}

TEST_F(ErrorsTest, ErrorsAreCountedByCode) {
  Start();
  // On one connection a request is counted before the next one is read.
  TestClient client(port());
  client.Request("GET", "/nothing");
  client.Request("POST", "/v1/chat/completions", json::serialize(ChatBody({{"max_tokens", 0}})));
  const std::string text = client.Request("GET", "/metrics")->body;
  const std::string labels = R"({engine="0",model_name="test-model",role="all",)";
  for (const char* series : {R"(code="unknown_url"} 1)", R"(code="invalid_value"} 1)"}) {
    EXPECT_NE(text.find("deepinfer:errors_total" + labels + series), std::string::npos) << text;
  }
  EXPECT_NE(text.find("deepinfer:http_requests_total" + labels +
                      R"(handler="unknown",method="GET",status="404"} 1)"),
            std::string::npos)
      << text;
}

}  // namespace
}  // namespace deepinfer
