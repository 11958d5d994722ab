// The render routes over real sockets: what a prompt is, in text, tokens and blocks (api.md §2).
#include <gtest/gtest.h>

#include "integration/server/server_fixture.h"
#include "kvcache/keys.h"
#include "support/temp_dir.h"

namespace deepinfer {
namespace {

using namespace testing;  // NOLINT: the helpers of this folder

class RenderTest : public ServerTest {
 protected:
  // Text of more than `blocks` blocks; equal texts begin alike.
  static std::string Long(int blocks) {
    std::string text;
    for (int i = 0; i < 128 * blocks; ++i) text += " word";
    return text;
  }
  static json::value Chat(std::string_view text, const json::object& more = {}) {
    json::object body = ChatBody(more);
    body["messages"] = {{{"role", "user"}, {"content", text}}};
    return body;
  }
  std::vector<std::string> KeysOf(std::string_view path, const json::value& body,
                                  TestClient::Headers headers = {}) {
    json::value rendered = ParseBody(Post(path, body, headers));
    if (json::value* prompts = rendered.as_object().if_contains("prompts")) {
      rendered = prompts->at(0);
    }
    EXPECT_EQ(rendered.at("block_keys").as_array().size(),
              static_cast<size_t>(rendered.at("num_tokens").as_int64()) / 128)
        << path;
    return json::value_to<std::vector<std::string>>(rendered.at("block_keys"));
  }
};

TEST_F(RenderTest, BlockKeysAreThoseOfTheEngine) {
  Start();
  const json::value body = Chat(Long(2));
  const json::value rendered = ParseBody(Post("/v1/chat/completions/render", body));
  EXPECT_EQ(Post("/v1/chat/completions", body).status, 200);
  const EngineRequest request = worker_->submitted().at(0);
  ASSERT_EQ(json::value_to<std::vector<int32_t>>(rendered.at("token_ids")), request.prompt_ids);
  KeyOrigin origin;
  origin.namespace_id = *worker_->info().kv_namespace;
  origin.scope.digest = request.cache_scope;
  std::vector<std::string> keys;
  for (const BlockKey& key : ComputeBlockKeys(origin, request.prompt_ids, {})) {
    keys.push_back(key.Hex());
  }
  EXPECT_EQ(keys.size(), 2u);
  EXPECT_EQ(json::value_to<std::vector<std::string>>(rendered.at("block_keys")), keys);
}

TEST_F(RenderTest, PromptsThatBeginAlikeShareTheirFirstKeys) {
  Start();
  constexpr std::string_view kPath = "/v1/chat/completions/render";
  const auto keys = KeysOf(kPath, Chat(Long(2)));
  const auto longer = KeysOf(kPath, Chat(Long(2) + " and so on" + Long(1)));
  ASSERT_EQ(keys.size(), 2u);
  ASSERT_EQ(longer.size(), 3u);
  EXPECT_EQ(longer[0], keys[0]);
  EXPECT_NE(longer[2], keys[1]);
  const auto narrowed = KeysOf(kPath, Chat(Long(2), {{"user", "someone"}}));
  EXPECT_NE(narrowed[0], keys[0]);
  EXPECT_TRUE(KeysOf(kPath, Chat("short")).empty());
}

TEST_F(RenderTest, EveryDialectNamesItsBlocks) {
  Start();
  const std::string text = Long(1);
  const json::object base{{"model", kModel}, {"max_tokens", 9}};
  json::object responses{{"model", kModel}, {"input", text}};
  json::object completions = base;
  completions["prompt"] = text;
  const auto chat = KeysOf("/v1/chat/completions/render", Chat(text));
  const json::object off{{"type", "disabled"}};
  const auto messages = KeysOf("/v1/messages/render", Chat(text, {{"thinking", off}}));
  responses["reasoning"] = {{"effort", "none"}};
  EXPECT_EQ(chat.size(), 1u);
  // The same prompt has the same blocks, whatever asked for it.
  EXPECT_EQ(KeysOf("/v1/responses/render", responses), chat);
  EXPECT_EQ(messages, chat);
  EXPECT_EQ(KeysOf("/v1/completions/render", completions).size(), 1u);
}

TEST_F(RenderTest, KeysOfTwoTenantsDifferAndModelsAreRestricted) {
  const TempDir folder;
  options_.api_key_file = folder.Write("keys.json", R"({"keys":[{"name":"a","key":"ka"},
      {"name":"b","key":"kb"},{"name":"c","key":"kc","models":["other"]}]})");
  Start();
  constexpr std::string_view kPath = "/v1/chat/completions/render";
  const json::value body = Chat(Long(1));
  const auto a = KeysOf(kPath, body, {{"x-api-key", "ka"}});
  EXPECT_NE(KeysOf(kPath, body, {{"x-api-key", "kb"}}), a);
  EXPECT_EQ(KeysOf(kPath, body, {{"x-api-key", "ka"}}), a);
  for (const std::string_view path :
       {"/v1/chat/completions/render", "/v1/messages/count_tokens", "/v1/completions/render"}) {
    const json::value request =
        path == "/v1/completions/render" ? json::value(CompletionsBody()) : body;
    EXPECT_EQ(Post(path, request, {{"x-api-key", "kc"}}).status, 403) << path;
  }
}

}  // namespace
}  // namespace deepinfer
