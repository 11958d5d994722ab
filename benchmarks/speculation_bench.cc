// What drafts are worth on the demo model: acceptance by position and tokens per second without
// drafts, with a fixed number and scheduled, at several numbers of requests at a time. Modes take
// turns inside every round, so that they meet the same machine.
//   speculation_bench [ROUNDS [SEQUENCES,... [MODE,...]]]     modes as in the table; default: all

#include <fmt/core.h>

#include <algorithm>
#include <boost/json.hpp>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/model_bundle.h"

namespace deepinfer {
namespace {

// Shorter answers are mostly prompt.
constexpr size_t kMinAnswer = 16;
constexpr size_t kNumRequests = 48;

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

std::vector<EngineRequest> LoadRequests(const std::string& dir) {
  std::ifstream file(dir + "/cases.jsonl");
  std::vector<EngineRequest> requests;
  for (std::string line; std::getline(file, line) && requests.size() < kNumRequests;) {
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
  return requests;
}

struct Measured {
  std::vector<double> tokens_per_s;
  EngineStatistics statistics;
};

// All requests, at most num_sequences at a time.
void RunOnce(Model* model, const Mode& mode, int32_t num_sequences,
             const std::vector<EngineRequest>& requests, Measured* result) {
  SteadyClock clock;
  EngineOptions options;
  options.max_model_len = 1024;
  options.max_num_seqs = num_sequences;
  options.prefix_cache = false;
  options.speculation = mode.options;
  auto engine = Engine::Create(model, options, &clock);
  if (!engine.ok()) {
    fmt::print(stderr, "{}\n", engine.status().ToString());
    std::exit(1);
  }
  std::mutex mutex;
  std::condition_variable changed;
  size_t ended = 0;
  int64_t generated = 0;
  const int64_t begin_us = clock.NowUs();
  for (const EngineRequest& r : requests) {
    const Status status = (*engine)->Submit(r, [&](const TokenEvent& event) {
      if (event.finish == FinishReason::kNone) return;
      const std::lock_guard lock(mutex);
      generated += event.counters.generated_tokens;
      ++ended;
      changed.notify_one();
    });
    if (!status.ok()) std::exit(1);
  }
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return ended == requests.size(); });
  const auto us = static_cast<double>(clock.NowUs() - begin_us);
  result->tokens_per_s.push_back(static_cast<double>(generated) * 1e6 / us);
  result->statistics = (*engine)->Statistics();
}

double Median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return (v[(v.size() - 1) / 2] + v[v.size() / 2]) / 2;
}

void Print(const Mode& mode, int32_t num_sequences, const Measured& r, double base) {
  const EngineStatistics& s = r.statistics;
  const auto verifications = static_cast<double>(std::max<int64_t>(1, s.drafts));
  const auto steps = static_cast<double>(std::max<int64_t>(1, s.steps));
  fmt::print("{:3} {:10} {:8.1f} tok/s {:5.2f}x  steps {:5} verified/step {:.2f} accepted {:.2f}",
             num_sequences, mode.name, Median(r.tokens_per_s), Median(r.tokens_per_s) / base,
             s.steps, static_cast<double>(s.draft_tokens) / verifications,
             static_cast<double>(s.draft_accepted) / verifications);
  fmt::print("  ms/step model {:.2f} draft {:.2f}  by position", s.model_us / steps / 1e3,
             s.draft_us / steps / 1e3);
  for (size_t k = 0; k < kMaxDraftTokens; ++k) {
    // Of those verified at this place, and whose drafts before it were accepted.
    const int64_t survived = k == 0 ? s.drafts : s.draft_accepted_by_position[k - 1];
    if (survived == 0 || s.draft_verified_by_position[k] == 0) break;
    fmt::print(
        " {:.2f}/{:.2f}",
        static_cast<double>(s.draft_accepted_by_position[k]) /
            static_cast<double>(s.draft_verified_by_position[k]),
        static_cast<double>(s.draft_accepted_by_position[k]) / static_cast<double>(survived));
  }
  fmt::print("\n");
}

int Main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 3;
  std::istringstream list(argc > 2 ? argv[2] : "1,4,8,16");
  const std::string dir = std::string(DEEPINFER_SOURCE_DIR) + "/models/deepinfer-tiny";
  Result<ModelBundle> bundle = ModelBundle::Load(dir, BundleOptions(), nullptr);
  if (!bundle.ok()) {
    fmt::print(stderr, "{}\n", bundle.status().ToString());
    return 1;
  }
  const std::vector<EngineRequest> requests = LoadRequests(dir);
  fmt::print("{} requests; acceptance by position: survival/conditional\n", requests.size());
  for (std::string item; std::getline(list, item, ',');) {
    const int32_t num_sequences = std::atoi(item.c_str());
    const std::vector<Mode> modes = Modes(argc > 3 ? argv[3] : "");
    std::vector<Measured> results(modes.size());
    for (int round = 0; round < rounds; ++round) {
      for (size_t m = 0; m < modes.size(); ++m) {
        RunOnce(bundle->model.get(), modes[m], num_sequences, requests, &results[m]);
      }
    }
    const double base = Median(results[0].tokens_per_s);
    for (size_t m = 0; m < modes.size(); ++m) Print(modes[m], num_sequences, results[m], base);
  }
  return 0;
}

}  // namespace
}  // namespace deepinfer

int main(int argc, char** argv) { return deepinfer::Main(argc, argv); }
