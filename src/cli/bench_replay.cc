// deepinfer bench replay: how far answers behind a bounded replay are from exact ones
// (numerics.md §6).

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <fstream>
#include <map>

#include "cli/commands.h"
#include "cli/generation.h"
#include "cli/io.h"
#include "cli/model_flags.h"
#include "cli/progress_line.h"
#include "cli/svg_chart.h"
#include "cli/value_checks.h"

namespace deepinfer {
namespace {

constexpr int32_t kLeastHit = 256;  // shorter hits are not taken
constexpr int32_t kBlock = 128;

struct Dialogue {
  std::vector<int32_t> prompt_ids, answer_ids;
};

// What replays of one kind did to the answers.
struct ReplayResult {
  int32_t depth = 0;    // tokens of the hit
  int32_t replays = 0;  // bounded replays that the hit's blocks and the answer went through
  int64_t answers = 0, equal_answers = 0;
  int64_t tokens = 0, equal_best = 0;
  double kl_sum = 0, kl_max = 0;
  int64_t exact_length = 0, free_length = 0;

  double mean_kl() const { return kl_sum / static_cast<double>(tokens); }
};

// KL(exact ‖ other) over the tokens both lists hold, all others taken as one.
double KlOfLists(const TokenLogprobs& exact, const TokenLogprobs& other) {
  std::map<int32_t, double> q;
  for (const auto& [id, logprob] : other.top) q[id] = logprob;
  double sum = 0, p_known = 0, q_known = 0;
  for (const auto& [id, logprob] : exact.top) {
    const auto found = q.find(id);
    if (found == q.end()) continue;
    const double p = std::exp(double{logprob});
    sum += p * (double{logprob} - found->second);
    p_known += p;
    q_known += std::exp(found->second);
  }
  constexpr double kLeastRest = 1e-12;  // below it the rest is rounding
  const double p_rest = std::max(1 - p_known, kLeastRest);
  const double q_rest = std::max(1 - q_known, kLeastRest);
  return std::max(0.0, sum + p_rest * std::log(p_rest / q_rest));
}

class BenchReplayCommand final : public Command {
 public:
  CLI::App* Register(CLI::App* app) override {
    CLI::App* c = app->get_subcommand("bench")->add_subcommand(
        "replay", "Distance of answers behind bounded replays from exact ones");
    model_.Register(c, false, kServingNumerics);
    c->add_option("--cases", cases_file_,
                  "JSON lines with prompt_ids and answer_ids; default: cases.jsonl of the model");
    c->add_option("--depths", depths_, "Tokens of the prefix hit, multiples of 128 from 256")
        ->delimiter(',')
        ->capture_default_str();
    c->add_option("--replays", replays_, "Bounded replays in a row, each after a hit")
        ->delimiter(',')
        ->check(Positive())
        ->capture_default_str();
    c->add_option("--questions", num_questions_, "Prompts of each kind")
        ->check(Positive())
        ->capture_default_str();
    c->add_option("--max-tokens", max_tokens_, "Longest answer")
        ->check(Positive())
        ->capture_default_str();
    c->add_option("--plot", plot_file_, "Also write the divergences as an SVG picture");
    c->footer("Example:\n  deepinfer bench replay --questions 100 --plot replay.svg");
    return c;
  }

  int Run(const FlagOrigins&) override {
    const Status status = Bench();
    return status.ok() ? kExitOk : ReportFailure(status);
  }

 private:
  Status Bench() {
    DI_ASSIGN_OR_RETURN(const std::filesystem::path dir, model_.ModelDir());
    DI_RETURN_IF_ERROR(LoadDialogues(cases_file_.empty() ? dir / "cases.jsonl"
                                                         : std::filesystem::path(cases_file_)));
    DI_ASSIGN_OR_RETURN(BundleOptions bundle, model_.Bundle());
    const int32_t deepest = *std::max_element(depths_.begin(), depths_.end());
    bundle.model.max_positions = deepest + longest_turn_ * 2 + max_tokens_ + 1;
    EngineOptions engine;
    engine.max_model_len = bundle.model.max_positions;
    engine.replay = ReplayMode::kBounded;
    // A snapshot would make the hit exact.
    engine.swa_snapshots = false;
    engine.min_hit_tokens = kLeastHit;
    DI_ASSIGN_OR_RETURN(local_, LocalEngine::Open(dir, bundle, engine));
    if (local_->engine().max_model_len() < bundle.model.max_positions) {
      return InvalidRequest("--depths exceed the model's positions");
    }
    std::vector<ReplayResult> results;
    for (int32_t depth : depths_) {
      if (depth < kLeastHit || depth % kBlock != 0) {
        return InvalidRequest("--depths must be multiples of 128 from 256");
      }
      for (int32_t replays : replays_) {
        if (depth < kLeastHit * replays) continue;  // each needs a longer hit than the last
        DI_ASSIGN_OR_RETURN(ReplayResult result, Measure(depth, replays));
        results.push_back(result);
      }
    }
    DI_RETURN_IF_ERROR(Print(results));
    return plot_file_.empty() ? OkStatus() : Plot(results);
  }

  Status LoadDialogues(const std::filesystem::path& path) {
    std::ifstream file(path);
    if (!file) return NotFound("cannot read " + path.string());
    for (std::string line; std::getline(file, line);) {
      boost::system::error_code error;
      const boost::json::value value = boost::json::parse(line, error);
      const boost::json::object* object = error ? nullptr : value.if_object();
      const boost::json::value* prompt = object ? object->if_contains("prompt_ids") : nullptr;
      const boost::json::value* answer = object ? object->if_contains("answer_ids") : nullptr;
      if (prompt == nullptr || answer == nullptr) {
        return InvalidRequest(path.string() + " has a line without prompt_ids and answer_ids");
      }
      Dialogue d;
      DI_ASSIGN_OR_RETURN(d.prompt_ids, ParseIdArray(boost::json::serialize(*prompt)));
      DI_ASSIGN_OR_RETURN(d.answer_ids, ParseIdArray(boost::json::serialize(*answer)));
      if (d.prompt_ids.size() < 2) return InvalidRequest(path.string() + " has an empty prompt");
      longest_turn_ =
          std::max(longest_turn_, static_cast<int32_t>(d.prompt_ids.size() + d.answer_ids.size()));
      dialogues_.push_back(std::move(d));
    }
    if (dialogues_.empty()) return InvalidRequest(path.string() + " has no dialogue");
    return OkStatus();
  }

  // A conversation of at least `depth` tokens with question number `index` at its end.
  std::vector<int32_t> Conversation(int32_t depth, size_t index) const {
    std::vector<int32_t> ids = {dialogues_.front().prompt_ids.front()};
    const auto add = [&](const std::vector<int32_t>& more, ptrdiff_t from) {
      ids.insert(ids.end(), more.begin() + from, more.end());
    };
    // A step without a common divisor visits all dialogues, in an order of its own.
    constexpr size_t kStride = 101;
    for (size_t turn = 1; ids.size() < static_cast<size_t>(depth); ++turn) {
      const Dialogue& d = dialogues_[(index + turn * kStride) % dialogues_.size()];
      add(d.prompt_ids, 1);  // one begin token
      add(d.answer_ids, 0);
    }
    add(dialogues_[index % dialogues_.size()].prompt_ids, 1);
    return ids;
  }

  Result<ReplayResult> Measure(int32_t depth, int32_t replays) {
    ReplayResult result;
    result.depth = depth;
    result.replays = replays;
    const ProgressLine progress(num_questions_);
    for (int32_t i = 0; i < num_questions_; ++i) {
      progress.Show(i, fmt::format("depth {} replays {}", depth, replays));
      DI_RETURN_IF_ERROR(MeasureQuestion(Conversation(depth, static_cast<size_t>(i)), &result));
    }
    return result;
  }

  // The same question cold, behind the replays with the cold answer forced, and behind them freely.
  Status MeasureQuestion(const std::vector<int32_t>& prompt, ReplayResult* result) {
    DI_ASSIGN_OR_RETURN(const Answer exact, Ask(prompt, NewScope(), {}));
    Sha256Digest scope = NewScope();
    DI_RETURN_IF_ERROR(FillCache(prompt, scope, *result));
    DI_ASSIGN_OR_RETURN(const Answer forced, Ask(prompt, scope, exact.ids));
    scope = NewScope();
    DI_RETURN_IF_ERROR(FillCache(prompt, scope, *result));
    DI_ASSIGN_OR_RETURN(const Answer free, Ask(prompt, scope, {}));
    for (const Answer* behind : {&forced, &free}) {
      if (behind->cached_tokens == 0) return Internal("a prompt found nothing in the cache");
    }
    for (size_t t = 0; t < exact.ids.size(); ++t) {
      const double kl = KlOfLists(exact.logprobs[t], forced.logprobs[t]);
      result->kl_sum += kl;
      result->kl_max = std::max(result->kl_max, kl);
      result->equal_best += exact.logprobs[t].top[0].first == forced.logprobs[t].top[0].first;
    }
    result->tokens += static_cast<int64_t>(exact.ids.size());
    ++result->answers;
    result->equal_answers += exact.ids == free.ids;
    result->exact_length += static_cast<int64_t>(exact.ids.size());
    result->free_length += static_cast<int64_t>(free.ids.size());
    return OkStatus();
  }

  // Runs beginnings of the prompt, each behind a bounded replay of the one before, the last with
  // `depth` tokens.
  Status FillCache(const std::vector<int32_t>& prompt, const Sha256Digest& scope,
                   const ReplayResult& kind) {
    for (int32_t k = 1; k <= kind.replays; ++k) {
      const int32_t length = kind.depth * k / kind.replays / kBlock * kBlock;
      const std::vector<int32_t> begin(prompt.begin(), prompt.begin() + length);
      DI_RETURN_IF_ERROR(Ask(begin, scope, {}, 1).status());
    }
    return OkStatus();
  }

  struct Answer {
    std::vector<int32_t> ids;
    std::vector<TokenLogprobs> logprobs;
    int64_t cached_tokens = 0;
  };

  Result<Answer> Ask(std::vector<int32_t> prompt, const Sha256Digest& scope,
                     std::vector<int32_t> forced, int32_t max_tokens = 0) {
    EngineRequest r;
    r.request_id = std::to_string(++num_requests_);
    r.prompt_ids = std::move(prompt);
    r.cache_scope = scope;
    r.sampling.temperature = 0.0f;
    r.sampling.max_tokens = max_tokens > 0 ? max_tokens : max_tokens_;
    if (!forced.empty()) r.sampling.max_tokens = static_cast<int32_t>(forced.size());
    r.sampling.num_top_logprobs = max_tokens > 0 ? -1 : kMaxTopLogprobs;
    r.forced_ids = std::move(forced);
    Answer answer;
    DI_ASSIGN_OR_RETURN(const TokenEvent last, local_->Run(std::move(r), [&](const TokenEvent& e) {
      answer.ids.insert(answer.ids.end(), e.ids.begin(), e.ids.end());
      answer.logprobs.insert(answer.logprobs.end(), e.logprobs.begin(), e.logprobs.end());
    }));
    DI_RETURN_IF_ERROR(last.status);
    answer.cached_tokens = last.counters.cached_tokens;
    return answer;
  }

  Sha256Digest NewScope() { return Sha256("scope " + std::to_string(++num_scopes_)); }

  static Status Print(const std::vector<ReplayResult>& results) {
    DI_RETURN_IF_ERROR(PrintLine(
        "| hit | replays | tokens | mean KL | max KL | same best token | same answer | length |"));
    DI_RETURN_IF_ERROR(PrintLine("|---|---|---|---|---|---|---|---|"));
    for (const ReplayResult& r : results) {
      DI_RETURN_IF_ERROR(PrintLine(
          fmt::format("| {} | {} | {} | {:.5f} | {:.2f} | {:.1f} % | {} of {} | {:.3f} |", r.depth,
                      r.replays, r.tokens, r.mean_kl(), r.kl_max,
                      100.0 * static_cast<double>(r.equal_best) / static_cast<double>(r.tokens),
                      r.equal_answers, r.answers,
                      static_cast<double>(r.free_length) / static_cast<double>(r.exact_length))));
    }
    return OkStatus();
  }

  Status Plot(const std::vector<ReplayResult>& results) const {
    std::vector<ChartSeries> series;
    for (int32_t replays : replays_) {
      ChartSeries s;
      s.name = replays == 1 ? "1 replay" : fmt::format("{} replays", replays);
      for (const ReplayResult& r : results) {
        if (r.replays == replays) s.points.push_back({double(r.depth), 1000 * r.mean_kl(), ""});
      }
      if (!s.points.empty()) series.push_back(std::move(s));
    }
    return WriteTextFile(plot_file_,
                         LineChartSvg({"Bounded replay against an exact run", "tokens of the hit",
                                       "mean KL in thousandths of a nat"},
                                      series));
  }

  ModelFlags model_;
  std::string cases_file_, plot_file_;
  std::vector<int32_t> depths_ = {256, 512, 768, 1024};
  std::vector<int32_t> replays_ = {1, 2, 4};
  int32_t num_questions_ = 100;
  int32_t max_tokens_ = 32;
  std::vector<Dialogue> dialogues_;
  int32_t longest_turn_ = 0;
  std::unique_ptr<LocalEngine> local_;
  int64_t num_requests_ = 0, num_scopes_ = 0;
};

}  // namespace

std::unique_ptr<Command> MakeBenchReplayCommand() { return std::make_unique<BenchReplayCommand>(); }

}  // namespace deepinfer
