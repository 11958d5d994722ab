// Requests that move from one engine to another: by the image of their state or by their tokens
// alone. The answer must be the one of a request that stayed.

#include <gtest/gtest.h>

#include "integration/engine/engine_fixture.h"

namespace deepinfer {
namespace {

class TakeOverTest : public EngineTest {
 protected:
  static EngineRequest Whole(std::string id = "whole") {
    return StrictRequest(RandomPrompt(300, 5), 60, 11, std::move(id));
  }
  // What another engine needs to go on after the first num tokens of an answer.
  static ResumePoint After(const TokenCollector& answer, size_t num) {
    ResumePoint p;
    p.ids.assign(answer.ids().begin(), answer.ids().begin() + static_cast<std::ptrdiff_t>(num));
    return p;
  }
  static void ExpectTail(const TokenCollector& got, const TokenCollector& want, size_t from) {
    const std::vector<int32_t> tail(want.ids().begin() + static_cast<std::ptrdiff_t>(from),
                                    want.ids().end());
    EXPECT_EQ(got.ids(), tail) << "after " << from << " tokens";
    ASSERT_EQ(got.logprobs().size(), tail.size());
    for (size_t i = 0; i < tail.size(); ++i) {
      ASSERT_EQ(got.logprobs()[i].logprob, want.logprobs()[from + i].logprob) << "token " << i;
    }
  }
  // A collector that expects its first event at this index.
  std::unique_ptr<TokenCollector> Continue(EngineRequest request) {
    const auto from = static_cast<int32_t>(request.resume->ids.size());
    auto out = std::make_unique<TokenCollector>();
    TokenSink sink = out->Sink();
    const Status status =
        engine_->Submit(std::move(request), [from, sink = std::move(sink)](TokenEvent event) {
          event.start_index -= from;
          sink(std::move(event));
        });
    EXPECT_TRUE(status.ok()) << status.ToString();
    if (status.ok()) out->Wait();
    return out;
  }
};

TEST_F(TakeOverTest, FromTokensAloneTheAnswerGoesOnBitForBit) {
  Start({}, 512);
  const auto want = Run(Whole());
  for (const size_t after : {size_t{1}, size_t{20}, size_t{59}}) {
    Start({}, 512);
    EngineRequest request = Whole("moved");
    request.resume = After(*want, after);
    const auto got = Continue(std::move(request));
    ExpectTail(*got, *want, after);
    EXPECT_EQ(engine_->Statistics().resumes_rebuilt, 1);
    EXPECT_FALSE(got->Wait().counters.approximate_resume);
    EXPECT_EQ(got->Wait().counters.generated_tokens, 60);
  }
}

TEST_F(TakeOverTest, TheImageOfAHandOffContinuesWithoutComputingThePromptAgain) {
  Start({}, 512);
  const auto want = Run(Whole());
  Start({}, 512);
  EngineRequest prefill = Whole("prefill");
  prefill.hand_off = true;
  const auto first = Run(std::move(prefill));
  TokenEvent last = first->Wait();
  ASSERT_EQ(last.finish, FinishReason::kHandedOff);
  ASSERT_EQ(first->ids().size(), 1u);
  EXPECT_EQ(first->ids()[0], want->ids()[0]);
  EXPECT_EQ(last.counters.computed_tokens, 300);
  ASSERT_FALSE(last.image.empty());

  Start({}, 512);
  EngineRequest decode = Whole("decode");
  decode.resume = After(*want, 1);
  decode.resume->counters = last.counters;
  decode.resume->origin = last.origin;
  decode.resume->image = last.image;
  const auto got = Continue(std::move(decode));
  ExpectTail(*got, *want, 1);
  const EngineStatistics s = engine_->Statistics();
  EXPECT_EQ(s.resumes_from_image, 1);
  EXPECT_EQ(s.computed_tokens, 0);
  EXPECT_EQ(got->Wait().counters.computed_tokens, 300);

  // The blocks that came with the image serve later prompts.
  const auto again = Run(Whole("again"));
  EXPECT_GT(again->Wait().counters.cached_tokens, 0);
}

TEST_F(TakeOverTest, ATokenThatEndsTheRequestIsNotHandedOff) {
  EngineRequest request = StrictRequest(RandomPrompt(20, 5), 1, 11, "short");
  request.hand_off = true;
  const auto out = Run(std::move(request));
  EXPECT_EQ(out->Wait().finish, FinishReason::kLength);
  EXPECT_TRUE(out->Wait().image.empty());
}

TEST_F(TakeOverTest, RefusesWhatCannotBeContinued) {
  const auto submit = [this](std::vector<int32_t> ids, size_t image_bytes = 0) {
    EngineRequest request = StrictRequest(RandomPrompt(20, 5), 4, 11, "bad");
    request.resume.emplace().ids = std::move(ids);
    request.resume->image.resize(image_bytes);
    return engine_->Submit(std::move(request), [](TokenEvent) {}).code();
  };
  EXPECT_EQ(submit({}), StatusCode::kInvalidRequest);
  EXPECT_EQ(submit({5, 6, 7, 8}), StatusCode::kInvalidRequest) << "nothing is left to do";
  EXPECT_EQ(submit({1 << 30}), StatusCode::kInvalidRequest);
  EXPECT_EQ(submit({5}, 100), StatusCode::kInvalidRequest) << "an image of another size";
}

}  // namespace
}  // namespace deepinfer
