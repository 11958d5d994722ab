// How far evicting by learnt value can lead on a recorded trace: the rates at which blocks of a
// class are used again, by their age, are fitted to the whole trace beforehand, which no cache can
// know, and what gives way is always the block with the least chance of use per time that it would
// stay (its Gittins index), deepest first within a prompt. Classes are made of everything a trace
// says of a prompt: how many turns came before it, new blocks, length of the answer, time since the
// last turn.
//
// usage: kv_eviction_limit TRACE.jsonl [--online]
// --online learns while it runs instead, with the first two only.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <boost/json.hpp>
#include <cmath>
#include <fstream>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

constexpr int64_t kIdTokens = 512;
constexpr size_t kAges = 32;
constexpr double kAgeGrowth = 1.4;   // each age is so much longer than the one before
constexpr double kFirstAge = 0.005;  // in turnovers of the cache
constexpr double kPriorBlocks = 20;  // of the common rates, in every class
constexpr double kRefit = 1.0 / 16;  // turnovers of the cache

struct Request {
  int64_t input_tokens = 0;
  int64_t output_tokens = 0;
  std::vector<size_t> ids;
};

std::vector<Request> ReadTrace(const char* path) {
  std::vector<Request> requests;
  std::unordered_map<int64_t, size_t> numbers;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto object = boost::json::parse(line).as_object();
    Request request{
        object.at("input_length").as_int64(), object.at("output_length").as_int64(), {}};
    for (const auto& id : object.at("hash_ids").as_array()) {
      request.ids.push_back(numbers.try_emplace(id.as_int64(), numbers.size()).first->second);
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

size_t Log2(double value) {
  return static_cast<size_t>(std::bit_width(static_cast<uint64_t>(std::max(1.0, value)))) - 1;
}

// Uses, and time without one, of blocks of a class by age.
struct Rates {
  std::array<double, kAges> uses{};
  std::array<double, kAges> exposure{};
};
using Tables = std::map<size_t, Rates>;

// What one request used last, shallow blocks first.
struct Run {
  size_t kind = 0;
  double used = 0;
  std::vector<size_t> ids;
  int64_t resident = 0;
};

class Cache {
 public:
  Cache(size_t num_ids, int64_t capacity, const Tables* hindsight, bool all_features)
      : capacity_(static_cast<double>(capacity)),
        hindsight_(hindsight),
        all_features_(all_features),
        blocks_(num_ids) {
    for (size_t age = 0; age < kAges; ++age) {
      age_ends_[age] = capacity_ * kFirstAge * std::pow(kAgeGrowth, static_cast<double>(age));
    }
    if (hindsight != nullptr) Value(*hindsight);
  }

  // Tokens of the prompt that were there.
  int64_t Serve(const Request& request) {
    const auto& ids = request.ids;
    size_t hit = 0;
    while (hit < ids.size() && blocks_[ids[hit]].resident) ++hit;
    const size_t turn = hit == 0 ? 1 : std::min<size_t>(blocks_[ids[hit - 1]].turn + 1, 20);
    const double gap = hit > 1 ? now_ - runs_[blocks_[ids[hit - 1]].run].used : -1;
    const size_t run = runs_.size();
    runs_.push_back({KindOf(request, turn, hit, gap), now_, {}, 0});
    live_.push_back(run);
    for (const size_t id : ids) {
      Block& block = blocks_[id];
      if (block.run != kNone) Leave(id);
      if (!block.resident) {
        block.resident = true;
        ++resident_;
        block.turn = turn;
        now_ += 1;
      }
      block.run = run;
      runs_[run].ids.push_back(id);
      ++runs_[run].resident;
    }
    runs_[run].used = now_;
    while (resident_ > capacity_) Evict();
    return std::min(static_cast<int64_t>(hit) * kIdTokens, request.input_tokens);
  }

  // What was seen, with what still waits for its next use.
  Tables Seen() const {
    Tables seen = ended_;
    for (const size_t run : live_) {
      const Run& r = runs_[run];
      Add(&seen[r.kind], now_ - r.used, static_cast<double>(r.ids.size()), false);
    }
    return seen;
  }

 private:
  static constexpr size_t kNone = ~size_t{0};
  struct Block {
    size_t run = kNone;
    size_t turn = 0;
    bool resident = false;
  };

  size_t KindOf(const Request& request, size_t turn, size_t hit, double gap) const {
    const size_t kind = std::min<size_t>(turn, 3) * 8 +
                        std::min<size_t>(Log2(static_cast<double>(request.ids.size() - hit)), 7);
    if (!all_features_) return kind;
    const size_t answer = std::min<size_t>(Log2(static_cast<double>(request.output_tokens)) / 2, 5);
    const size_t wait = gap < 0 ? 5 : std::min<size_t>(Log2(gap / capacity_ * 200) / 2, 4);
    return (kind * 6 + answer) * 6 + wait;
  }

  double AgeEnd(size_t age) const { return age_ends_[age]; }
  double AgeBegin(size_t age) const { return age == 0 ? 0 : AgeEnd(age - 1); }
  size_t AgeOf(double time) const {
    size_t age = 0;
    while (age + 1 < kAges && time >= AgeEnd(age)) ++age;
    return age;
  }

  void Add(Rates* rates, double time, double blocks, bool used) const {
    for (size_t age = 0; age < kAges && time > AgeBegin(age); ++age) {
      rates->exposure[age] += blocks * (std::min(time, AgeEnd(age)) - AgeBegin(age));
    }
    if (used) rates->uses[AgeOf(time)] += blocks;
  }

  void Leave(size_t id) {
    Run& run = runs_[blocks_[id].run];
    Add(&ended_[run.kind], now_ - run.used, 1, true);
    run.ids.erase(std::ranges::find(run.ids, id));
    run.resident -= blocks_[id].resident ? 1 : 0;
  }

  // The most uses per time that waiting any further while brings, by class and age.
  void Value(const Tables& tables) {
    fitted_ = now_;
    Rates all;
    for (const auto& [kind, rates] : tables) {
      for (size_t age = 0; age < kAges; ++age) {
        all.uses[age] += rates.uses[age];
        all.exposure[age] += rates.exposure[age];
      }
    }
    values_.clear();
    for (const auto& [kind, rates] : tables) values_[kind] = ValuesOf(rates, all);
    new_kind_ = ValuesOf({}, all);
  }

  std::array<double, kAges> ValuesOf(const Rates& rates, const Rates& all) const {
    std::array<double, kAges> values{};
    for (size_t from = 0; from < kAges; ++from) {
      double left = 1;
      double uses = 0;
      double time = 0;
      for (size_t age = from; age < kAges; ++age) {
        const double width = AgeEnd(age) - AgeBegin(age);
        const double common = all.exposure[age] > 0 ? all.uses[age] / all.exposure[age] : 0;
        const double rate = (rates.uses[age] + common * kPriorBlocks * width) /
                            (rates.exposure[age] + kPriorBlocks * width);
        const double used = 1 - std::exp(-rate * width);
        uses += left * used;
        time += left * (rate > 1e-15 ? used / rate : width);
        left *= 1 - used;
        values[from] = std::max(values[from], uses / time);
      }
    }
    return values;
  }

  double ValueOf(const Run& run) const {
    const auto known = values_.find(run.kind);
    return (known == values_.end() ? new_kind_ : known->second)[AgeOf(now_ - run.used)];
  }

  void Evict() {
    if (hindsight_ == nullptr && now_ - fitted_ > capacity_ * kRefit) {
      std::erase_if(live_, [&](size_t run) { return runs_[run].ids.empty(); });
      Value(Seen());
    }
    size_t least = kNone;
    double least_value = 0;
    for (const size_t run : live_) {
      if (runs_[run].resident == 0) continue;
      const double value = ValueOf(runs_[run]);
      if (least == kNone || value < least_value - 1e-15) {
        least = run;
        least_value = value;
      }
    }
    Run& run = runs_[least];
    const auto deepest = std::find_if(run.ids.rbegin(), run.ids.rend(),
                                      [&](size_t id) { return blocks_[id].resident; });
    blocks_[*deepest].resident = false;
    --run.resident;
    --resident_;
  }

  const double capacity_;
  const Tables* hindsight_;
  const bool all_features_;
  std::array<double, kAges> age_ends_{};
  std::vector<Block> blocks_;
  std::vector<Run> runs_;
  std::vector<size_t> live_;  // runs that still hold ids, oldest first
  Tables ended_;
  std::map<size_t, std::array<double, kAges>> values_;
  std::array<double, kAges> new_kind_{};
  double now_ = 0;  // blocks written so far
  double fitted_ = -1e18;
  double resident_ = 0;
};

}  // namespace

int main(int count, char** arguments) {
  if (count < 2) {
    fmt::print(stderr, "usage: kv_eviction_limit TRACE.jsonl [--online]\n");
    return 2;
  }
  const bool online = count > 2 && std::string(arguments[2]) == "--online";
  const std::vector<Request> requests = ReadTrace(arguments[1]);
  size_t num_ids = 0;
  int64_t input_tokens = 0;
  for (const Request& request : requests) {
    input_tokens += request.input_tokens;
    for (const size_t id : request.ids) num_ids = std::max(num_ids, id + 1);
  }
  for (const double share : {0.05, 0.10, 0.20}) {
    const auto capacity = static_cast<int64_t>(share * static_cast<double>(num_ids));
    Tables hindsight;
    int64_t hit_tokens = 0;
    for (int pass = online ? 1 : 0; pass < 2; ++pass) {
      Cache cache(num_ids, capacity, online || pass == 0 ? nullptr : &hindsight, !online);
      hit_tokens = 0;
      for (const Request& request : requests) hit_tokens += cache.Serve(request);
      if (pass == 0) hindsight = cache.Seen();
    }
    fmt::print("{:>3.0f} %  {}  {:.4f}\n", 100 * share, online ? "learnt" : "known beforehand",
               static_cast<double>(hit_tokens) / static_cast<double>(input_tokens));
  }
  return 0;
}
