// Drafts on a model that was trained with its draft model: the answers stay, and the drafts are
// good.

#include <gtest/gtest.h>

#include "integration/demo_model/demo_cases.h"

namespace deepinfer {
namespace {

class DemoSpeculation : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<ModelBundle> bundle = ModelBundle::Load(DemoModelPath(), BundleOptions(), nullptr);
    ASSERT_TRUE(bundle.ok()) << bundle.status().ToString();
    bundle_ = std::make_unique<ModelBundle>(*std::move(bundle));
  }

  // Ids of the answers to all requests, which run at the same time.
  std::vector<std::vector<int32_t>> Answer(const SpeculationOptions& speculation,
                                           const std::vector<EngineRequest>& requests) {
    EngineOptions options;
    options.max_model_len = 1024;
    options.speculation = speculation;
    SteadyClock clock;
    Result<std::unique_ptr<Engine>> engine = Engine::Create(bundle_->model.get(), options, &clock);
    EXPECT_TRUE(engine.ok()) << engine.status().ToString();
    std::vector<TokenCollector> out(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_TRUE((*engine)->Submit(requests[i], out[i].Sink()).ok());
    }
    std::vector<std::vector<int32_t>> ids;
    for (TokenCollector& o : out) {
      EXPECT_TRUE(o.Wait().status.ok());
      ids.push_back(o.ids());
    }
    statistics_ = (*engine)->Statistics();
    return ids;
  }

  // Every eighth case in turn greedy and strict.
  static std::vector<EngineRequest> Requests() {
    std::vector<EngineRequest> requests;
    const std::vector<DemoCase> cases = LoadDemoCases();
    for (size_t i = 0; i < cases.size(); i += 8) {
      EngineRequest r;
      r.request_id = cases[i].name;
      r.prompt_ids = cases[i].prompt_ids;
      r.sampling.max_tokens = 48;
      r.sampling.temperature = i % 16 == 0 ? 0.0f : 0.8f;
      r.sampling.has_seed = true;
      r.sampling.seed = i;
      requests.push_back(std::move(r));
    }
    return requests;
  }

  std::unique_ptr<ModelBundle> bundle_;
  EngineStatistics statistics_;
};

TEST_F(DemoSpeculation, K04_AnswersStayAndDraftsAreAccepted) {
  const std::vector<EngineRequest> requests = Requests();
  SpeculationOptions off;
  off.enabled = false;
  const auto want = Answer(off, requests);
  EXPECT_EQ(statistics_.draft_tokens, 0);
  const int64_t plain_steps = statistics_.steps;

  SpeculationOptions fixed;
  fixed.verify = VerifyPolicy::kFixed;
  EXPECT_EQ(Answer(fixed, requests), want);
  // The model card: first drafts are accepted in four of five cases, others more often.
  const auto share = static_cast<double>(statistics_.draft_accepted_by_position[0]) /
                     static_cast<double>(statistics_.draft_verified_by_position[0]);
  EXPECT_GT(share, 0.6);
  EXPECT_LT(statistics_.steps, plain_steps);

  EXPECT_EQ(Answer(SpeculationOptions(), requests), want);
  SpeculationOptions threshold;
  threshold.verify = VerifyPolicy::kThreshold;
  EXPECT_EQ(Answer(threshold, requests), want);
  EXPECT_GT(statistics_.draft_accepted, statistics_.draft_tokens / 2);
}

}  // namespace
}  // namespace deepinfer
