// What drafts are worth on the demo model: without drafts, with a fixed number and scheduled. Every
// mode has an engine that lives for the whole run, as a server's does; modes take turns inside
// every round, so that they meet the same machine. One JSON line per mode and round on standard
// output; benchmarks/spec_bench.py makes the tables.
//   speculation_bench ROUNDS SEQUENCES REQUESTS [MODE,...]      default: all modes

#include <fmt/core.h>

#include <algorithm>
#include <boost/json.hpp>
#include <condition_variable>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/model_bundle.h"

namespace deepinfer {
namespace {

// Shorter answers are mostly prompt.
constexpr size_t kMinAnswer = 16;

struct Mode {
  std::string name;
  SpeculationOptions options;
};

std::vector<Mode> AllModes() {
  std::vector<Mode> modes(7);
  modes[0].name = "off";
  modes[0].options.enabled = false;
  for (int32_t n = 1; n <= 5; ++n) {
    Mode& m = modes[static_cast<size_t>(n)];
    m.name = "fixed " + std::to_string(n);
    m.options.verify = VerifyPolicy::kFixed;
    m.options.draft_tokens = n;
  }
  modes[6].name = "scheduled";
  return modes;
}

// "off" comes always: the others are compared with it.
std::vector<Mode> Modes(const std::string& wanted) {
  std::vector<Mode> modes = AllModes();
  const std::string list = "off," + wanted + ",";
  std::erase_if(modes, [&](const Mode& m) {
    return !wanted.empty() && list.find(m.name + ",") == std::string::npos;
  });
  return modes;
}

// Cases spread over all tasks.
std::vector<EngineRequest> LoadRequests(const std::string& dir, size_t num_requests) {
  std::ifstream file(dir + "/cases.jsonl");
  std::vector<EngineRequest> requests;
  for (std::string line; std::getline(file, line);) {
    const boost::json::object o = boost::json::parse(line).as_object();
    const size_t answer = o.at("answer_ids").as_array().size();
    if (o.at("thinking").as_bool() || answer < kMinAnswer) continue;
    EngineRequest r;
    r.request_id = std::string(o.at("name").as_string());
    r.prompt_ids = boost::json::value_to<std::vector<int32_t>>(o.at("prompt_ids"));
    r.sampling.temperature = 0.0f;
    r.sampling.max_tokens = 96;
    requests.push_back(std::move(r));
  }
  std::vector<EngineRequest> chosen;
  for (size_t i = 0; i < num_requests; ++i) {
    chosen.push_back(requests[i * requests.size() / num_requests]);
  }
  return chosen;
}

std::unique_ptr<Engine> MakeEngine(Model* model, const Mode& mode, int32_t num_sequences,
                                   const Clock* clock) {
  EngineOptions options;
  options.max_model_len = 1024;
  options.max_num_seqs = num_sequences;
  options.prefix_cache = false;
  options.speculation = mode.options;
  auto engine = Engine::Create(model, options, clock);
  if (!engine.ok()) {
    fmt::print(stderr, "{}\n", engine.status().ToString());
    std::exit(1);
  }
  return *std::move(engine);
}

struct Measured {
  int64_t tokens = 0;
  double seconds = 0;
};

// All requests, at most as many at a time as the engine has sequences.
Measured RunOnce(Engine* engine, const std::vector<EngineRequest>& requests) {
  SteadyClock clock;
  std::mutex mutex;
  std::condition_variable changed;
  size_t ended = 0;
  Measured measured;
  const int64_t begin_us = clock.NowUs();
  for (const EngineRequest& r : requests) {
    const Status status = engine->Submit(r, [&](const TokenEvent& event) {
      if (event.finish == FinishReason::kNone) return;
      const std::lock_guard lock(mutex);
      measured.tokens += event.counters.generated_tokens;
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

void Print(const Mode& mode, int32_t num_sequences, int round, const Measured& r,
           const EngineStatistics& before, const EngineStatistics& after) {
  const auto per_position = [](const auto& a, const auto& b) {
    std::string list;
    for (size_t k = 0; k < kMaxDraftTokens; ++k) {
      list += (k == 0 ? "" : ",") + std::to_string(b[k] - a[k]);
    }
    return list;
  };
  fmt::print(R"({{"sequences":{},"mode":"{}","round":{},"tokens":{},"seconds":{:.6f},"steps":{},)"
             R"("drafts":{},"verified":{},"accepted":{},"model_s":{:.6f},"draft_s":{:.6f},)"
             R"("verified_by_position":[{}],"accepted_by_position":[{}]}})"
             "\n",
             num_sequences, mode.name, round, r.tokens, r.seconds, after.steps - before.steps,
             after.drafts - before.drafts, after.draft_tokens - before.draft_tokens,
             after.draft_accepted - before.draft_accepted,
             static_cast<double>(after.model_us - before.model_us) / 1e6,
             static_cast<double>(after.draft_us - before.draft_us) / 1e6,
             per_position(before.draft_verified_by_position, after.draft_verified_by_position),
             per_position(before.draft_accepted_by_position, after.draft_accepted_by_position));
}

int Main(int argc, char** argv) {
  if (argc < 4) {
    fmt::print(stderr, "usage: speculation_bench ROUNDS SEQUENCES REQUESTS [MODE,...]\n");
    return 2;
  }
  const int rounds = std::atoi(argv[1]);
  const int32_t num_sequences = std::atoi(argv[2]);
  const std::string dir = std::string(DEEPINFER_SOURCE_DIR) + "/models/deepinfer-tiny";
  Result<ModelBundle> bundle = ModelBundle::Load(dir, BundleOptions(), nullptr);
  if (!bundle.ok()) {
    fmt::print(stderr, "{}\n", bundle.status().ToString());
    return 1;
  }
  const std::vector<EngineRequest> requests =
      LoadRequests(dir, static_cast<size_t>(std::atoi(argv[3])));
  const std::vector<Mode> modes = Modes(argc > 4 ? argv[4] : "");
  const SteadyClock clock;
  std::vector<std::unique_ptr<Engine>> engines;
  for (const Mode& mode : modes) {
    engines.push_back(MakeEngine(bundle->model.get(), mode, num_sequences, &clock));
  }
  // Round 0 warms up: caches fill, and the scheduler learns.
  for (int round = 0; round <= rounds; ++round) {
    for (size_t m = 0; m < modes.size(); ++m) {
      const EngineStatistics before = engines[m]->Statistics();
      const Measured measured = RunOnce(engines[m].get(), requests);
      if (round > 0) {
        Print(modes[m], num_sequences, round, measured, before, engines[m]->Statistics());
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace deepinfer

int main(int argc, char** argv) { return deepinfer::Main(argc, argv); }
