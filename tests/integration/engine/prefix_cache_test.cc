// Prompts that begin like earlier ones: which rows run, what is counted, who may share, and that
// exact hits change no bit (model.md §13.2).

#include <gtest/gtest.h>

#include "engine/state_image.h"
#include "integration/engine/engine_fixture.h"

namespace deepinfer {
namespace {

class PrefixCache : public EngineTest {
 protected:
  void SetUp() override { Start(Options(ReplayMode::kExact, false), 2048); }

  static EngineOptions Options(ReplayMode replay, bool snapshots) {
    EngineOptions o;
    o.replay = replay;
    o.swa_snapshots = snapshots;
    o.min_hit_tokens = 128;
    return o;
  }
  // Rows back to where an encoder row's windows reach through all encoder layers.
  static int64_t EncoderReach() {
    return (model_->get()->config().window - 1) * model_->get()->config().decoder_start();
  }
  static int32_t KeepRows() { return model_->get()->config().decoder_keep_rows(); }

  static EngineRequest Request(std::vector<int32_t> prompt, std::string id = std::string("r")) {
    return StrictRequest(std::move(prompt), 8, 5, std::move(id));
  }
  // The prompt's first `shared` tokens, then others.
  static std::vector<int32_t> Variant(std::vector<int32_t> prompt, int32_t shared, int32_t length) {
    const std::vector<int32_t> other = RandomPrompt(length, 1234);
    prompt.resize(static_cast<size_t>(length));
    std::copy(other.begin() + shared, other.end(), prompt.begin() + shared);
    return prompt;
  }
  static void ExpectIdentity(const RequestCounters& c) {
    EXPECT_EQ(c.cached_tokens + c.computed_tokens, c.prompt_tokens);
  }
};

TEST_F(PrefixCache, ExactHitsOfAnyLengthGiveTheBitsOfAColdRun) {
  const std::vector<int32_t> first = RandomPrompt(640, 50);
  struct Case {
    int32_t shared, length;
  };
  for (const Case& c :
       {Case{0, 600}, Case{128, 600}, Case{256, 600}, Case{600, 700}, Case{640, 640}}) {
    const std::string where =
        "shared " + std::to_string(c.shared) + " length " + std::to_string(c.length);
    const std::vector<int32_t> prompt = Variant(first, c.shared, c.length);
    Start(Options(ReplayMode::kExact, false), 2048);
    const auto cold = Run(Request(prompt));
    EXPECT_EQ(cold->Wait().counters.cached_tokens, 0) << where;

    Start(Options(ReplayMode::kExact, false), 2048);
    Run(Request(first));
    const auto hit = Run(Request(prompt));
    ExpectSameAnswer(*hit, *cold, where);
    const RequestCounters counters = hit->Wait().counters;
    ExpectIdentity(counters);
    const int64_t blocks = c.shared / 128 * 128;
    const int64_t bound = std::max<int64_t>(0, std::min<int64_t>(blocks, c.length - KeepRows()));
    const int64_t s = std::max<int64_t>(0, bound / 128 * 128 - EncoderReach());
    EXPECT_EQ(counters.cached_tokens, s) << where;
    EXPECT_EQ(counters.replayed_tokens, s == 0 ? 0 : blocks - s) << where;
  }
}

TEST_F(PrefixCache, ASnapshotMakesTheSamePromptExactAndCheap) {
  for (ReplayMode mode : {ReplayMode::kExact, ReplayMode::kBounded}) {
    Start(Options(mode, true), 2048);
    const std::vector<int32_t> prompt = RandomPrompt(1000, 51);
    const auto cold = Run(Request(prompt));
    const auto hit = Run(Request(prompt));
    ExpectSameAnswer(*hit, *cold);
    const RequestCounters c = hit->Wait().counters;
    ExpectIdentity(c);
    EXPECT_EQ(c.cached_tokens, (1000 - KeepRows()) / 128 * 128);
    EXPECT_EQ(c.replayed_tokens, 896 - c.cached_tokens);
  }
}

TEST_F(PrefixCache, TheNextTurnContinuesAtTheLastEdgeOfTheAnswer) {
  const std::vector<int32_t> first = RandomPrompt(500, 52);
  EngineRequest r = StrictRequest(first, 300, 9);
  Start(Options(ReplayMode::kExact, true), 2048);
  const auto turn = Run(r);
  std::vector<int32_t> next = first;
  next.insert(next.end(), turn->ids().begin(), turn->ids().end());
  const std::vector<int32_t> question = RandomPrompt(200, 53);
  next.insert(next.end(), question.begin(), question.end());
  const auto hit = Run(Request(next));
  EXPECT_EQ(hit->Wait().counters.cached_tokens, 768) << "blocks of the answer are cached too";
  EXPECT_EQ(hit->Wait().counters.replayed_tokens, 0);

  Start(Options(ReplayMode::kExact, true), 2048);
  ExpectSameAnswer(*hit, *Run(Request(next)));
}

TEST_F(PrefixCache, StateIsKeptWhereARequestSaysThatOthersPart) {
  const std::vector<int32_t> prompt = RandomPrompt(1000, 58);
  const int32_t places[] = {300, 390};
  std::vector<std::unique_ptr<TokenCollector>> cold;
  for (int32_t place : places) {
    Start(Options(ReplayMode::kExact, true), 2048);
    cold.push_back(Run(Request(Variant(prompt, place, 900))));
  }
  Start(Options(ReplayMode::kExact, true), 2048);
  EngineRequest first = Request(prompt);
  first.state_at.assign(std::begin(places), std::end(places));
  Run(first);
  for (size_t i = 0; i < std::size(places); ++i) {
    const auto hit = Run(Request(Variant(prompt, places[i], 900)));
    EXPECT_EQ(hit->Wait().counters.cached_tokens, places[i] / 128 * 128);
    EXPECT_EQ(hit->Wait().counters.replayed_tokens, 0);
    ExpectSameAnswer(*hit, *cold[i]);
  }
}

TEST_F(PrefixCache, BoundedReplayRunsOneWindowAgain) {
  Start(Options(ReplayMode::kBounded, false), 2048);
  const std::vector<int32_t> prompt = RandomPrompt(1000, 54);
  Run(Request(Variant(prompt, 640, 700)));
  const RequestCounters c = Run(Request(prompt))->Wait().counters;
  const int32_t window = model_->get()->config().window;
  EXPECT_EQ(c.cached_tokens, 640 - window);
  EXPECT_EQ(c.replayed_tokens, window);
  ExpectIdentity(c);
}

TEST_F(PrefixCache, BlocksBehindABoundedReplayAreFoundAgain) {
  Start(Options(ReplayMode::kBounded, false), 2048);
  const std::vector<int32_t> prompt = RandomPrompt(1000, 55);
  Run(Request(Variant(prompt, 640, 700)));
  Run(Request(prompt));
  // Blocks 5 and 6 of the prompt now descend from a bounded replay.
  EXPECT_EQ(Run(Request(prompt))->Wait().counters.cached_tokens,
            std::min(896 - model_->get()->config().window, 1000 - KeepRows()));
}

std::vector<std::byte> BlockOf(const KvLayout& layout, const TokenEvent& event, int32_t block) {
  std::vector<std::byte> bytes(static_cast<size_t>(layout.block_bytes));
  LayoutOfImage(layout, event.image_positions).GetBlock(block, event.image, bytes.data());
  return bytes;
}

TEST_F(PrefixCache, ChainsOfBoundedReplaysAreCountedAndKeepStoredBytes) {
  Start(Options(ReplayMode::kBounded, false), 2048);
  const KvLayout& layout = model_->get()->layout();
  const std::vector<int32_t> prompt = RandomPrompt(1800, 61);
  TokenEvent before;
  int32_t hit_blocks = 0;
  for (int32_t link = 0; link < 6; ++link) {
    const int32_t length = 300 * (link + 1);
    EngineRequest r = Request({prompt.begin(), prompt.begin() + length});
    r.hand_off = HandOffProfile::kFull;  // the image shows the bytes of its blocks
    const auto out = Run(std::move(r));
    const TokenEvent& last = out->Wait();
    ASSERT_EQ(last.finish, FinishReason::kHandedOff);
    EXPECT_EQ(last.origin.replay_gen, link) << "one more replay than the hit went through";
    const int32_t replayed = link == 0 ? 0 : model_->get()->config().window;
    EXPECT_EQ(last.counters.cached_tokens, hit_blocks * 128 - replayed);
    EXPECT_EQ(last.counters.replayed_tokens, replayed);
    for (int32_t block = 0; block < hit_blocks; ++block) {
      EXPECT_EQ(BlockOf(layout, last, block), BlockOf(layout, before, block))
          << "link " << link << " wrote to block " << block;
    }
    before = last;
    hit_blocks = length / 128;
  }
}

TEST_F(PrefixCache, ScopesDoNotShare) {
  const std::vector<int32_t> prompt = RandomPrompt(1000, 56);
  EngineRequest a = Request(prompt), b = Request(prompt);
  a.cache_scope = Sha256("tenant a");
  b.cache_scope = Sha256("tenant b");
  const auto first = Run(a);
  const auto other = Run(b);
  EXPECT_EQ(other->Wait().counters.cached_tokens, 0);
  ExpectSameAnswer(*other, *first);
  EXPECT_GT(Run(a)->Wait().counters.cached_tokens, 0);
}

TEST_F(PrefixCache, ShortHitsAndPromptLogprobsRunCold) {
  EngineOptions o = Options(ReplayMode::kBounded, true);
  o.min_hit_tokens = 512;
  Start(o, 2048);
  const std::vector<int32_t> prompt = RandomPrompt(500, 57);
  Run(Request(prompt));
  EXPECT_EQ(Run(Request(prompt))->Wait().counters.cached_tokens, 0);
  Start(Options(ReplayMode::kBounded, true), 2048);
  EngineRequest r = Request(prompt);
  r.sampling.prompt_logprobs = true;
  const auto cold = Run(r);
  Run(Request(prompt));
  const auto again = Run(r);
  EXPECT_EQ(again->Wait().counters.cached_tokens, 0);
  ExpectSameAnswer(*again, *cold);
  ASSERT_EQ(again->prompt_logprobs().size(), 499u);
  for (size_t i = 0; i < 499; ++i) {
    ASSERT_EQ(again->prompt_logprobs()[i].logprob, cold->prompt_logprobs()[i].logprob) << i;
  }
}

TEST_F(PrefixCache, OffMeansOff) {
  EngineOptions o = Options(ReplayMode::kBounded, true);
  o.prefix_cache = false;
  Start(o, 2048);
  const std::vector<int32_t> prompt = RandomPrompt(1000, 58);
  Run(Request(prompt));
  EXPECT_EQ(Run(Request(prompt))->Wait().counters.cached_tokens, 0);
}

TEST_F(PrefixCache, EvictedBlocksAreComputedAgain) {
  EngineOptions o = Options(ReplayMode::kExact, true);
  o.kv_cache_tokens = 11 * 128;
  o.max_num_seqs = 1;
  Start(o, 1010);
  const std::vector<int32_t> prompt = RandomPrompt(1000, 59);
  const auto cold = Run(Request(prompt));
  for (uint32_t i = 0; i < 4; ++i) {
    Run(Request(RandomPrompt(1000, 100 + i)));
    const auto again = Run(Request(prompt));
    ExpectSameAnswer(*again, *cold);
    ExpectIdentity(again->Wait().counters);
  }
  EXPECT_GT(engine_->Statistics().blocks_evicted, 0);
}

TEST_F(PrefixCache, SumsOfRequestCountersAreTheTotals) {
  Start(Options(ReplayMode::kBounded, true), 2048);
  RequestCounters sum;
  for (uint32_t i = 0; i < 6; ++i) {
    const RequestCounters c =
        Run(Request(Variant(RandomPrompt(900, 60), 256 * static_cast<int32_t>(i % 3), 900)))
            ->Wait()
            .counters;
    ExpectIdentity(c);
    sum.cached_tokens += c.cached_tokens;
    sum.computed_tokens += c.computed_tokens;
    sum.replayed_tokens += c.replayed_tokens;
    sum.generated_tokens += c.generated_tokens;
  }
  const EngineStatistics s = engine_->Statistics();
  EXPECT_EQ(s.cached_tokens, sum.cached_tokens);
  EXPECT_EQ(s.computed_tokens, sum.computed_tokens);
  EXPECT_EQ(s.replayed_tokens, sum.replayed_tokens);
  EXPECT_EQ(s.generated_tokens, sum.generated_tokens);
  EXPECT_GT(sum.cached_tokens, 0);
}

}  // namespace
}  // namespace deepinfer
