// Requests under grammars, from the compile pool through the sampler to the end of the output.

#include <boost/json.hpp>
#include <regex>
#include <string_view>

#include "engine/token_constraint.h"
#include "integration/grammar/engine_grammar_fixture.h"

namespace deepinfer {
namespace {

constexpr std::string_view kPerson = R"({"type":"object","properties":{
  "first_name":{"type":"string","maxLength":12},"year_of_birth":{"type":"integer"},
  "tags":{"type":"array","items":{"enum":["alpha","beta","gamma"]},"minItems":2,"maxItems":3},
  "alive":{"type":"boolean"}},
  "required":["first_name","year_of_birth","tags","alive"],"additionalProperties":false})";

TEST_F(EngineGrammarTest, TheOutputFollowsTheSchemaAndStops) {
  for (const float temperature : {0.0f, 2.0f}) {
    EngineRequest request = Request(Schema(std::string(kPerson)));
    request.sampling.temperature = temperature;
    const auto out = Run(std::move(request));
    const TokenEvent& last = out->Wait();
    EXPECT_EQ(last.finish, FinishReason::kStop) << last.status.ToString();
    EXPECT_EQ(last.stop_token_id, special_.eos);
    const std::string text = Decode(out->ids());
    boost::json::error_code error;
    const boost::json::value value = boost::json::parse(text, error);
    ASSERT_FALSE(error) << text;
    ASSERT_TRUE(value.is_object()) << text;
    EXPECT_EQ(value.get_object().size(), 4U) << text;
    EXPECT_TRUE(value.at("year_of_birth").is_int64() || value.at("year_of_birth").is_uint64() ||
                value.at("year_of_birth").is_double())
        << text;
    EXPECT_LE(value.at("tags").as_array().size(), 3U) << text;
    EXPECT_TRUE(value.at("alive").is_bool()) << text;
  }
}

TEST_F(EngineGrammarTest, ForcedTokensWithoutSamplingGiveTheSameTokens) {
  const std::vector<GrammarSource> sources = {
      Schema(std::string(kPerson)),
      Regex("(The quick brown fox jumps over the lazy dog\\. ){2}[0-9]{3}"),
      Regex("[a-z]{1,3}-(alpha|beta)-end"),
      Schema(R"({"const":{"fixed":[1,2,3,"a rather long string without any choice in it"]}})"),
  };
  for (size_t i = 0; i < sources.size(); ++i) {
    for (const float temperature : {0.0f, 1.0f}) {
      for (const int32_t max_tokens : {7, 200}) {
        const auto make = [&] {
          EngineRequest r = Request(sources[i]);
          r.sampling.temperature = temperature;
          r.sampling.max_tokens = max_tokens;
          r.sampling.seed = 7;
          r.sampling.mode = i % 2 == 0 ? SamplingMode::kStrict : SamplingMode::kRejection;
          r.sampling.frequency_penalty = 0.3f;
          return r;
        };
        // Which drafts are verified may decide what is drawn without a seed.
        EngineOptions options;
        options.speculation.enabled = false;
        Start(options);
        const auto jumped = Run(make());
        const int64_t forced = engine_->Statistics().forced_tokens;
        options.jump_forward = false;
        Start(options);
        const auto sampled = Run(make());
        const std::string where = "source " + std::to_string(i) + " temperature " +
                                  std::to_string(temperature) + " limit " +
                                  std::to_string(max_tokens);
        EXPECT_EQ(jumped->ids(), sampled->ids()) << where;
        EXPECT_EQ(jumped->Wait().finish, sampled->Wait().finish) << where;
        EXPECT_EQ(engine_->Statistics().forced_tokens, 0) << where;
        EXPECT_TRUE(forced > 0 || max_tokens < 200) << where;
      }
    }
  }
}

TEST_F(EngineGrammarTest, ForcedTokensSaveSteps) {
  // No token holds this character and its bytes leave no choice.
  const GrammarSource source = Regex("(\xE9\xBE\x98){40}");
  EngineOptions options;
  options.speculation.enabled = false;
  Start(options);
  const auto out = Run(Request(source));
  ASSERT_GT(out->ids().size(), 80U);
  const EngineStatistics with = engine_->Statistics();
  options.jump_forward = false;
  Start(options);
  const auto plain = Run(Request(source));
  EXPECT_EQ(out->ids(), plain->ids());
  EXPECT_GT(with.forced_tokens, 20);
  EXPECT_LT(with.steps + 10, engine_->Statistics().steps);
}

TEST_F(EngineGrammarTest, DraftsUnderAGrammarChangeNoToken) {
  const std::vector<GrammarSource> sources = {Schema(std::string(kPerson)),
                                              Regex("([a-z]{3,9} ){12}end"),
                                              Regex("[a-z]{1,3}-(alpha|beta)-end")};
  int64_t accepted = 0;
  for (const bool jumps : {true, false}) {
    std::vector<EngineRequest> requests;
    for (size_t i = 0; i < 2 * sources.size(); ++i) {
      EngineRequest r = Request(sources[i / 2], std::to_string(i));
      r.sampling.temperature = i % 2 == 0 ? 0.0f : 0.9f;
      r.sampling.has_seed = true;
      r.sampling.seed = i;
      r.sampling.min_tokens = i == 1 ? 60 : 0;
      requests.push_back(std::move(r));
    }
    EngineOptions options;
    options.jump_forward = jumps;
    options.speculation.enabled = false;
    Start(options);
    std::vector<std::vector<int32_t>> want;
    for (const EngineRequest& r : requests) want.push_back(Run(r)->ids());
    options.speculation.enabled = true;
    options.speculation.verify = VerifyPolicy::kFixed;
    Start(options);
    std::vector<std::unique_ptr<TokenCollector>> got;
    for (const EngineRequest& r : requests) got.push_back(Submit(r));
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(got[i]->Wait().finish, FinishReason::kStop);
      EXPECT_EQ(got[i]->ids(), want[i]) << "request " << i << " jumps " << jumps;
    }
    EXPECT_GT(engine_->Statistics().draft_tokens, 0);
    accepted += engine_->Statistics().draft_accepted;
  }
  EXPECT_GT(accepted, 0);
}

TEST_F(EngineGrammarTest, ABatchGivesTheTokensOfSingleRuns) {
  std::vector<std::vector<int32_t>> alone;
  std::vector<EngineRequest> requests;
  for (int i = 0; i < 8; ++i) {
    const std::string size = std::to_string(i + 2);
    EngineRequest r = i % 4 == 3 ? Request(Regex("([a-z]{3} ){" + size + "}"))
                                 : Request(Schema(R"({"type":"array","items":{"type":"object",
        "properties":{"name":{"type":"string","maxLength":8},"n":{"type":"integer"}},
        "required":["name","n"]},"minItems":)" + size +
                                                  R"(,"maxItems":)" + size + "}"));
    r.request_id = "request" + std::to_string(i);
    if (i == 5) r.grammar = nullptr;
    if (i == 5) r.sampling.max_tokens = 60;
    requests.push_back(std::move(r));
  }
  for (const EngineRequest& r : requests) alone.push_back(Run(r)->ids());
  std::vector<std::unique_ptr<TokenCollector>> together;
  for (const EngineRequest& r : requests) together.push_back(Submit(r));
  for (size_t i = 0; i < requests.size(); ++i) {
    together[i]->Wait();
    EXPECT_EQ(together[i]->ids(), alone[i]) << i;
  }
}

TEST_F(EngineGrammarTest, TheGrammarBeginsBehindItsTrigger) {
  OutputGrammar grammar;
  grammar.source = Regex("answer: (yes|no)");
  grammar.trigger.token_ids = {special_.think_end};
  grammar.trigger.banned_ids = {special_.think_begin};
  EngineRequest r = Request({}, "request", "<｜User｜>Is water wet?<｜Assistant｜><think>");
  r.grammar = std::make_shared<OutputGrammar>(grammar);
  r.sampling.logit_bias = {{special_.think_end, 4.0f}};
  const auto out = Run(std::move(r));
  const auto end = std::find(out->ids().begin(), out->ids().end(), special_.think_end);
  ASSERT_NE(end, out->ids().end()) << "the reasoning did not end";
  const std::string answer = Decode({end + 1, out->ids().end()});
  EXPECT_TRUE(answer == "answer: yes" || answer == "answer: no") << answer;
  EXPECT_EQ(out->Wait().finish, FinishReason::kStop);
}

TEST_F(EngineGrammarTest, ARefusedGrammarEndsItsRequestAlone) {
  EngineRequest other = Request(Schema(std::string(kPerson)), "other");
  other.grammar = nullptr;
  other.sampling.max_tokens = 200;
  other.sampling.ignore_eos = true;
  const auto running = Submit(std::move(other));
  running->WaitForEvents(3);
  const auto bad = Run(Request(Schema(R"({"type":"object","properties":{"foo":"bar"}})")));
  const TokenEvent& last = bad->Wait();
  EXPECT_EQ(last.finish, FinishReason::kGrammarError);
  EXPECT_EQ(last.status.code(), StatusCode::kInvalidRequest);
  EXPECT_NE(last.status.message().find("/properties/foo"), std::string::npos)
      << last.status.ToString();
  EXPECT_TRUE(bad->ids().empty());
  running->Wait();
  EXPECT_EQ(running->ids().size(), 200U);
}

TEST_F(EngineGrammarTest, StrictRefusesWhatIsNotEnforced) {
  const GrammarSource source =
      Schema(R"({"type":"array","items":{"type":"integer"},"uniqueItems":true,"maxItems":2})");
  EngineRequest r = Request(source);
  EXPECT_EQ(Run(r)->Wait().finish, FinishReason::kStop);
  OutputGrammar strict = *r.grammar;
  strict.strict = true;
  r.grammar = std::make_shared<OutputGrammar>(strict);
  const auto refused = Run(r);
  EXPECT_EQ(refused->Wait().finish, FinishReason::kGrammarError);
  EXPECT_NE(refused->Wait().status.message().find("uniqueItems"), std::string::npos);
}

TEST_F(EngineGrammarTest, AFallbackTakesThePlaceOfARefusedGrammar) {
  EngineRequest r = Request(Regex("(?<=a)b"));
  EXPECT_EQ(Run(r)->Wait().finish, FinishReason::kGrammarError);
  OutputGrammar grammar = *r.grammar;
  grammar.fallback = Regex("plain");
  r.grammar = std::make_shared<OutputGrammar>(grammar);
  EXPECT_EQ(Decode(Run(r)->ids()), "plain");
}

TEST_F(EngineGrammarTest, BansThatLeaveNoTokenEndTheRequestAlone) {
  EngineRequest r = Request(Regex("[0-9]+"));
  r.sampling.allowed_ids = Encode("a");
  const auto out = Run(std::move(r));
  EXPECT_EQ(out->Wait().finish, FinishReason::kError);
  EXPECT_EQ(out->Wait().status.code(), StatusCode::kInvalidRequest);
  EXPECT_EQ(Decode(Run(Request(Regex("ok")))->ids()), "ok");
}

TEST_F(EngineGrammarTest, TheEndOfTheGrammarWinsOverMinTokensAndIgnoreEos) {
  EngineRequest r = Request(Regex("ab"));
  r.sampling.min_tokens = 50;
  r.sampling.ignore_eos = true;
  const auto out = Run(std::move(r));
  EXPECT_EQ(Decode(out->ids()), "ab");
  EXPECT_EQ(out->Wait().finish, FinishReason::kStop);
}

TEST_F(EngineGrammarTest, LogprobsComeWithEveryTokenAndMaskedOnesAreRemoved) {
  EngineRequest r = Request(Regex("abcdef|abcxyz"));
  r.sampling.num_top_logprobs = 5;
  r.sampling.logprobs_kind = LogprobsKind::kProcessed;
  const auto out = Run(std::move(r));
  ASSERT_EQ(out->logprobs().size(), out->ids().size());
  for (size_t i = 0; i < out->ids().size(); ++i) {
    double sum = 0;
    for (const auto& [id, logprob] : out->logprobs()[i].top) sum += std::exp(logprob);
    EXPECT_GT(sum, 0.0);
    EXPECT_LT(sum, 1.0 + 1e-5);
  }
  // The end is the only legal token: probability 1.
  EXPECT_EQ(out->logprobs().back().logprob, 0.0f);
}

TEST_F(EngineGrammarTest, ChoicesOfOnePromptFollowTheirGrammars) {
  EngineRequest leader = Request(Schema(std::string(kPerson)), "c0");
  leader.sampling.temperature = 1.0f;
  std::vector<std::unique_ptr<TokenCollector>> out;
  for (int i = 0; i < 4; ++i) {
    EngineRequest r = leader;
    r.request_id = "c" + std::to_string(i);
    r.sampling.seed = static_cast<uint64_t>(i);
    if (i > 0) r.branch_of = "c0";
    out.push_back(Submit(std::move(r)));
  }
  for (const auto& o : out) {
    EXPECT_EQ(o->Wait().finish, FinishReason::kStop);
    boost::json::error_code error;
    (void)boost::json::parse(Decode(o->ids()), error);
    EXPECT_FALSE(error) << Decode(o->ids());
  }
}

TEST_F(EngineGrammarTest, ACancelledCompilationHoldsNothing) {
  // Takes long enough to be cancelled while it is compiled.
  const GrammarSource slow = Regex("((a{1,200}){1,200}){1,200}");
  const auto out = Submit(Request(slow));
  engine_->Cancel("request");
  const TokenEvent& last = out->Wait();
  EXPECT_TRUE(last.finish == FinishReason::kCancelled ||
              last.finish == FinishReason::kGrammarError);
  EXPECT_EQ(Decode(Run(Request(Regex("ok")))->ids()), "ok");
}

TEST_F(EngineGrammarTest, ManyCompilationsDelayNoPlainRequestAndFailAlone) {
  constexpr int kNumSlow = 100;
  constexpr int kNumRefused = 100;
  std::vector<std::unique_ptr<TokenCollector>> slow;
  std::vector<std::unique_ptr<TokenCollector>> refused;
  for (int i = 0; i < kNumSlow; ++i) {
    const std::string limit = std::to_string(200 + i);
    slow.push_back(Submit(
        Request(Regex("((a{1," + limit + "}){1,200}){1,200}"), "slow " + std::to_string(i))));
  }
  // Behind them in the queue.
  for (int i = 0; i < kNumRefused; ++i) {
    const std::string name = "p" + std::to_string(i);
    refused.push_back(Submit(Request(
        Schema(R"({"type":"object","properties":{")" + name + R"(":"bar"}})"), "refused " + name)));
  }
  for (int i = 0; i < 3; ++i) {
    EngineRequest plain = Request(Schema("{}"), "plain " + std::to_string(i));
    plain.grammar = nullptr;
    plain.sampling.max_tokens = 60;
    plain.sampling.ignore_eos = true;
    EXPECT_EQ(Run(std::move(plain))->ids().size(), 60U);
  }
  EXPECT_GT(engine_->Statistics().pending, kNumRefused);

  for (int i = 0; i < kNumSlow; ++i) engine_->Cancel("slow " + std::to_string(i));
  for (const auto& out : slow) out->Wait();
  for (int i = 0; i < kNumRefused; ++i) {
    const TokenEvent& last = refused[static_cast<size_t>(i)]->Wait();
    EXPECT_EQ(last.finish, FinishReason::kGrammarError);
    EXPECT_TRUE(last.status.message().ends_with("/properties/p" + std::to_string(i) + "')"))
        << last.status.ToString();
  }
  EXPECT_EQ(Decode(Run(Request(Regex("ok")))->ids()), "ok");
  const GrammarPoolStats stats = bundle_->grammars->stats();
  EXPECT_LE(stats.cached_bytes, GrammarPoolOptions{}.cache_bytes);
  EXPECT_EQ(stats.num_waiting, 0);
}

TEST_F(EngineGrammarTest, ForcedIdsOutsideTheGrammarEndTheConstraint) {
  EngineRequest r = Request(Regex("[0-9]{4}"));
  std::vector<int32_t> ids;
  bundle_->tokenizer->EncodeText("words, not digits", &ids);
  r.forced_ids = ids;
  r.sampling.max_tokens = static_cast<int32_t>(ids.size()) + 3;
  r.sampling.ignore_eos = true;
  const auto out = Run(std::move(r));
  ASSERT_EQ(out->ids().size(), ids.size() + 3);
  EXPECT_TRUE(std::equal(ids.begin(), ids.end(), out->ids().begin()));
}

GrammarSource Ebnf(std::string text) {
  GrammarSource source;
  source.kind = GrammarKind::kEbnf;
  source.text = std::move(text);
  return source;
}

TEST_F(EngineGrammarTest, AForcedRunWithoutEndGoesOnToTheLimitOfTokens) {
  for (const std::string_view rules : {R"(root ::= "a" root)", R"(root ::= "a" | "b" rest
rest ::= "x" rest)"}) {
    EngineRequest r = Request(Ebnf(std::string(rules)));
    r.sampling.max_tokens = 60;
    r.sampling.ignore_eos = true;
    const auto out = Run(std::move(r));
    const FinishReason finish = out->Wait().finish;
    EXPECT_TRUE(finish == FinishReason::kLength || finish == FinishReason::kStop) << rules;
  }
}

TEST_F(EngineGrammarTest, AGrammarThatTakesTooLongToFollowEndsItsRequestAlone) {
  // Every length has as many trees as it has ways to be put in brackets.
  EngineRequest ambiguous = Request(Ebnf("root ::= s\ns ::= s s | \"a\""), "ambiguous");
  std::vector<int32_t> letter;
  bundle_->tokenizer->EncodeText("a", &letter);
  ASSERT_EQ(letter.size(), 1U);
  ambiguous.sampling.logit_bias = {{letter.front(), 100.0f}};
  ambiguous.sampling.max_tokens = 1500;
  ambiguous.sampling.min_tokens = 1400;
  const auto slow = Submit(std::move(ambiguous));
  const auto beside = Submit(Request(Regex("[a-z]{1,3}-(alpha|beta)-end"), "beside"));
  EXPECT_EQ(slow->Wait().finish, FinishReason::kError);
  EXPECT_EQ(slow->Wait().status.code(), StatusCode::kInvalidRequest);
  EXPECT_NE(slow->Wait().status.message().find("too long to follow"), std::string::npos)
      << slow->Wait().status.ToString();
  EXPECT_EQ(beside->Wait().finish, FinishReason::kStop);
  EXPECT_EQ(beside->ids(), Run(Request(Regex("[a-z]{1,3}-(alpha|beta)-end")))->ids());
}

TEST_F(EngineGrammarTest, TheAllowanceOfAGrammarGrowsWithItsTokens) {
  OutputGrammar source;
  source.source = Regex("[0-9]*");
  const auto ticket = bundle_->grammars->Compile(source.source);
  ASSERT_TRUE(ticket->WaitFor(60'000'000));
  ASSERT_TRUE(ticket->result().ok()) << ticket->result().status().ToString();
  const SamplingParams sampling;
  constexpr int64_t kMinute = 60'000'000;
  TokenConstraint none(*ticket->result(), *bundle_->tokenizer, source, sampling, special_.eos,
                       {.base_us = -1, .token_us = kMinute});
  EXPECT_EQ(none.MaskAfter({}).status().code(), StatusCode::kInvalidRequest);
  std::vector<int32_t> digit;
  bundle_->tokenizer->EncodeText("7", &digit);
  ASSERT_TRUE(none.Commit(digit.front()).ok());
  EXPECT_TRUE(none.MaskAfter({}).ok());
}

}  // namespace
}  // namespace deepinfer
