// One request, one answer, on a trained model: bits depend neither on the batch, the chunks, the
// threads, exact cache hits, parking nor forks (numerics.md §1).

#include <gtest/gtest.h>

#include <algorithm>

#include "integration/demo_model/demo_cases.h"

namespace deepinfer {
namespace {

class DemoEquality : public ::testing::Test {
 protected:
  static constexpr int32_t kMaxModelLen = 1024;

  static void SetUpTestSuite() { model_ = Load(0); }
  static void TearDownTestSuite() { model_.reset(); }

  static std::unique_ptr<ModelBundle> Load(int threads) {
    BundleOptions options;
    options.num_threads = threads;
    Result<ModelBundle> bundle = ModelBundle::Load(DemoModelPath(), options, nullptr);
    EXPECT_TRUE(bundle.ok()) << bundle.status().ToString();
    return bundle.ok() ? std::make_unique<ModelBundle>(*std::move(bundle)) : nullptr;
  }

  void Start(EngineOptions options, ModelBundle* bundle = model_.get(),
             int32_t max_model_len = kMaxModelLen) {
    engine_.reset();
    options.max_model_len = max_model_len;
    Result<std::unique_ptr<Engine>> engine = Engine::Create(bundle->model.get(), options, &clock_);
    ASSERT_TRUE(engine.ok()) << engine.status().ToString();
    engine_ = *std::move(engine);
  }
  static EngineOptions NoCache(int32_t rows = 512) {
    EngineOptions o;
    o.prefix_cache = false;
    o.max_num_batched_tokens = rows;
    return o;
  }

  // Recorded prompts of every task, some behind a long conversation; greedy and seeded, each with
  // log-probabilities.
  static std::vector<EngineRequest> Mix(int32_t max_tokens = 24, bool ignore_eos = false,
                                        size_t history_tokens = 420) {
    const std::vector<DemoCase> cases = LoadDemoCases();
    std::vector<int32_t> history;
    for (size_t i = 0; i < cases.size() && history.size() < history_tokens; i += 23) {
      const size_t begin = history.empty() ? 0 : 1;  // one begin token
      history.insert(history.end(), cases[i].prompt_ids.begin() + static_cast<ptrdiff_t>(begin),
                     cases[i].prompt_ids.end());
      history.insert(history.end(), cases[i].answer_ids.begin(), cases[i].answer_ids.end());
    }
    std::vector<EngineRequest> mix;
    for (size_t i = 0; i < cases.size(); i += 37) {
      EngineRequest r;
      r.request_id = std::to_string(mix.size());
      r.prompt_ids = cases[i].prompt_ids;
      if (mix.size() % 3 == 1) {
        r.prompt_ids = history;
        r.prompt_ids.insert(r.prompt_ids.end(), cases[i].prompt_ids.begin() + 1,
                            cases[i].prompt_ids.end());
      }
      r.sampling.temperature = mix.size() % 2 == 0 ? 0.0f : 1.0f;
      r.sampling.seed = 100 + i;
      r.sampling.has_seed = true;
      r.sampling.max_tokens = max_tokens;
      r.sampling.ignore_eos = ignore_eos;
      r.sampling.num_top_logprobs = 4;
      mix.push_back(std::move(r));
    }
    return mix;
  }

  std::vector<std::unique_ptr<TokenCollector>> RunAll(std::vector<EngineRequest> requests,
                                                      bool together) {
    std::vector<std::unique_ptr<TokenCollector>> out;
    for (EngineRequest& r : requests) {
      out.push_back(std::make_unique<TokenCollector>());
      const Status status = engine_->Submit(std::move(r), out.back()->Sink());
      EXPECT_TRUE(status.ok()) << status.ToString();
      if (!together) out.back()->Wait();
    }
    for (const auto& o : out) EXPECT_TRUE(o->Wait().status.ok());
    return out;
  }
  // The answers of a quiet engine, one request at a time.
  std::vector<std::unique_ptr<TokenCollector>> Want() {
    Start(NoCache());
    return RunAll(Mix(), /*together=*/false);
  }

  static void ExpectSame(const std::vector<std::unique_ptr<TokenCollector>>& got,
                         const std::vector<std::unique_ptr<TokenCollector>>& want,
                         const std::string& where) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got[i]->ids(), want[i]->ids()) << where << " request " << i;
      ASSERT_EQ(got[i]->logprobs().size(), want[i]->logprobs().size());
      for (size_t t = 0; t < want[i]->logprobs().size(); ++t) {
        const TokenLogprobs &a = got[i]->logprobs()[t], &b = want[i]->logprobs()[t];
        ASSERT_EQ(a.logprob, b.logprob) << where << " request " << i << " token " << t;
        ASSERT_EQ(a.top, b.top) << where << " request " << i << " token " << t;
      }
    }
  }

  static inline std::unique_ptr<ModelBundle> model_;
  SteadyClock clock_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(DemoEquality, BatchAndChunks) {
  const auto want = Want();
  for (int32_t rows : {512, 64, 7}) {
    Start(NoCache(rows));
    ExpectSame(RunAll(Mix(), true), want, "rows " + std::to_string(rows));
  }
  EngineOptions synchronous = NoCache();
  synchronous.async_scheduling = false;
  Start(synchronous);
  ExpectSame(RunAll(Mix(), true), want, "synchronous");
}

TEST_F(DemoEquality, Threads) {
  const auto want = Want();
  for (int threads : {1, 3}) {
    const std::unique_ptr<ModelBundle> other = Load(threads);
    ASSERT_NE(other, nullptr);
    Start(NoCache(64), other.get());
    ExpectSame(RunAll(Mix(), true), want, "threads " + std::to_string(threads));
    engine_.reset();
  }
}

TEST_F(DemoEquality, SamplingOnSeveralThreads) {
  // Enough rows of the demo model's vocabulary that they are spread.
  const auto requests = [] {
    std::vector<EngineRequest> many;
    for (size_t turn = 0; turn < 3; ++turn) {
      for (EngineRequest& r : Mix()) {
        r.request_id = std::to_string(many.size());
        r.sampling.seed += turn;
        r.sampling.ignore_eos = true;
        many.push_back(std::move(r));
      }
    }
    return many;
  };
  EngineOptions o = NoCache();
  o.max_num_seqs = 32;
  Start(o);
  const auto want = RunAll(requests(), true);
  const std::unique_ptr<ModelBundle> other = Load(3);
  ASSERT_NE(other, nullptr);
  o.sampling_pool = other->pool.get();
  Start(o, other.get());
  ExpectSame(RunAll(requests(), true), want, "three threads");
  engine_.reset();
}

TEST_F(DemoEquality, ExactHits) {
  // Longer than what an exact replay runs again, which would otherwise save nothing.
  const auto requests = [] { return Mix(24, false, 1000); };
  Start(NoCache(), model_.get(), 2 * kMaxModelLen);
  const auto want = RunAll(requests(), false);
  for (bool snapshots : {false, true}) {
    EngineOptions o;
    o.replay = ReplayMode::kExact;
    o.swa_snapshots = snapshots;
    o.min_hit_tokens = 128;
    Start(o, model_.get(), 2 * kMaxModelLen);
    const std::string where = snapshots ? "with snapshots" : "by replay";
    ExpectSame(RunAll(requests(), false), want, "first run " + where);
    ExpectSame(RunAll(requests(), true), want, "second run " + where);
    EXPECT_GT(engine_->Statistics().cached_tokens, 0) << where;
  }
}

TEST_F(DemoEquality, ParkedWithAndWithoutTheImage) {
  // Long enough that sequences outgrow the pool.
  constexpr int32_t kMaxTokens = 130;
  Start(NoCache());
  const auto want = RunAll(Mix(kMaxTokens, true), false);
  for (int64_t pool_bytes : {int64_t{-1}, int64_t{0}}) {
    EngineOptions o;
    o.kv_cache_tokens = 10 * 128;
    o.max_num_seqs = 10;
    o.replay = ReplayMode::kExact;
    o.swa_pool_bytes = pool_bytes;
    Start(o);
    ExpectSame(RunAll(Mix(kMaxTokens, true), true), want,
               "image bytes " + std::to_string(pool_bytes));
    EXPECT_GT(engine_->Statistics().parks, 0);
  }
}

TEST_F(DemoEquality, Forks) {
  std::vector<EngineRequest> singles;
  const std::vector<EngineRequest> mix = Mix();
  for (uint64_t i = 0; i < 5; ++i) {
    EngineRequest r = mix[1];
    r.request_id = "branch" + std::to_string(i);
    r.sampling.temperature = 1.0f;
    r.sampling.seed = 900 + i;
    singles.push_back(std::move(r));
  }
  Start(NoCache());
  const auto want = RunAll(singles, false);
  Start(NoCache());
  std::vector<EngineRequest> branches = singles;
  for (size_t i = 1; i < branches.size(); ++i) branches[i].branch_of = "branch0";
  const auto got = RunAll(std::move(branches), true);
  ExpectSame(got, want, "forks");
  EXPECT_EQ(got[1]->Wait().counters.computed_tokens, 1) << "the prompt was computed once";
}

}  // namespace
}  // namespace deepinfer
