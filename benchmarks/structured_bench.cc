// What structured outputs cost: tokens per second of answers under a JSON schema against free text
// of the same length, on the demo model, with the engine's defaults and without drafts. Modes take
// turns inside every round. One JSON line per mode and round.
//   structured_bench ROUNDS SEQUENCES TOKENS

#include <fmt/core.h>

#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/model_bundle.h"

namespace deepinfer {
namespace {

constexpr int32_t kPromptTokens = 48;

// Long enough never to end by itself: names, numbers and choices as clients ask for them.
constexpr std::string_view kSchema = R"({"type":"array","minItems":200,"items":{"type":"object",
"properties":{"name":{"type":"string","maxLength":24},"age":{"type":"integer"},
"city":{"type":"string","pattern":"^[A-Z][a-z]{2,10}$"},
"status":{"enum":["active","inactive","unknown"]},"tags":{"type":"array","maxItems":3,
"items":{"type":"string","maxLength":12}}},
"required":["name","age","city","status","tags"],"additionalProperties":false}})";

struct Mode {
  std::string name;
  bool constrained = false;
  bool drafts = true;
};

std::vector<EngineRequest> Requests(const Mode& mode, int32_t num_sequences, int32_t num_tokens) {
  std::vector<EngineRequest> requests;
  for (int32_t i = 0; i < num_sequences; ++i) {
    EngineRequest r;
    r.request_id = mode.name + std::to_string(i);
    for (int32_t t = 0; t < kPromptTokens; ++t)
      r.prompt_ids.push_back(300 + (t * 37 + i * 11) % 7000);
    r.sampling.temperature = 0.8f;
    r.sampling.has_seed = true;
    r.sampling.seed = static_cast<uint64_t>(i);
    r.sampling.max_tokens = num_tokens;
    r.sampling.ignore_eos = !mode.constrained;
    if (mode.constrained) {
      OutputGrammar grammar;
      grammar.source.kind = GrammarKind::kJsonSchema;
      grammar.source.text = kSchema;
      r.grammar = std::make_shared<OutputGrammar>(std::move(grammar));
    }
    requests.push_back(std::move(r));
  }
  return requests;
}

std::unique_ptr<Engine> MakeEngine(const ModelBundle& bundle, const Mode& mode,
                                   int32_t num_sequences, const Clock* clock) {
  EngineOptions options;
  options.max_model_len = 2048;
  options.max_num_seqs = num_sequences;
  options.prefix_cache = false;
  options.sampling_pool = bundle.pool.get();
  options.speculation.enabled = mode.drafts;
  auto engine = Engine::Create(bundle.model.get(), options, clock, bundle.grammars.get());
  if (!engine.ok()) {
    fmt::print(stderr, "{}\n", engine.status().ToString());
    std::exit(1);
  }
  return *std::move(engine);
}

// From the first token of the last request to start, so that prompts and compilations do not count.
struct Measured {
  int64_t tokens = 0;
  double seconds = 0;
};

Measured RunOnce(Engine* engine, const std::vector<EngineRequest>& requests) {
  SteadyClock clock;
  std::mutex mutex;
  std::condition_variable changed;
  size_t ended = 0, begun = 0;
  Measured measured;
  int64_t begin_us = 0;
  for (const EngineRequest& r : requests) {
    auto is_first = std::make_shared<bool>(true);
    const Status status = engine->Submit(r, [&, is_first](const TokenEvent& event) {
      const std::lock_guard lock(mutex);
      if (!event.ids.empty() && std::exchange(*is_first, false)) {
        if (++begun == requests.size()) begin_us = clock.NowUs();
      } else if (begun == requests.size()) {
        measured.tokens += static_cast<int64_t>(event.ids.size());
      }
      if (event.finish == FinishReason::kNone) return;
      if (!event.status.ok()) fmt::print(stderr, "{}\n", event.status.ToString());
      ++ended;
      changed.notify_one();
    });
    if (!status.ok()) std::exit(1);
  }
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return ended == requests.size(); });
  measured.seconds = static_cast<double>(clock.NowUs() - begin_us) / 1e6;
  return measured;
}

int Main(int argc, char** argv) {
  if (argc != 4) {
    fmt::print(stderr, "usage: structured_bench ROUNDS SEQUENCES TOKENS\n");
    return 2;
  }
  const int rounds = std::atoi(argv[1]);
  const int32_t num_sequences = std::atoi(argv[2]), num_tokens = std::atoi(argv[3]);
  BundleOptions bundle_options;
  bundle_options.grammars.emplace();
  Result<ModelBundle> bundle = ModelBundle::Load(
      std::string(DEEPINFER_SOURCE_DIR) + "/models/deepinfer-tiny", bundle_options, nullptr);
  if (!bundle.ok()) {
    fmt::print(stderr, "{}\n", bundle.status().ToString());
    return 1;
  }
  const SteadyClock clock;
  const std::vector<Mode> modes = {{"free", false, true},
                                   {"schema", true, true},
                                   {"free, no drafts", false, false},
                                   {"schema, no drafts", true, false}};
  std::vector<std::unique_ptr<Engine>> engines;
  for (const Mode& mode : modes) {
    engines.push_back(MakeEngine(*bundle, mode, num_sequences, &clock));
  }
  for (int round = 0; round <= rounds; ++round) {
    for (size_t m = 0; m < modes.size(); ++m) {
      const EngineStatistics before = engines[m]->Statistics();
      const Measured measured =
          RunOnce(engines[m].get(), Requests(modes[m], num_sequences, num_tokens));
      const EngineStatistics after = engines[m]->Statistics();
      if (round == 0) continue;  // caches fill
      fmt::print(R"({{"mode":"{}","round":{},"tokens":{},"seconds":{:.6f},"steps":{},)"
                 R"("forced":{},"drafts":{},"accepted":{},"grammar_s":{:.6f}}})"
                 "\n",
                 modes[m].name, round, measured.tokens, measured.seconds,
                 after.steps - before.steps, after.forced_tokens - before.forced_tokens,
                 after.drafts - before.drafts, after.draft_accepted - before.draft_accepted,
                 static_cast<double>(after.grammar_us - before.grammar_us) / 1e6);
    }
  }
  return 0;
}

}  // namespace
}  // namespace deepinfer

int main(int argc, char** argv) { return deepinfer::Main(argc, argv); }
