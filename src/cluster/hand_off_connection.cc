#include "cluster/hand_off_connection.h"

#include <chrono>
#include <utility>

#include <cluster.pb.h>
#include "cluster/hand_off_receiver.h"
#include "cluster/handshake.h"

namespace deepinfer {

namespace {

constexpr std::chrono::milliseconds kDialLimit{1000};
constexpr std::chrono::milliseconds kStopLook{20};

}  // namespace

Result<std::shared_ptr<HandOffConnection>> HandOffConnection::Dial(const std::string& endpoint,
                                                                   const WorkerInfo& own,
                                                                   const DialOptions& options) {
  DI_ASSIGN_OR_RETURN(std::unique_ptr<Session> session,
                      DialSession(endpoint, kDialLimit, options.security));
  std::shared_ptr<HandOffConnection> connection(
      new HandOffConnection(endpoint, own.incarnation, std::move(session)));
  DI_RETURN_IF_ERROR(connection->Greet(own, options));
  return connection;
}

HandOffConnection::HandOffConnection(std::string endpoint, uint64_t own_incarnation,
                                     std::unique_ptr<Session> session)
    : endpoint_(std::move(endpoint)),
      own_incarnation_(own_incarnation),
      session_(std::move(session)),
      reader_([this] { Read(); }) {}

HandOffConnection::~HandOffConnection() {
  closing_ = true;
  session_->Close();
  reader_.join();
}

Status HandOffConnection::Greet(const WorkerInfo& own, const DialOptions& options) {
  session_->Send(MakeHello(own.incarnation, std::string(WorkerRoleName(own.role)), own));
  const auto deadline = std::chrono::steady_clock::now() + options.greet_limit;
  std::unique_lock lock(mutex_);
  while (!greeted_.wait_for(lock, kStopLook, [this] { return refused_.has_value() || lost(); })) {
    if (options.stopped()) return Cancelled("nobody waits for worker " + endpoint_);
    if (std::chrono::steady_clock::now() > deadline) break;
  }
  if (!refused_) return Unavailable("worker " + endpoint_ + " does not answer");
  if (refused_->empty()) return OkStatus();
  return Unavailable("worker " + endpoint_ + " refuses the pair: " + *refused_);
}

void HandOffConnection::Add(const std::string& run, Listener* listener) {
  const std::lock_guard lock(mutex_);
  listeners_[run] = listener;
  if (lost()) listener->OnLost(Unavailable("worker " + endpoint_ + " was lost"));
}

void HandOffConnection::Remove(const std::string& run) {
  const std::lock_guard lock(mutex_);
  listeners_.erase(run);
  std::erase_if(runs_, [&](const auto& entry) { return entry.second == run; });
}

void HandOffConnection::Send(wire::Message message) {
  message.set_sender(own_incarnation_);
  message.set_target(peer_.incarnation);
  session_->Send(std::move(message));
}

void HandOffConnection::Read() {
  wire::Message message;
  while (session_->Receive(&message)) {
    const std::lock_guard lock(mutex_);
    OnMessage(message);
  }
  const std::lock_guard lock(mutex_);
  lost_ = true;
  greeted_.notify_all();
  if (closing_) return;
  for (const auto& [run, listener] : listeners_) {
    listener->OnLost(Unavailable("worker " + endpoint_ + " was lost"));
  }
}

HandOffConnection::Listener* HandOffConnection::Find(uint64_t ticket) const {
  const auto run = runs_.find(ticket);
  if (run == runs_.end()) return nullptr;
  const auto it = listeners_.find(run->second);
  return it == listeners_.end() ? nullptr : it->second;
}

// Words about hand-offs that are over have no effect.
void HandOffConnection::OnMessage(const wire::Message& message) {
  if (message.has_hello()) {
    if (refused_) return;
    peer_ = InfoOfHello(message);
    refused_ = message.hello().refused();
    greeted_.notify_all();
  } else if (message.has_ticket()) {
    const wire::Ticket& ticket = message.ticket();
    const std::string run = RunName(ticket.request_id(), ticket.attempt());
    const auto it = listeners_.find(run);
    if (it == listeners_.end()) return;
    if (ticket.refused().empty()) runs_[ticket.ticket()] = run;
    it->second->OnTicket(ticket);
  } else if (message.has_extent_ack()) {
    if (Listener* listener = Find(message.extent_ack().ticket())) {
      listener->OnExtentAck(message.extent_ack());
    }
  } else if (message.has_committed()) {
    if (Listener* listener = Find(message.committed().ticket())) {
      listener->OnCommitted(message.committed());
    }
  }
}

}  // namespace deepinfer
