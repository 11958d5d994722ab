// deepinfer kv replay: the curves of hit rates over cache sizes and times to live.

#include <fmt/core.h>

#include <array>
#include <boost/json.hpp>
#include <fstream>
#include <vector>

#include "cli/io.h"
#include "cli/kv_environment.h"
#include "cli/kv_tools.h"
#include "cli/progress_line.h"
#include "kvcache/store_replay.h"
#include "kvcache/trace_replay.h"

namespace deepinfer {
namespace {

namespace json = boost::json;

constexpr std::array<double, 8> kShares = {0.01, 0.02, 0.05, 0.10, 0.20, 0.30, 0.50, 1.0};

// Seconds of the times to live, refreshed by use.
constexpr std::array<int64_t, 7> kTtlSeconds = {10, 30, 60, 120, 300, 600, 1200};

struct CurvePoint {
  double share = 0;  // of the unique blocks
  int64_t blocks = 0;
  double hit_rate = 0;
  double bound = 0;         // of a cache that sees the future (Belady)
  StoreReplayTotals store;  // a store on disk with this space
};

Result<TraceRequest> ParseRequest(const std::string& line) {
  boost::system::error_code error;
  const json::value value = json::parse(line, error);
  if (error || !value.is_object()) return InvalidRequest("not a JSON object");
  const json::object& object = value.get_object();
  const auto* input = object.if_contains("input_length");
  const auto* ids = object.if_contains("hash_ids");
  const auto* time = object.if_contains("timestamp");
  if (input == nullptr || !input->is_int64() || input->get_int64() < 0 || ids == nullptr ||
      !ids->is_array()) {
    return InvalidRequest("needs input_length and hash_ids");
  }
  TraceRequest request;
  request.input_tokens = input->get_int64();
  if (time != nullptr && time->is_int64()) request.time_ms = time->get_int64();
  for (const json::value& id : ids->get_array()) {
    if (!id.is_int64() || id.get_int64() < 0) return InvalidRequest("hash_ids are integers >= 0");
    request.ids.push_back(static_cast<uint64_t>(id.get_int64()));
  }
  return request;
}

Result<std::vector<TraceRequest>> ReadTrace(const std::string& path) {
  std::ifstream file(path);
  if (!file) return NotFound("cannot read " + path);
  std::vector<TraceRequest> requests;
  for (std::string line; std::getline(file, line);) {
    if (line.empty()) continue;
    auto request = ParseRequest(line);
    if (!request.ok()) {
      return request.status().Annotate(fmt::format("{}:{}", path, requests.size() + 1));
    }
    requests.push_back(*std::move(request));
  }
  return requests;
}

// The curves on axes, both from 0 to the largest value.
std::string DrawSvg(const std::vector<CurvePoint>& curve, const std::string& title) {
  constexpr double kWidth = 640;
  constexpr double kHeight = 360;
  constexpr double kMargin = 50;
  const auto x = [&](double share) { return kMargin + share * (kWidth - 2 * kMargin); };
  const auto y = [&](double rate) { return kHeight - kMargin - rate * (kHeight - 2 * kMargin); };
  std::string line;
  std::string bound_line;
  std::string store_line;
  std::string marks;
  for (const CurvePoint& point : curve) {
    line += fmt::format("{:.1f},{:.1f} ", x(point.share), y(point.hit_rate));
    bound_line += fmt::format("{:.1f},{:.1f} ", x(point.share), y(point.bound));
    store_line += fmt::format("{:.1f},{:.1f} ", x(point.share), y(point.store.trace.hit_rate()));
    marks += fmt::format(
        "<circle cx=\"{0:.1f}\" cy=\"{1:.1f}\" r=\"3\"/><text x=\"{0:.1f}\" y=\"{2:.1f}\">"
        "{3:.3f}</text>\n",
        x(point.share), y(point.hit_rate), y(point.hit_rate) + 16, point.hit_rate);
  }
  std::string ticks;
  for (int i = 0; i <= 10; i += 2) {
    ticks += fmt::format(
        "<text x=\"{:.1f}\" y=\"{:.1f}\">{} %</text><text x=\"{:.1f}\" "
        "y=\"{:.1f}\">{:.1f}</text>\n",
        x(i / 10.0) - 12, kHeight - kMargin + 18, 10 * i, kMargin - 30, y(i / 10.0) + 4, i / 10.0);
  }
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
      "font-family=\"sans-serif\" font-size=\"11\">\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n"
      "<text x=\"{2}\" y=\"24\" font-size=\"14\">{3}</text>\n"
      "<path d=\"M{2} {4}V{5}H{6}\" fill=\"none\" stroke=\"black\"/>\n{7}"
      "<polyline points=\"{10}\" fill=\"none\" stroke=\"#888\" stroke-dasharray=\"4\"/>\n"
      "<polyline points=\"{11}\" fill=\"none\" stroke=\"#d73a49\"/>\n"
      "<polyline points=\"{8}\" fill=\"none\" stroke=\"#1f6feb\" stroke-width=\"2\"/>\n{9}</svg>\n",
      kWidth, kHeight, kMargin, title, kMargin, kHeight - kMargin, kWidth - kMargin, ticks, line,
      marks, bound_line, store_line);
}

struct TtlPoint {
  int64_t seconds = 0;
  double hit_rate = 0;
  StoreReplayTotals store;  // its janitor expires whole segments
};

struct Curves {
  std::vector<CurvePoint> by_space;
  std::vector<TtlPoint> by_ttl;
  StoreReplayTotals unlimited;
};

Result<Curves> Replay(const std::vector<TraceRequest>& requests, const KvReplayOptions& options,
                      int64_t unique) {
  Curves curves;
  ProgressLine line(static_cast<int64_t>(kShares.size() + kTtlSeconds.size()) + 1);
  int64_t replayed = 0;
  for (const double share : kShares) {
    line.Show(replayed++, fmt::format("{:.0f} % of the blocks", 100 * share));
    const auto blocks = static_cast<int64_t>(share * static_cast<double>(unique));
    auto totals = ReplayTrace(requests, options.block_tokens, blocks);
    if (totals.status().code() == StatusCode::kResourceExhausted) continue;  // one prompt is larger
    DI_RETURN_IF_ERROR(totals.status());
    DI_ASSIGN_OR_RETURN(
        const StoreReplayTotals store,
        ReplayTraceInStore(requests, options.block_tokens, {.capacity_blocks = blocks}));
    curves.by_space.push_back({share, blocks, totals->hit_rate(),
                               ReplayTraceBelady(requests, options.block_tokens, blocks).hit_rate(),
                               store});
  }
  for (const int64_t seconds : kTtlSeconds) {
    line.Show(replayed++, fmt::format("{} s after the last use", seconds));
    DI_ASSIGN_OR_RETURN(
        const StoreReplayTotals store,
        ReplayTraceInStore(requests, options.block_tokens, {.ttl_ms = seconds * 1000}));
    curves.by_ttl.push_back(
        {seconds, ReplayTraceTtl(requests, options.block_tokens, seconds * 1000).hit_rate(),
         store});
  }
  line.Show(replayed, "without a limit");
  DI_ASSIGN_OR_RETURN(curves.unlimited, ReplayTraceInStore(requests, options.block_tokens, {}));
  return curves;
}

std::string DescribeCurves(const Curves& curves, int64_t num_requests, int64_t unique,
                           int64_t block_tokens) {
  std::string text = fmt::format(
      "{} requests, {} unique blocks of {} tokens\n"
      "                            memory   disk     bound    evicted from disk\n",
      num_requests, unique, block_tokens);
  for (const CurvePoint& point : curves.by_space) {
    text += fmt::format("{:>6.0f} %  {:>10} blocks  {:.4f}   {:.4f}   {:.4f}   {}\n",
                        100 * point.share, point.blocks, point.hit_rate,
                        point.store.trace.hit_rate(), point.bound, point.store.evicted_blocks);
  }
  text += fmt::format("  without a limit            -        {:.4f}\n",
                      curves.unlimited.trace.hit_rate());
  for (const TtlPoint& point : curves.by_ttl) {
    text += fmt::format("{:>6} s after the last use   {:.4f}   {:.4f}\n", point.seconds,
                        point.hit_rate, point.store.trace.hit_rate());
  }
  text.pop_back();
  return text;
}

std::string CurvesAsJson(const Curves& curves, int64_t num_requests, int64_t unique,
                         int64_t block_tokens) {
  std::vector<std::string> lru;
  std::vector<std::string> store;
  std::vector<std::string> ttl;
  for (const CurvePoint& point : curves.by_space) {
    lru.push_back(fmt::format("{{\"share\":{},\"blocks\":{},\"hit_rate\":{:.4f},\"bound\":{:.4f}}}",
                              point.share, point.blocks, point.hit_rate, point.bound));
    store.push_back(fmt::format(
        "{{\"share\":{},\"blocks\":{},\"hit_rate\":{:.4f},\"evicted_blocks\":{},"
        "\"removed_segments\":{},\"most_segments\":{}}}",
        point.share, point.blocks, point.store.trace.hit_rate(), point.store.evicted_blocks,
        point.store.removed_segments, point.store.most_segments));
  }
  for (const TtlPoint& point : curves.by_ttl) {
    ttl.push_back(fmt::format(
        "{{\"seconds\":{},\"hit_rate\":{:.4f},\"store_hit_rate\":{:.4f},\"copied_blocks\":{}}}",
        point.seconds, point.hit_rate, point.store.trace.hit_rate(), point.store.copied_blocks));
  }
  return fmt::format(
      "{{\"requests\":{},\"block_tokens\":{},\"unique_blocks\":{},\"lru\":{},\"store\":{},"
      "\"store_unlimited\":{:.4f},\"ttl\":{}}}",
      num_requests, block_tokens, unique, JoinJson(lru), JoinJson(store),
      curves.unlimited.trace.hit_rate(), JoinJson(ttl));
}

}  // namespace

Status ReplayKvTrace(const KvReplayOptions& options) {
  DI_ASSIGN_OR_RETURN(const auto trace, ReadTrace(options.path));
  DI_ASSIGN_OR_RETURN(const auto requests,
                      SplitIds(trace, options.id_tokens, options.block_tokens));
  const int64_t unique = CountUniqueIds(requests);
  DI_ASSIGN_OR_RETURN(const Curves curves, Replay(requests, options, unique));
  if (!options.svg_path.empty()) {
    DI_RETURN_IF_ERROR(WriteTextFile(
        options.svg_path,
        DrawSvg(curves.by_space,
                "Token hit rate over the share of unique blocks kept: memory (blue), disk (red), "
                "bound (dashed)")));
  }
  const auto num_requests = static_cast<int64_t>(requests.size());
  return PrintLine(options.json
                       ? CurvesAsJson(curves, num_requests, unique, options.block_tokens)
                       : DescribeCurves(curves, num_requests, unique, options.block_tokens));
}

}  // namespace deepinfer
