#include "server/prefix_log.h"

#include <algorithm>
#include <utility>

namespace deepinfer {
namespace {

constexpr size_t kMostRequests = 256;
constexpr size_t kMostTokens = 4 << 20;  // 16 MiB

}  // namespace

void PrefixLog::Begin(const std::string& request_id, const Sha256Digest& scope,
                      const std::vector<int32_t>& prompt_ids) {
  const std::lock_guard lock(mutex_);
  entries_.push_back({request_id, scope, prompt_ids});
  num_tokens_ += prompt_ids.size();
  while (entries_.size() > kMostRequests || num_tokens_ > kMostTokens) {
    num_tokens_ -= entries_.front().prompt_ids.size();
    entries_.pop_front();
  }
}

size_t PrefixLog::Find(std::string_view request_id) const {
  for (size_t i = entries_.size(); i-- > 0;) {
    if (entries_[i].request_id == request_id) return i;
  }
  return entries_.size();
}

void PrefixLog::End(std::string_view request_id, int64_t cached_tokens, int64_t replayed_tokens) {
  const std::lock_guard lock(mutex_);
  const size_t index = Find(request_id);
  if (index == entries_.size()) return;
  entries_[index].cached_tokens = cached_tokens;
  entries_[index].replayed_tokens = replayed_tokens;
}

std::optional<PrefixReport> PrefixLog::Report(std::string_view request_id) const {
  const std::lock_guard lock(mutex_);
  const size_t index = Find(request_id);
  if (index == entries_.size()) return std::nullopt;
  const Entry& entry = entries_[index];
  PrefixReport report;
  report.prompt_ids = entry.prompt_ids;
  report.cached_tokens = entry.cached_tokens;
  report.replayed_tokens = entry.replayed_tokens;
  for (size_t i = 0; i < index; ++i) {
    const Entry& other = entries_[i];
    if (other.scope != entry.scope) continue;
    const auto parting = std::mismatch(entry.prompt_ids.begin(), entry.prompt_ids.end(),
                                       other.prompt_ids.begin(), other.prompt_ids.end());
    const auto num_common = parting.first - entry.prompt_ids.begin();
    // Of several that share as much the newest: its state is the likeliest to be kept.
    if (num_common == 0 || num_common < report.num_common) continue;
    report.num_common = num_common;
    report.nearest_request_id = other.request_id;
    report.nearest_ids = other.prompt_ids;
  }
  return report;
}

}  // namespace deepinfer
