// The recorded cases of the demo model and a runner that answers them through the engine as the
// server would: CPU kernels, the serving numerics, greedy.
// Thread rule: test thread.
#pragma once

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/model_bundle.h"
#include "support/source_dir.h"
#include "support/token_collector.h"

namespace deepinfer {

inline std::string DemoModelPath() { return SourceDir() + "/models/deepinfer-tiny"; }

struct DemoCase {
  std::string name, task, prompt;
  std::string expect;  // empty for tool calls
  bool thinking = false;
  bool solved = false;  // by the recorded reference run
  std::vector<int32_t> prompt_ids, answer_ids;
};

inline std::vector<DemoCase> LoadDemoCases() {
  std::ifstream file(DemoModelPath() + "/cases.jsonl");
  std::vector<DemoCase> cases;
  for (std::string line; std::getline(file, line);) {
    const boost::json::object o = boost::json::parse(line).as_object();
    DemoCase c;
    c.name = o.at("name").as_string();
    c.task = o.at("task").as_string();
    c.prompt = o.at("prompt").as_string();
    if (const auto* expect = o.if_contains("expect")) c.expect = expect->as_string();
    c.thinking = o.at("thinking").as_bool();
    c.solved = o.at("solved").as_bool();
    c.prompt_ids = boost::json::value_to<std::vector<int32_t>>(o.at("prompt_ids"));
    c.answer_ids = boost::json::value_to<std::vector<int32_t>>(o.at("answer_ids"));
    cases.push_back(std::move(c));
  }
  return cases;
}

class DemoRunner {
 public:
  explicit DemoRunner(const std::string& dir) {
    const BundleOptions bundle_options;
    Result<ModelBundle> bundle = ModelBundle::Load(dir, bundle_options, nullptr);
    if (!bundle.ok()) {
      ADD_FAILURE() << bundle.status().ToString();
      return;
    }
    bundle_ = std::make_unique<ModelBundle>(*std::move(bundle));
    EngineOptions options;
    options.max_model_len = 1024;
    Result<std::unique_ptr<Engine>> engine = Engine::Create(bundle_->model.get(), options, &clock_);
    if (!engine.ok()) {
      ADD_FAILURE() << engine.status().ToString();
      return;
    }
    engine_ = *std::move(engine);
  }

  bool ok() const { return engine_ != nullptr; }
  const Tokenizer& tokenizer() const { return *bundle_->tokenizer; }
  Model* model() { return bundle_->model.get(); }

  // Whether the greedy answer of each case is the recorded one, reasoning left aside.
  std::vector<bool> Answer(const std::vector<DemoCase>& cases) {
    std::vector<TokenCollector> out(cases.size());
    for (size_t i = 0; i < cases.size(); ++i) {
      EngineRequest r;
      r.request_id = cases[i].name;
      r.prompt_ids = cases[i].prompt_ids;
      r.sampling.temperature = 0.0f;
      // An answer that grows longer than this is no longer the recorded one.
      r.sampling.max_tokens =
          static_cast<int32_t>(cases[i].answer_ids.size()) + (cases[i].thinking ? 32 : 1);
      const Status status = engine_->Submit(std::move(r), out[i].Sink());
      EXPECT_TRUE(status.ok()) << status.ToString();
    }
    std::vector<bool> right;
    for (size_t i = 0; i < cases.size(); ++i) {
      const TokenEvent& last = out[i].Wait();
      EXPECT_TRUE(last.status.ok()) << cases[i].name << ": " << last.status.ToString();
      right.push_back(AnswerText(out[i].ids(), cases[i].thinking) ==
                      AnswerText(cases[i].answer_ids, cases[i].thinking));
    }
    return right;
  }

  // Text up to and with the end token; in thinking mode from the end of the reasoning.
  std::string AnswerText(const std::vector<int32_t>& ids, bool thinking) const {
    const std::string text = tokenizer().Decode(ids);
    if (!thinking) return text;
    const std::string mark("</think>");
    const size_t at = text.find(mark);
    return at == std::string::npos ? std::string("no answer") : text.substr(at + mark.size());
  }

 private:
  SteadyClock clock_;
  std::unique_ptr<ModelBundle> bundle_;
  std::unique_ptr<Engine> engine_;
};

struct Share {
  int right = 0, total = 0;
  double value() const { return total == 0 ? 0.0 : static_cast<double>(right) / total; }
};

inline std::map<std::string, Share> ShareByTask(const std::vector<DemoCase>& cases,
                                                const std::vector<bool>& right) {
  std::map<std::string, Share> shares;
  for (size_t i = 0; i < cases.size(); ++i) {
    Share& share = shares[cases[i].task];
    share.right += right[i];
    ++share.total;
  }
  return shares;
}

template <typename Predicate>
std::vector<DemoCase> Where(const std::vector<DemoCase>& cases, Predicate&& keep) {
  std::vector<DemoCase> kept;
  for (const DemoCase& c : cases) {
    if (keep(c)) kept.push_back(c);
  }
  return kept;
}

}  // namespace deepinfer
