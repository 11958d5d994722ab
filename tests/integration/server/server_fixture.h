// A server on an ephemeral port with the demo model's tokenizer and a FakeWorker behind it.
// Thread rule: one test, one thread.
#pragma once

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/load_progress.h"
#include "cluster/gateway.h"
#include "integration/server/fake_worker.h"
#include "integration/server/test_client.h"
#include "server/server.h"
#include "text/tokenizer.h"

namespace deepinfer::testing {

namespace json = boost::json;

class ServerTest : public ::testing::Test {
 protected:
  static constexpr std::string_view kModel = "test-model";
  static constexpr int32_t kContext = 512;

  explicit ServerTest(int32_t context = kContext);
  ~ServerTest() override;

  // Starts with options_, attaches the model unless told otherwise.
  void Start(bool attach = true);
  void Attach();

  uint16_t port() const { return server_->port(); }

  // One request on a connection of its own.
  ClientResponse Get(std::string_view path, TestClient::Headers headers = {});
  ClientResponse Post(std::string_view path, const json::value& body,
                      TestClient::Headers headers = {});
  ClientResponse PostText(std::string_view path, std::string_view body,
                          TestClient::Headers headers = {});

  // {"model":kModel,"messages":[{"role":"user","content":"Hi"}]}, thinking off, plus `more`.
  static json::object ChatBody(const json::object& more = {});
  static json::object CompletionsBody(const json::object& more = {});

  std::vector<int32_t> Encode(std::string_view text) const;
  void SetText(std::string_view text) { worker_->SetOutput(Encode(text)); }

  // A plain request succeeds: nothing is stuck.
  void ExpectAlive();

  // Value of a metric line without labels beside the constant ones; -1 when absent.
  double Metric(std::string_view name);

  ServerOptions options_;
  LoadProgress progress_;
  const Tokenizer* tokenizer_;
  FakeWorker* worker_ = nullptr;  // owned by gateway_
  SteadyClock clock_;
  std::unique_ptr<Gateway> gateway_;
  std::unique_ptr<Server> server_;
};

json::value ParseBody(const ClientResponse& response);

// The JSON of every event of a streamed answer. Checks the framing: each chunk is one complete
// "data:" event, the last one is [DONE].
std::vector<json::value> ParseEvents(const ClientResponse& response);

// Concatenated delta text of a choice: "content", "reasoning_content" or, for completions, "text".
std::string JoinDeltas(const std::vector<json::value>& events, std::string_view field,
                       int64_t choice = 0);

// error.code of an error body; "" when there is none.
std::string ErrorCode(const ClientResponse& response);

}  // namespace deepinfer::testing
