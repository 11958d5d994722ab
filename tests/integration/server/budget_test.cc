// Keys that may spend so much and no more (api.md §12), and what they are told of it.
#include <gtest/gtest.h>

#include "economics/price_book.h"
#include "integration/server/server_fixture.h"
#include "support/temp_dir.h"
#include "support/wait_until.h"

namespace deepinfer {
namespace {

using namespace testing;  // NOLINT: the helpers of this folder

constexpr std::string_view kChat = "/v1/chat/completions";
constexpr std::string_view kSpent = "insufficient_balance";

class BudgetTest : public ServerTest {
 protected:
  // "poor" may spend one pico-unit less than `times` plain requests cost.
  void StartWithBudget(int times, std::string_view more = "") {
    const std::string budget = FormatMoney(times * CostOfOne() - 1);
    options_.api_key_file = folder_.Write(
        "keys.json", R"({"keys":[{"name":"poor","key":"p","budget":")" + budget + "\"" +
                         std::string(more) + R"(},{"name":"rich","key":"r"}]})");
    options_.ledger_folder = folder_.File("ledger");
    options_.price_book = std::make_shared<PriceBook>(*PriceBook::Shipped("flat-example"));
    options_.balance_endpoint = true;
    Start();
  }
  // One pico-unit per millionth of a token price: 1 for a prompt token, 2 for a generated one.
  PicoSum CostOfOne() const {
    const auto prompt_tokens = static_cast<PicoSum>(Encode("Hi").size() + 4);
    const auto generated = static_cast<PicoSum>(Encode("Hello there.").size() + 1);
    return (prompt_tokens + 2 * generated) * 1'000'000;
  }
  ClientResponse Ask(std::string_view key) { return Post(kChat, ChatBody(), {{"x-api-key", key}}); }
  json::value Balance(std::string_view key) {
    return ParseBody(Get("/user/balance", {{"x-api-key", key}}));
  }
  // The price of an answer is known a moment after its client has it.
  void WaitSpent() {
    SpinUntil("the end of a budget", [this] { return !Balance("p").at("is_available").as_bool(); });
  }

  const TempDir folder_;
};

TEST_F(BudgetTest, AKeyThatSpentItsBudgetIsRefused) {
  StartWithBudget(2);
  EXPECT_EQ(Ask("p").status, 200);
  EXPECT_TRUE(Balance("p").at("is_available").as_bool());
  EXPECT_EQ(Ask("p").status, 200);
  WaitSpent();
  const ClientResponse refused = Ask("p");
  EXPECT_EQ(refused.status, 402);
  EXPECT_EQ(ErrorCode(refused), kSpent);
  EXPECT_EQ(refused.headers.at("x-should-retry"), "false");
  const ClientResponse anthropic = Post("/v1/messages", ChatBody(), {{"x-api-key", "p"}});
  EXPECT_EQ(anthropic.status, 402);
  EXPECT_EQ(ParseBody(anthropic).at("error").at("type").as_string(), "billing_error");
  // What runs nothing costs nothing.
  EXPECT_EQ(Post("/v1/chat/completions/render", ChatBody(), {{"x-api-key", "p"}}).status, 200);
  EXPECT_EQ(Ask("r").status, 200);
}

TEST_F(BudgetTest, TheBalanceIsExact) {
  StartWithBudget(3);
  EXPECT_EQ(Ask("p").status, 200);
  const auto left = FormatMoney(2 * CostOfOne() - 1);
  SpinUntil("the price of an answer", [&] {
    return Balance("p").at("balance_infos").at(0).at("total_balance").as_string() == left;
  });
  EXPECT_EQ(Balance("p").at("balance_infos").at(0).at("currency").as_string(), "USD");
  EXPECT_TRUE(Balance("r").at("is_available").as_bool());
  EXPECT_TRUE(Balance("r").at("balance_infos").as_array().empty());
}

TEST_F(BudgetTest, ARestartForgetsNothingAndALaterBeginAllOfIt) {
  StartWithBudget(1);
  EXPECT_EQ(Ask("p").status, 200);
  WaitSpent();
  server_->Stop();
  StartWithBudget(1);
  EXPECT_EQ(Ask("p").status, 402);
  server_->Stop();
  StartWithBudget(1, R"(,"budget_from":"2100-01-01")");
  EXPECT_EQ(Ask("p").status, 200);
}

TEST_F(BudgetTest, ABudgetNeedsALedgerAndPrices) {
  options_.api_key_file =
      folder_.Write("keys.json", R"({"keys":[{"name":"a","key":"k","budget":"1.00"}]})");
  for (const bool has_ledger : {false, true}) {
    options_.ledger_folder = has_ledger ? folder_.File("ledger") : "";
    const auto server = Server::Start(options_, &progress_);
    ASSERT_FALSE(server.ok());
    EXPECT_NE(server.status().message().find("--ledger"), std::string::npos);
  }
}

TEST_F(BudgetTest, TheBalanceIsUnknownWithoutItsFlag) {
  Start();
  EXPECT_EQ(Get("/user/balance").status, 404);
}

}  // namespace
}  // namespace deepinfer
