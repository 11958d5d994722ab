#include "text/conversation.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace deepinfer {
namespace {

// The reference model saw results of unknown calls at the place of the first call.
constexpr size_t kOrderOfUnknownCall = 0;

void SortToolResults(const AssistantTurn* calls_turn, UserTurn* turn) {
  if (calls_turn == nullptr || calls_turn->calls.empty()) return;
  std::vector<size_t> slots;
  for (size_t i = 0; i < turn->parts.size(); ++i) {
    if (std::holds_alternative<ToolResult>(turn->parts[i])) slots.push_back(i);
  }
  if (slots.size() < 2) return;

  std::unordered_map<std::string_view, size_t> order;
  for (size_t i = 0; i < calls_turn->calls.size(); ++i) order[calls_turn->calls[i].id] = i;
  std::vector<std::pair<size_t, ToolResult>> results;
  results.reserve(slots.size());
  for (size_t slot : slots) {
    auto& result = std::get<ToolResult>(turn->parts[slot]);
    auto found = order.find(result.call_id);
    results.emplace_back(found == order.end() ? kOrderOfUnknownCall : found->second,
                         std::move(result));
  }
  std::stable_sort(results.begin(), results.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (size_t i = 0; i < slots.size(); ++i) {
    turn->parts[slots[i]] = std::move(results[i].second);
  }
}

bool IsEmptyText(const UserTurn& turn) {
  if (turn.parts.size() != 1) return false;
  const auto* part = std::get_if<ContentPart>(&turn.parts.front());
  return part != nullptr && !part->is_image() && part->text.empty();
}

bool EndsWithToolResult(const UserTurn& turn) {
  return !turn.parts.empty() && std::holds_alternative<ToolResult>(turn.parts.back());
}

// V4.1 knows one reminder at a place: the first of several in a row.
void DropRepeatedReminders(std::vector<Turn>* turns) {
  auto both_are_reminders = [](const Turn& a, const Turn& b) {
    return std::holds_alternative<ReminderTurn>(a) && std::holds_alternative<ReminderTurn>(b);
  };
  turns->erase(std::unique(turns->begin(), turns->end(), both_are_reminders), turns->end());
}

// V4 leaves out user messages without text beside other user messages, not beside tool results.
void MergeUserTurns(PromptForm form, std::vector<Turn>* turns) {
  std::vector<Turn> merged;
  merged.reserve(turns->size());
  bool ends_with_empty_message = false;
  for (Turn& turn : *turns) {
    auto* user = std::get_if<UserTurn>(&turn);
    auto* previous = merged.empty() ? nullptr : std::get_if<UserTurn>(&merged.back());
    const bool is_empty = user != nullptr && IsEmptyText(*user);
    if (user == nullptr || previous == nullptr || previous->task != UserTask::kNone) {
      merged.push_back(std::move(turn));
      ends_with_empty_message = is_empty;
      continue;
    }
    previous->task = user->task;
    if (form == PromptForm::kV4) {
      if (is_empty && !EndsWithToolResult(*previous)) continue;
      if (ends_with_empty_message) previous->parts.pop_back();
    }
    ends_with_empty_message = is_empty;
    std::move(user->parts.begin(), user->parts.end(), std::back_inserter(previous->parts));
  }
  *turns = std::move(merged);
}

// Older V4 prompts have one system text, in front.
void MoveSystemTurnsToFront(std::vector<Turn>* turns) {
  SystemTurn front;
  for (Turn& turn : *turns) {
    if (auto* system = std::get_if<SystemTurn>(&turn)) {
      std::move(system->parts.begin(), system->parts.end(), std::back_inserter(front.parts));
    }
  }
  std::vector<Turn> ordered;
  ordered.reserve(turns->size() + 1);
  if (!front.parts.empty()) ordered.emplace_back(std::move(front));
  for (Turn& turn : *turns) {
    if (!std::holds_alternative<SystemTurn>(turn)) ordered.push_back(std::move(turn));
  }
  *turns = std::move(ordered);
}

}  // namespace

bool Conversation::continues_last_turn() const {
  if (turns.empty()) return false;
  const auto* assistant = std::get_if<AssistantTurn>(&turns.back());
  return assistant != nullptr && assistant->unfinished;
}

void ResolveAddedTools(Conversation* conversation) {
  const std::vector<Tool>& tools = conversation->tools;
  std::erase_if(conversation->turns, [&](Turn& turn) {
    auto* system = std::get_if<SystemTurn>(&turn);
    if (system == nullptr || system->added_tools.empty()) return false;
    std::vector<Tool> known;
    for (const Tool& added : system->added_tools) {
      const auto found = std::find_if(tools.begin(), tools.end(),
                                      [&](const Tool& tool) { return tool.name == added.name; });
      if (found != tools.end()) known.push_back(*found);
    }
    system->added_tools = std::move(known);
    return system->added_tools.empty() && system->parts.empty();
  });
}

void NormalizeTurns(Conversation* conversation) {
  if (conversation->form == PromptForm::kV4) {
    MoveSystemTurnsToFront(&conversation->turns);
  } else {
    DropRepeatedReminders(&conversation->turns);
  }
  MergeUserTurns(conversation->form, &conversation->turns);
  const AssistantTurn* calls_turn = nullptr;
  for (Turn& turn : conversation->turns) {
    if (const auto* assistant = std::get_if<AssistantTurn>(&turn)) {
      calls_turn = assistant;
    } else if (auto* user = std::get_if<UserTurn>(&turn)) {
      SortToolResults(calls_turn, user);
    }
  }
}

}  // namespace deepinfer
