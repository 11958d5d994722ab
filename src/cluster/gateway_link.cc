#include "cluster/gateway_link.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <cluster.pb.h>
#include "cluster/wire_codec.h"

namespace deepinfer {

void GatewayLink::Send(wire::Message message) {
  const std::lock_guard lock(mutex_);
  SendLocked(std::move(message));
}

void GatewayLink::SendEvent(const std::string& request_id, uint32_t attempt, TokenEvent event) {
  wire::Message message;
  EncodeEvent(request_id, attempt, event, message.mutable_tokens()->add_events());
  const std::lock_guard lock(mutex_);
  if (session_ == nullptr) return;
  if (event.finish != FinishReason::kNone) {
    credits_.erase(request_id);
  } else {
    credits_[request_id].push_back(std::move(event.credit));
  }
  SendLocked(std::move(message));
}

void GatewayLink::OnAck(const std::string& request_id, uint32_t num_events) {
  std::vector<std::shared_ptr<void>> done;  // die outside of the lock
  const std::lock_guard lock(mutex_);
  const auto it = credits_.find(request_id);
  if (it == credits_.end()) return;
  for (; num_events > 0 && !it->second.empty(); --num_events) {
    done.push_back(std::move(it->second.front()));
    it->second.pop_front();
  }
}

void GatewayLink::NoteDispatch(uint64_t seq) {
  const std::lock_guard lock(mutex_);
  last_dispatch_seq_ = std::max(last_dispatch_seq_, seq);
}

uint64_t GatewayLink::last_dispatch_seq() const {
  const std::lock_guard lock(mutex_);
  return last_dispatch_seq_;
}

void GatewayLink::CloseSession() {
  const std::lock_guard lock(mutex_);
  if (session_ != nullptr) session_->Close();
}

void GatewayLink::Detach() {
  std::unordered_map<std::string, std::deque<std::shared_ptr<void>>> credits;
  const std::lock_guard lock(mutex_);
  session_ = nullptr;
  credits.swap(credits_);
}

void GatewayLink::SendLocked(wire::Message message) {
  if (session_ == nullptr) return;
  message.set_sender(own_);
  message.set_target(peer_);
  session_->Send(std::move(message));
}

}  // namespace deepinfer
