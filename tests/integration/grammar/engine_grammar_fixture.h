// An engine with a grammar pool on the demo model, and requests under grammars.
// Thread rule: test thread.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/model_bundle.h"
#include "support/source_dir.h"
#include "support/token_collector.h"
#include "text/special_tokens.h"

namespace deepinfer {

class EngineGrammarTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (bundle_ != nullptr) return;
    BundleOptions options;
    options.num_threads = 1;
    // Limits have tests of their own; these must not depend on how busy the machine is.
    options.grammars = GrammarPoolOptions{.timeout_us = 60'000'000};
    Result<ModelBundle> bundle =
        ModelBundle::Load(SourceDir() + "/models/deepinfer-tiny", options, nullptr);
    if (!bundle.ok()) {
      ADD_FAILURE() << bundle.status().ToString();
      std::abort();
    }
    bundle_ = std::make_unique<ModelBundle>(*std::move(bundle));
    special_ = *SpecialTokens::Resolve(*bundle_->tokenizer);
  }

  void SetUp() override { Start({}); }
  void TearDown() override {
    if (engine_ == nullptr) return;
    engine_->Drain(clock_.NowUs() + 10'000'000);
    const EngineStatistics s = engine_->Statistics();
    EXPECT_EQ(s.pending + s.running + s.waiting, 0);
  }

  void Start(EngineOptions options) {
    engine_.reset();
    options.max_model_len = 2048;
    options.async_scheduling = std::getenv("DEEPINFER_ENGINE_SYNC") == nullptr;
    auto engine = Engine::Create(bundle_->model.get(), options, &clock_, bundle_->grammars.get());
    ASSERT_TRUE(engine.ok()) << engine.status().ToString();
    engine_ = *std::move(engine);
  }

  static std::vector<int32_t> Encode(std::string_view text) {
    std::vector<int32_t> ids{special_.bos};
    bundle_->tokenizer->EncodeWithSpecials(text, &ids);
    return ids;
  }
  static std::string Decode(const std::vector<int32_t>& ids) {
    return bundle_->tokenizer->Decode(ids, /*skip_added=*/true);
  }

  static EngineRequest Request(
      GrammarSource source, std::string id = std::string("request"),
      std::string_view prompt = "<｜User｜>Write JSON.<｜Assistant｜></think>") {
    EngineRequest r;
    r.request_id = std::move(id);
    r.prompt_ids = Encode(prompt);
    r.sampling.temperature = 0.0f;
    r.sampling.max_tokens = 400;
    OutputGrammar grammar;
    grammar.source = std::move(source);
    r.grammar = std::make_shared<OutputGrammar>(std::move(grammar));
    return r;
  }
  static GrammarSource Schema(std::string text) {
    GrammarSource source;
    source.kind = GrammarKind::kJsonSchema;
    source.text = std::move(text);
    return source;
  }
  static GrammarSource Regex(std::string text) {
    GrammarSource source;
    source.kind = GrammarKind::kRegex;
    source.text = std::move(text);
    return source;
  }

  std::unique_ptr<TokenCollector> Submit(EngineRequest request) {
    auto out = std::make_unique<TokenCollector>();
    const Status status = engine_->Submit(std::move(request), out->Sink());
    EXPECT_TRUE(status.ok()) << status.ToString();
    return out;
  }
  std::unique_ptr<TokenCollector> Run(EngineRequest request) {
    auto out = Submit(std::move(request));
    out->Wait();
    return out;
  }

  static inline std::unique_ptr<ModelBundle> bundle_;
  static inline SpecialTokens special_;
  SteadyClock clock_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace deepinfer
