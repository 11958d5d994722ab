// Requests that move from one engine to another: by the image of their state or by their tokens
// alone. The answer must be the one of a request that stayed.

#include <gtest/gtest.h>

#include <cstring>

#include "engine/cut_rows.h"
#include "engine/state_image.h"
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
  prefill.hand_off = HandOffProfile::kFull;
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
  decode.resume->positions = last.image_positions;
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
  request.hand_off = HandOffProfile::kFull;
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
  EXPECT_EQ(submit({}, 100), StatusCode::kInvalidRequest) << "of no positions";
}

// The prompt's engine has the weights below the decoder only; the answer's runs the rest.
class SplitBelowTheDecoder : public TakeOverTest,
                             public ::testing::WithParamInterface<HandOffProfile> {
 protected:
  void StartEncoder(const EngineOptions& options) {
    const LongTinyCheckpoint checkpoint;
    engine_.reset();
    encoder_ = std::make_unique<TinyModel>(TinyModelOptions{
        .checkpoint = checkpoint.path(), .threads = 1, .part = ModelPart::kEncoder});
    EngineOptions o = options;
    o.speculation.enabled = false;
    o.max_model_len = 512;
    o.async_scheduling = UseAsyncScheduling();
    auto engine = Engine::Create(encoder_->get(), o, &clock_);
    ASSERT_TRUE(engine.ok()) << engine.status().ToString();
    engine_ = *std::move(engine);
  }
  TokenEvent Prefill(EngineRequest request) {
    request.hand_off = GetParam();
    const auto out = Run(std::move(request));
    EXPECT_TRUE(out->ids().empty());
    EXPECT_EQ(out->Wait().finish, FinishReason::kHandedOff);
    ExpectNothingHeld(StatisticsWhenIdle(*engine_));
    return out->Wait();
  }
  static EngineRequest GoOn(EngineRequest request, const TokenEvent& last) {
    ResumePoint& from = request.resume.emplace();
    from.counters = last.counters;
    from.origin = last.origin;
    from.image = last.image;
    from.positions = last.image_positions;
    from.num_cut_rows = last.num_cut_rows;
    return request;
  }
  void TearDown() override {
    TakeOverTest::TearDown();
    engine_.reset();  // before its model
  }

  std::unique_ptr<TinyModel> encoder_;
};

TEST_P(SplitBelowTheDecoder, GivesTheSameAnswer) {
  EngineOptions small;
  small.max_num_batched_tokens = 96;
  for (const EngineOptions& options : {EngineOptions(), small}) {
    Start(options, 512);
    const auto want = Run(Whole());
    StartEncoder(options);
    const TokenEvent last = Prefill(Whole("prefill"));
    const bool tail = GetParam() == HandOffProfile::kTail;
    EXPECT_EQ(last.image_positions, tail ? 160 : 300);
    EXPECT_EQ(last.num_cut_rows, tail ? 0 : 140);
    EXPECT_EQ(last.counters.computed_tokens, last.image_positions);
    Start(options, 512);
    const auto got = Continue(GoOn(Whole("decode"), last));
    ExpectSameAnswer(*got, *want);
    const RequestCounters& c = got->Wait().counters;
    EXPECT_EQ(c.cached_tokens + c.computed_tokens, 300);
    EXPECT_EQ(engine_->Statistics().resumes_from_image, 1);
  }
}

// In arithmetic that rounds the streams they take half the bytes, and lose none.
TEST(CutRows, KeepTheBitsOfTheirArithmetic) {
  for (const Numerics numerics : {Numerics::kRef, Numerics::kProd}) {
    TinyModel model(TinyModelOptions{.numerics = numerics, .threads = 1});
    const ModelConfig& c = model->config();
    const auto tokens = RandomPrompt(30, 3);
    TestSequence sequence(model.get(), tokens);
    std::vector<float> rows(static_cast<size_t>(30 * CutRowFloats(c)));
    SequenceStep step = sequence.Rows(0, 30);
    step.logits_from = 30;
    step.cut_out = rows.data();
    StepOutput out;
    ASSERT_TRUE(model->Step({&step, 1}, false, &out).ok());
    std::vector<std::byte> bytes(5);
    AppendCutRows(*model, rows, &bytes);
    EXPECT_EQ(static_cast<int64_t>(bytes.size()), 5 + 30 * CutRowBytes(*model));
    const int64_t stream_bytes = numerics == Numerics::kProd ? 2 : 4;
    EXPECT_EQ(CutRowBytes(*model), c.hc_mult * (c.dim * stream_bytes + 4));
    EXPECT_EQ(ReadCutRows(*model, std::span(bytes).subspan(5)), rows);
  }
}

TEST_P(SplitBelowTheDecoder, LeavesAPromptThatIsAllTailToTheOther) {
  StartEncoder({});
  const TokenEvent last = Prefill(StrictRequest(RandomPrompt(100, 6), 10, 11, "short"));
  EXPECT_EQ(last.image_positions, 0);
  EXPECT_TRUE(last.image.empty());
}

// Rows between its end and what this engine would run next never ran, or no row of it did.
TEST_P(SplitBelowTheDecoder, IsRefusedWhereAnotherRowComesNext) {
  StartEncoder({});
  const TokenEvent last = Prefill(Whole("prefill"));
  const auto submit = [this](EngineRequest request) {
    return engine_->Submit(std::move(request), [](TokenEvent) {}).code();
  };
  EngineOptions full;
  full.decoder_tail = DecoderTail::kFull;
  Start(full, 512);
  EXPECT_EQ(submit(GoOn(Whole("full"), last)), StatusCode::kInvalidRequest);
  Start({}, 512);
  EngineRequest all_rows = Whole("logprobs");
  all_rows.sampling.prompt_logprobs = true;
  EXPECT_EQ(submit(GoOn(std::move(all_rows), last)), StatusCode::kInvalidRequest);
  const Model& model = *model_->get();
  for (const auto& [positions, cut_rows] :
       {std::pair(1, 0), {159, 0}, {161, 0}, {299, 0}, {300, 139}, {300, 141}, {160, 140}}) {
    EngineRequest request = GoOn(Whole("forged"), last);
    request.resume->positions = positions;
    request.resume->num_cut_rows = cut_rows;
    request.resume->image.resize(static_cast<size_t>(
        LayoutOfImage(model.layout(), positions).size_bytes() + cut_rows * CutRowBytes(model)));
    EXPECT_EQ(submit(std::move(request)), StatusCode::kInvalidRequest)
        << positions << " " << cut_rows;
  }
}

// Memory for the image was short: everything runs again, with the same answer.
TEST_P(SplitBelowTheDecoder, SurvivesTheLossOfItsImage) {
  Start({}, 512);
  const auto want = Run(Whole());
  StartEncoder({});
  const TokenEvent last = Prefill(Whole("prefill"));
  EngineOptions options;
  options.swa_pool_bytes = 1000;
  Start(options, 512);
  ExpectSameAnswer(*Continue(GoOn(Whole("decode"), last)), *want);
}

INSTANTIATE_TEST_SUITE_P(Profiles, SplitBelowTheDecoder,
                         ::testing::Values(HandOffProfile::kEncoder, HandOffProfile::kTail),
                         [](const auto& profile) {
                           return profile.param == HandOffProfile::kTail ? "Tail" : "Encoder";
                         });

// Keeps what it gets, with copies of how the bytes looked then.
class KeepingSink final : public StateSink {
 public:
  void OnBlocks(StateBlocks got) override {
    EXPECT_EQ(got.first_block, static_cast<int32_t>(now.size()));
    EXPECT_EQ(got.positions, 400);
    for (const std::byte* block : got.blocks) {
      now.push_back(block);
      then.emplace_back(block, block + block_bytes);
    }
    pins.push_back(std::move(got.pin));
  }
  void OnParked() override {}

  int64_t block_bytes = 0;
  std::vector<const std::byte*> now;
  std::vector<std::vector<std::byte>> then;
  std::vector<std::shared_ptr<void>> pins;
};

TEST_F(TakeOverTest, BlocksGoOutAsTheyAreCompletedAndStayWhileTheyArePinned) {
  EngineOptions options;
  options.max_num_batched_tokens = 128;
  options.kv_cache_tokens = 640;
  Start(options, 512);
  EngineRequest request = StrictRequest(RandomPrompt(400, 7), 8, 11, "plain");
  request.hand_off = HandOffProfile::kFull;
  const TokenEvent plain = Run(request)->Wait();
  const KvLayout& layout = model_->get()->layout();

  Start(options, 512);
  const auto sink = std::make_shared<KeepingSink>();
  sink->block_bytes = layout.block_bytes;
  request.state_sink = sink;
  const TokenEvent last = Run(request)->Wait();
  request.state_sink = nullptr;
  ASSERT_EQ(sink->now.size(), 3u);
  EXPECT_EQ(sink->pins.size(), 3u) << "one chunk after the other";
  const StateImageLayout image = LayoutOfImage(layout, 400);
  EXPECT_EQ(last.image_positions, 400);
  EXPECT_EQ(static_cast<int64_t>(last.image.size()), layout.slot_bytes + layout.block_bytes);
  for (int32_t i = 0; i < 3; ++i) {
    std::vector<std::byte> block(static_cast<size_t>(layout.block_bytes));
    image.GetBlock(i, plain.image, block.data());
    EXPECT_EQ(sink->then[static_cast<size_t>(i)], block) << i;
  }

  // Others may not have their room: two blocks are left.
  Run(StrictRequest(RandomPrompt(200, 8), 8, 11, "other"));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(std::memcmp(sink->now[i], sink->then[i].data(), sink->then[i].size()), 0) << i;
  }
  EXPECT_EQ(StatisticsWhenIdle(*engine_).blocks_used, 3);
  sink->pins.clear();
  SpinUntil("pins to be taken back", [&] { return engine_->Statistics().blocks_used == 0; });
}

}  // namespace
}  // namespace deepinfer
