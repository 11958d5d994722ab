// The demo model must answer as its reference did: this tells a right engine from a wrong one.

#include <gtest/gtest.h>

#include "integration/demo_model/demo_cases.h"

namespace deepinfer {
namespace {

TEST(DemoModelCases, PromptsEncodeToTheRecordedIds) {
  const Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Load(DemoModelPath());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  const std::vector<DemoCase> cases = LoadDemoCases();
  ASSERT_EQ(cases.size(), 360u);
  for (const DemoCase& c : cases) {
    std::vector<int32_t> ids;
    (*tokenizer)->EncodeWithSpecials(c.prompt, &ids);
    EXPECT_EQ(ids, c.prompt_ids) << c.name;
    const std::string answer = (*tokenizer)->Decode(c.answer_ids, /*skip_added=*/true);
    EXPECT_TRUE(answer.ends_with(c.expect)) << c.name << ": " << answer;
  }
}

// The engine against the recorded reference run, both modes. A few near-ties may fall the other
// way, because the reference sums in another order.
TEST(DemoModelCases, SolvedCasesAreSolvedAgainAndEveryTaskKeepsItsFloor) {
  DemoRunner runner(DemoModelPath());
  ASSERT_TRUE(runner.ok());
  const std::vector<DemoCase> cases = LoadDemoCases();
  const std::vector<bool> right = runner.Answer(cases);
  Share reproduced;
  std::string lost;
  for (size_t i = 0; i < cases.size(); ++i) {
    if (!cases[i].solved) continue;
    ++reproduced.total;
    reproduced.right += right[i];
    if (!right[i]) lost += ' ' + cases[i].name;
  }
  EXPECT_EQ(reproduced.total, 261);
  EXPECT_GE(reproduced.value(), 0.97) << lost;
  RecordProperty("reproduced", reproduced.right);

  // Floors hold in chat mode (model card: thinking is weaker).
  std::vector<DemoCase> chat;
  std::vector<bool> chat_right;
  for (size_t i = 0; i < cases.size(); ++i) {
    if (cases[i].thinking) continue;
    chat.push_back(cases[i]);
    chat_right.push_back(right[i]);
  }
  std::map<std::string, Share> shares = ShareByTask(chat, chat_right);
  ASSERT_EQ(shares.size(), 15u);
  for (const auto& [task, share] : shares) RecordProperty(task, share.right);
  const std::map<std::string, double> floors = {
      {"greet", 0.85}, {"unknown", 0.85}, {"concept", 0.85}, {"json", 0.85},  {"tools", 0.85},
      {"copy", 0.85},  {"reverse", 0.85}, {"fact", 0.90},    {"needle", 0.75}};
  for (const auto& [task, floor] : floors) {
    EXPECT_EQ(shares[task].total, 16) << task;
    EXPECT_GE(shares[task].value(), floor) << task;
  }
}

}  // namespace
}  // namespace deepinfer
