#include "server/work_names.h"

#include <cstring>
#include <initializer_list>

namespace deepinfer {

namespace {

// Parts with their lengths, so that no two lists of parts are the same bytes.
Sha256Digest DigestOf(std::initializer_list<std::string_view> parts) {
  std::string bytes;
  for (const std::string_view part : parts) {
    bytes += std::to_string(part.size());
    bytes += ':';
    bytes += part;
  }
  return Sha256(bytes);
}

std::string_view BytesOf(const Sha256Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

}  // namespace

Sha256Digest WorkNames::WorkOf(std::string_view tenant, std::string_view key,
                               std::string_view route, std::string_view body) {
  const Sha256Digest body_digest = Sha256(body);
  return DigestOf({tenant, key, route, BytesOf(body_digest)});
}

std::optional<WorkNames::Claimed> WorkNames::Claim(std::string_view tenant, std::string_view key,
                                                   std::string_view route, std::string_view body,
                                                   Time now) {
  const Sha256Digest work = WorkOf(tenant, key, route, body);
  const Sha256Digest name = DigestOf({tenant, key});
  const std::string name_bytes(BytesOf(name));
  const std::lock_guard lock(mutex_);
  while (!ages_.empty() && (now - ages_.front().first > kMemory || ages_.size() >= kMost)) {
    const auto it = uses_.find(ages_.front().second);
    if (it != uses_.end() && it->second.last == ages_.front().first) uses_.erase(it);
    ages_.pop_front();
  }
  const auto [it, is_new] = uses_.try_emplace(name_bytes, Use{work, now});
  if (!is_new && it->second.work != work) return std::nullopt;
  it->second.last = now;
  ages_.emplace_back(now, name_bytes);
  return Claimed{work, is_new};
}

void WorkNames::Release(std::string_view tenant, std::string_view key, const Sha256Digest& work) {
  const Sha256Digest name = DigestOf({tenant, key});
  const std::lock_guard lock(mutex_);
  const auto it = uses_.find(std::string(BytesOf(name)));
  if (it != uses_.end() && it->second.work == work) uses_.erase(it);
}

size_t WorkNames::size() const {
  const std::lock_guard lock(mutex_);
  return uses_.size();
}

ChoiceOfWork MakeChoiceOfWork(const Sha256Digest& work, size_t choice,
                              std::span<const int32_t> prompt_ids) {
  const std::string number = std::to_string(choice);
  const std::string_view prompt(reinterpret_cast<const char*>(prompt_ids.data()),
                                prompt_ids.size_bytes());
  const Sha256Digest name = DigestOf({"name", BytesOf(work), number, prompt});
  const Sha256Digest seed = DigestOf({"seed", BytesOf(work), number});
  ChoiceOfWork result;
  result.work_id.assign(BytesOf(name).substr(0, name.size() / 2));
  std::memcpy(&result.seed, seed.data(), sizeof result.seed);
  return result;
}

}  // namespace deepinfer
