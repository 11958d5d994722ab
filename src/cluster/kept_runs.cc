#include "cluster/kept_runs.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace deepinfer {

namespace {

// Ids of one event of a replay: messages stay far below what a session takes.
constexpr size_t kReplayIds = 1024;

int64_t BytesOf(const TokenEvent& event) {
  size_t bytes = event.ids.size() * sizeof(int32_t);
  for (const auto* list : {&event.logprobs, &event.prompt_logprobs}) {
    for (const TokenLogprobs& l : *list) {
      bytes += sizeof l + l.top.size() * sizeof(std::pair<int32_t, float>);
    }
  }
  return static_cast<int64_t>(bytes);
}

// Adds what a later event of the run says to the sum of those before.
void Append(const TokenEvent& event, TokenEvent* sum) {
  sum->ids.insert(sum->ids.end(), event.ids.begin(), event.ids.end());
  sum->logprobs.insert(sum->logprobs.end(), event.logprobs.begin(), event.logprobs.end());
  sum->prompt_logprobs.insert(sum->prompt_logprobs.end(), event.prompt_logprobs.begin(),
                              event.prompt_logprobs.end());
  sum->finish = event.finish;
  sum->stop_token_id = event.stop_token_id;
  sum->status = event.status;
  sum->counters = event.counters;
  sum->origin = event.origin;
}

// The part of a sum that begins at an index of its ids.
TokenEvent Slice(const TokenEvent& sum, size_t begin) {
  const size_t end = std::min(sum.ids.size(), begin + kReplayIds);
  const auto at = [](const auto& list, size_t i) {
    return list.begin() + static_cast<std::ptrdiff_t>(std::min(i, list.size()));
  };
  TokenEvent part;
  part.start_index = static_cast<int32_t>(begin);
  part.ids.assign(at(sum.ids, begin), at(sum.ids, end));
  part.logprobs.assign(at(sum.logprobs, begin), at(sum.logprobs, end));
  if (begin == 0) part.prompt_logprobs = sum.prompt_logprobs;
  part.counters = sum.counters;
  part.origin = sum.origin;
  if (end < sum.ids.size()) return part;
  part.finish = sum.finish;
  part.stop_token_id = sum.stop_token_id;
  part.status = sum.status;
  return part;
}

}  // namespace

// Its fields are under KeptRuns::mutex_.
class KeptRuns::Kept final : public RunOutput {
 public:
  Kept(KeptRuns* owner, std::string name_in, const EngineRequest& request, Part part_in,
       std::shared_ptr<GatewayLink> link_in)
      : owner_(owner),
        name(std::move(name_in)),
        part(part_in),
        work_id(request.work_id),
        submitted_id(request.request_id),
        request_id(request.request_id),
        attempt(request.attempt),
        link(std::move(link_in)) {}

  void SendEvent(const std::string&, uint32_t, TokenEvent event) override {
    // Nobody reads the events of an orphan, so they must not hold it up.
    std::shared_ptr<void> credit;
    const std::lock_guard lock(owner_->mutex_);
    if (ended) return;
    has_begun = true;
    ended = event.finish != FinishReason::kNone;
    if (has_journal) {
      Append(event, &journal);
      const int64_t added = BytesOf(event);
      num_bytes += added;
      owner_->num_bytes_ += added;
      if (owner_->num_bytes_ > owner_->options_.max_bytes) owner_->DropJournal(this);
    }
    if (link != nullptr) {
      link->SendEvent(request_id, attempt, std::move(event));
      if (ended) owner_->Remove(*this);
    } else {
      credit = std::move(event.credit);
      if (ended && !owner_->IsAdoptable(*this)) owner_->Remove(*this);
    }
  }

 private:
  KeptRuns* const owner_;

 public:
  const std::string name;
  const Part part;
  const std::string work_id;
  const std::string submitted_id;
  std::string request_id;  // as the gateway of now knows it
  uint32_t attempt = 0;
  std::shared_ptr<GatewayLink> link;  // null: an orphan
  int64_t orphan_since_us = 0;
  bool has_journal = false;
  TokenEvent journal;  // the sum of all events so far
  int64_t num_bytes = 0;
  bool is_forgotten = false;
  bool has_begun = false;  // an event has come
  bool ended = false;
};

bool KeptRuns::IsAdoptable(const Kept& kept) const {
  if (kept.link != nullptr || !kept.has_journal || kept.is_forgotten) return false;
  if (kept.part == Part::kAnswer && !kept.has_begun) return false;
  // Another end is the end of that attempt, not of the work.
  const FinishReason finish = kept.journal.finish;
  return !kept.ended || finish == FinishReason::kStop || finish == FinishReason::kLength;
}

void KeptRuns::DropJournal(Kept* kept) {
  num_bytes_ -= kept->num_bytes;
  kept->num_bytes = 0;
  kept->journal = {};
  kept->has_journal = false;
}

void KeptRuns::DropAlias(const Kept& kept) {
  const auto it = submitted_as_.find(kept.request_id);
  if (it != submitted_as_.end() && it->second == kept.submitted_id) submitted_as_.erase(it);
}

void KeptRuns::Remove(const Kept& kept) {
  num_bytes_ -= kept.num_bytes;
  DropAlias(kept);
  const auto work = name_of_work_.find(kept.work_id);
  if (work != name_of_work_.end() && work->second == kept.name) name_of_work_.erase(work);
  by_name_.erase(kept.name);  // the last reference may be another one: the caller's
}

std::shared_ptr<RunOutput> KeptRuns::Keep(const EngineRequest& request, const std::string& name,
                                          Part part, const std::shared_ptr<GatewayLink>& link,
                                          std::string* replaced) {
  auto kept = std::make_shared<Kept>(this, name, request, part, link);
  replaced->clear();
  const std::lock_guard lock(mutex_);
  by_name_[name] = kept;
  // Log-probabilities of tokens that another worker made are not here to be told again.
  const bool is_whole = !request.resume || request.sampling.num_top_logprobs < 0;
  if (part == Part::kPrompt || !is_whole) return kept;
  kept->has_journal = true;
  if (request.resume) {
    kept->journal.ids = request.resume->ids;
    kept->journal.counters = request.resume->counters;
    kept->journal.origin = request.resume->origin;
    kept->num_bytes = BytesOf(kept->journal);
    num_bytes_ += kept->num_bytes;
  }
  std::string& newest = name_of_work_[kept->work_id];
  if (const auto it = by_name_.find(newest); it != by_name_.end() && it->second->link == nullptr) {
    it->second->is_forgotten = true;
    *replaced = newest;
  }
  newest = name;
  return kept;
}

std::vector<std::string> KeptRuns::Orphan(const GatewayLink& link, int64_t now_us) {
  std::vector<std::string> lost;
  const std::lock_guard lock(mutex_);
  for (const auto& [name, kept] : by_name_) {
    if (kept->link.get() != &link) continue;
    kept->link = nullptr;
    kept->orphan_since_us = now_us;
    const bool goes_on = kept->has_journal || kept->part == Part::kPrompt;
    if (goes_on && !kept->is_forgotten) continue;
    kept->is_forgotten = true;
    lost.push_back(name);
  }
  return lost;
}

bool KeptRuns::Adopt(const std::string& work_id, const std::string& request_id, uint32_t attempt,
                     const std::shared_ptr<GatewayLink>& link) {
  const std::lock_guard lock(mutex_);
  const auto work = name_of_work_.find(work_id);
  if (work == name_of_work_.end()) return false;
  const KeptPtr kept = by_name_.at(work->second);
  if (!IsAdoptable(*kept)) return false;
  DropAlias(*kept);
  kept->request_id = request_id;
  kept->attempt = attempt;
  kept->link = link;
  if (request_id != kept->submitted_id) submitted_as_[request_id] = kept->submitted_id;
  size_t begin = 0;
  do {
    link->SendEvent(request_id, attempt, Slice(kept->journal, begin));
    begin += kReplayIds;
  } while (begin < kept->journal.ids.size());
  Log(LogLevel::kInfo, "run.adopted",
      {{"request_id", request_id},
       {"run", kept->name},
       {"tokens", static_cast<int64_t>(kept->journal.ids.size())},
       {"ended", kept->ended}});
  if (kept->ended) Remove(*kept);
  return true;
}

std::string KeptRuns::SubmittedAs(const std::string& request_id) const {
  const std::lock_guard lock(mutex_);
  const auto it = submitted_as_.find(request_id);
  if (it != submitted_as_.end()) return it->second;
  const bool is_anothers =
      std::any_of(submitted_as_.begin(), submitted_as_.end(),
                  [&](const auto& adopted) { return adopted.second == request_id; });
  return is_anothers ? std::string() : request_id;
}

void KeptRuns::Forget(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto it = by_name_.find(name);
  if (it == by_name_.end()) return;
  it->second->is_forgotten = true;
  // The request that had taken it over may run here anew before this run ends.
  DropAlias(*it->second);
}

std::vector<std::string> KeptRuns::Expire(int64_t now_us) {
  std::vector<std::string> over;
  std::vector<KeptPtr> ended;
  const std::lock_guard lock(mutex_);
  for (const auto& [name, kept] : by_name_) {
    if (kept->link != nullptr || now_us - kept->orphan_since_us < options_.orphan_us) continue;
    if (kept->ended) {
      ended.push_back(kept);
    } else if (!std::exchange(kept->is_forgotten, true)) {
      over.push_back(name);
    }
  }
  for (const KeptPtr& kept : ended) Remove(*kept);
  return over;
}

std::vector<std::string> KeptRuns::ExpireAll() {
  std::vector<std::string> all;
  const std::lock_guard lock(mutex_);
  for (const auto& [name, kept] : by_name_) {
    if (kept->link != nullptr || kept->ended) continue;
    kept->is_forgotten = true;
    all.push_back(name);
  }
  return all;
}

int32_t KeptRuns::num_orphans() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int32_t>(
      std::count_if(by_name_.begin(), by_name_.end(),
                    [this](const auto& it) { return IsAdoptable(*it.second); }));
}

int64_t KeptRuns::num_bytes() const {
  const std::lock_guard lock(mutex_);
  return num_bytes_;
}

}  // namespace deepinfer
