#include "server/exact_replay.h"

#include <algorithm>
#include <unordered_set>
#include <utility>
#include <variant>

#include "text/sampled_turn.h"

namespace deepinfer {
namespace {

constexpr int64_t kSecondsPerHour = 3600;

// The turn that all calls of `turn` belong to, none else of its calls missing.
SampledIds FindTurn(const ReplayStore& store, const ReplayOwner& owner, const AssistantTurn& turn) {
  SampledIds found;
  for (const ToolCall& call : turn.calls) {
    SampledIds ids = store.Find(owner, call.id);
    // Read from files, the calls of a turn have it in one copy each.
    if (!ids || (found && *ids != *found)) return nullptr;
    if (!found) found = std::move(ids);
  }
  return found;
}

}  // namespace

ToolTurnSink KeepToolTurns(ReplayStore* store, const EngineRequest& request,
                           const SpecialTokens& special, std::span<const int32_t> prompt_ids) {
  // What the prompt holds of the turn: the think token of its header, and the opener of a block of
  // calls that was forced.
  const auto header = std::find(prompt_ids.rbegin(), prompt_ids.rend(), special.assistant).base();
  std::vector<int32_t> given(header, prompt_ids.end());
  const ReplayOwner owner{request.cache_scope, request.cache_retention.tenant_tag};
  const bool persists = request.cache_retention.persist;
  const int64_t lifetime_s = request.cache_retention.max_lifetime_hours * kSecondsPerHour;
  return [store, owner, persists, lifetime_s, eos = special.eos, given = std::move(given)](
             std::span<const int32_t> ids, const std::vector<std::string>& call_ids) {
    // Only a turn with its end token is rendered again as it was.
    if (given.empty() || ids.empty() || ids.back() != eos) return;
    std::vector<int32_t> turn = given;
    turn.insert(turn.end(), ids.begin(), ids.end());
    store->Keep(owner, call_ids, std::move(turn), persists, lifetime_s);
  };
}

ReplayedTurns ReplayToolTurns(const ReplayStore& store, const ReplayOwner& owner,
                              const ModelContext& model, Conversation* conversation) {
  ReplayedTurns result;
  const bool keep_reasoning = conversation->thinking && conversation->tools_in_effect();
  // One short message can name a long turn: each is read once, and all of them together are no
  // longer than a prompt may be.
  std::unordered_set<const std::vector<int32_t>*> seen;
  size_t budget = static_cast<size_t>(model.gateway->info().max_model_len);
  for (Turn& any_turn : conversation->turns) {
    auto* turn = std::get_if<AssistantTurn>(&any_turn);
    if (turn == nullptr || turn->calls.empty() || turn->unfinished) continue;
    const SampledIds ids = FindTurn(store, owner, *turn);
    if (!ids || !seen.insert(ids.get()).second) continue;
    if (ids->size() > budget) break;
    budget -= ids->size();
    turn->sampled =
        RestoreSampledTurn(*model.tokenizer, model.special, *ids, *turn, keep_reasoning);
    ++(turn->sampled ? result.num_used : result.num_changed);
  }
  return result;
}

}  // namespace deepinfer
