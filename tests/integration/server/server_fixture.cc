#include "integration/server/server_fixture.h"

#include <cstdlib>

#include "base/log.h"
#include "support/source_dir.h"
#include "text/special_tokens.h"

namespace deepinfer::testing {
namespace {

const Tokenizer& SharedTokenizer() {
  static const std::unique_ptr<Tokenizer> tokenizer = [] {
    auto loaded = Tokenizer::Load(SourceDir() + "/models/deepinfer-tiny");
    return loaded.ok() ? *std::move(loaded) : nullptr;
  }();
  return *tokenizer;
}

}  // namespace

ServerTest::ServerTest(int32_t context) : tokenizer_(&SharedTokenizer()) {
  InitLogging(LogLevel::kOff, LogFormat::kText);
  WorkerInfo info;
  info.model_name = kModel;
  info.numerics_id = "fake";
  info.vocab_size = tokenizer_->vocab_size();
  info.max_model_len = context;
  info.eos_token_id = 1;
  info.kv_namespace = Sha256("blocks of the test");
  auto worker = std::make_unique<FakeWorker>(info);
  worker_ = worker.get();
  std::vector<std::unique_ptr<Worker>> workers;
  workers.push_back(std::move(worker));
  gateway_ = std::make_unique<Gateway>(GatewayOptions(), std::move(workers), &clock_);
  SetText("Hello there.");
  options_.http.port = 0;
  options_.served_model_names = {std::string(kModel)};
  options_.log_requests = LogRequests::kOff;
}

ServerTest::~ServerTest() {
  if (server_) server_->Stop();
  server_.reset();
}

void ServerTest::Start(bool attach) {
  auto server = Server::Start(options_, &progress_);
  ASSERT_TRUE(server.ok()) << server.status().ToString();
  server_ = *std::move(server);
  if (attach) Attach();
}

void ServerTest::Attach() {
  ModelContext context;
  context.tokenizer = tokenizer_;
  context.gateway = gateway_.get();
  auto special = SpecialTokens::Resolve(*tokenizer_);
  ASSERT_TRUE(special.ok()) << special.status().ToString();
  context.special = *special;
  context.card.created_s = 1'700'000'000;
  server_->Attach(std::move(context));
}

ClientResponse ServerTest::Get(std::string_view path, TestClient::Headers headers) {
  return TestClient(port()).Request("GET", path, {}, headers).value_or(ClientResponse());
}

ClientResponse ServerTest::Post(std::string_view path, const json::value& body,
                                TestClient::Headers headers) {
  return PostText(path, json::serialize(body), headers);
}

ClientResponse ServerTest::PostText(std::string_view path, std::string_view body,
                                    TestClient::Headers headers) {
  return TestClient(port()).Request("POST", path, body, headers).value_or(ClientResponse());
}

json::object ServerTest::ChatBody(const json::object& more) {
  json::object body{{"model", kModel},
                    {"messages", {{{"role", "user"}, {"content", "Hi"}}}},
                    {"thinking", {{"type", "disabled"}}}};
  for (const auto& member : more) body[member.key()] = member.value();
  return body;
}

json::object ServerTest::CompletionsBody(const json::object& more) {
  json::object body{{"model", kModel}, {"prompt", "Once"}};
  for (const auto& member : more) body[member.key()] = member.value();
  return body;
}

std::vector<int32_t> ServerTest::Encode(std::string_view text) const {
  std::vector<int32_t> ids;
  tokenizer_->EncodeWithSpecials(text, &ids);
  return ids;
}

void ServerTest::ExpectAlive() {
  EXPECT_TRUE(worker_->WaitIdle());
  EXPECT_EQ(Post("/v1/chat/completions", ChatBody({{"max_tokens", 4}})).status, 200);
  EXPECT_TRUE(worker_->WaitIdle());
}

double ServerTest::Metric(std::string_view name) {
  const std::string text = std::string("\n").append(Get("/metrics").body);
  const std::string line = std::string("\n").append(name);
  for (size_t at = text.find(line); at != std::string::npos; at = text.find(line, at + 1)) {
    const char next = text[at + line.size()];
    if (next != '{' && next != ' ') continue;
    const size_t end = text.find('\n', at + 1);
    return std::atof(text.c_str() + text.rfind(' ', end));
  }
  return -1;
}

json::value ParseBody(const ClientResponse& response) {
  json::error_code error;
  json::value value = json::parse(response.body, error);
  EXPECT_FALSE(error) << response.status << ": " << response.body;
  return value;
}

std::vector<json::value> ParseEvents(const ClientResponse& response) {
  std::vector<json::value> events;
  EXPECT_EQ(response.status, 200) << response.body;
  if (response.chunks.empty() || response.chunks.back() != "data: [DONE]\n\n") {
    ADD_FAILURE() << "the stream does not end with [DONE]: " << response.body;
    return events;
  }
  for (size_t i = 0; i + 1 < response.chunks.size(); ++i) {
    const std::string& chunk = response.chunks[i];
    const bool framed = chunk.starts_with("data: {") && chunk.ends_with("}\n\n") &&
                        chunk.find('\n') == chunk.size() - 2;
    EXPECT_TRUE(framed) << chunk;
    if (framed) events.push_back(json::parse(chunk.substr(6)));
  }
  return events;
}

std::string JoinDeltas(const std::vector<json::value>& events, std::string_view field,
                       int64_t choice) {
  std::string text;
  for (const json::value& event : events) {
    for (const json::value& entry : event.at("choices").as_array()) {
      if (entry.at("index").as_int64() != choice) continue;
      const json::object& object = entry.as_object();
      const json::object& holder =
          object.contains("delta") ? object.at("delta").as_object() : object;
      const json::value* value = holder.if_contains({field.data(), field.size()});
      if (value != nullptr && value->is_string()) text += std::string(value->get_string());
    }
  }
  return text;
}

std::string ErrorCode(const ClientResponse& response) {
  const json::value body = ParseBody(response);
  const json::object* object = body.if_object();
  const json::value* error = object == nullptr ? nullptr : object->if_contains("error");
  if (error == nullptr || !error->is_object()) return "";
  for (const char* field : {"message", "type", "param", "code"}) {
    EXPECT_TRUE(error->get_object().contains(field)) << response.body;
  }
  const json::value& code = error->at("code");
  return code.is_string() ? std::string(code.get_string()) : "";
}

}  // namespace deepinfer::testing
