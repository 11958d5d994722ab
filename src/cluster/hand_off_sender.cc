#include "cluster/hand_off_sender.h"

#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <optional>
#include <thread>
#include <utility>

#include <cluster.pb.h>
#include "base/log.h"
#include "cluster/handshake.h"
#include "cluster/session.h"
#include "cluster/wire_codec.h"
#include "transfer/extent_path.h"
#include "transfer/extent_push.h"

namespace deepinfer {

namespace {

using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kDialLimit{1000};
// For a landing, and for the engine of the other side to take a state over.
constexpr std::chrono::seconds kAnswerLimit{10};
// For a request to be announced to the other side too.
constexpr std::chrono::milliseconds kAnnounceLimit{1000};
constexpr std::chrono::milliseconds kAnnounceLook{10};
// Without an acknowledgement for so long the receiver is lost: its lease, docs/cluster.md §6.
constexpr std::chrono::seconds kStallLimit{10};

// Where data connections of a worker go: its port on the host of its endpoint.
struct Address {
  std::string host;
  uint16_t port = 0;
};

Result<Address> DataAddress(const std::string& endpoint, const std::string& data_endpoint) {
  Address address{"127.0.0.1", 0};
  if (!endpoint.starts_with("unix:")) address.host = endpoint.substr(0, endpoint.rfind(':'));
  if (address.host.starts_with('[')) address.host = address.host.substr(1, address.host.size() - 2);
  const char* const end = data_endpoint.data() + data_endpoint.size();
  if (!data_endpoint.starts_with(':') ||
      std::from_chars(data_endpoint.data() + 1, end, address.port).ptr != end) {
    return Unavailable("the worker takes no data connections");
  }
  return address;
}

// Bytes travel with the messages that announce them.
class InBandPath final : public ExtentPath {
 public:
  Status Send(const Extent&, std::span<const std::byte>, SocketDeadline) override {
    return OkStatus();
  }
  bool needs_message() const override { return true; }
  void Interrupt() override {}
};

}  // namespace

// One decode worker: the hand-offs that wait for it, the session, and a thread that works.
class HandOffSender::Link {
 public:
  Link(HandOffSender* sender, std::string endpoint)
      : sender_(sender), endpoint_(std::move(endpoint)), thread_([this] { Work(); }) {}

  ~Link() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
      StopCurrent(Unavailable("the worker stops"));
    }
    changed_.notify_all();
    thread_.join();
    Disconnect();
    for (const HandOff& left : queue_) sender_->Finish(left, Unavailable("the worker stops"));
  }

  void Add(HandOff hand_off) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(hand_off));
    }
    changed_.notify_all();
  }

  void Cancel(const std::string& run) {
    std::optional<HandOff> waiting;
    {
      const std::lock_guard lock(mutex_);
      if (current_.run == run) StopCurrent(Cancelled("the request was cancelled"));
      for (auto it = queue_.begin(); it != queue_.end(); ++it) {
        if (RunName(it->request_id, it->attempt) != run) continue;
        waiting = std::move(*it);
        queue_.erase(it);
        break;
      }
    }
    changed_.notify_all();
    if (waiting) sender_->Finish(*waiting, Cancelled("the request was cancelled"));
  }

 private:
  // What is known of the hand-off that is under way.
  struct Current {
    std::string run;                   // empty: none
    std::optional<wire::Hello> hello;  // of a session that was just made
    std::optional<wire::Ticket> ticket;
    std::optional<wire::Committed> committed;
    ExtentPush* push = nullptr;
    Status stopped;
  };

  void Work() {
    while (true) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stop_ || !queue_.empty(); });
      if (stop_) return;
      HandOff hand_off = std::move(queue_.front());
      queue_.pop_front();
      current_ = {};
      current_.run = RunName(hand_off.request_id, hand_off.attempt);
      lock.unlock();
      const Status status = Transfer(hand_off);
      lock.lock();
      current_ = {};
      lock.unlock();
      sender_->Finish(hand_off, status);
    }
  }

  Status Transfer(const HandOff& hand_off) {
    if (session_ == nullptr || lost_) DI_RETURN_IF_ERROR(Connect());
    const Status status = Converse(hand_off);
    if (!status.ok()) {
      // The other side need not wait for the lease to end.
      wire::Message release;
      release.mutable_release()->set_request_id(hand_off.request_id);
      release.mutable_release()->set_attempt(hand_off.attempt);
      Send(std::move(release));
    }
    return status;
  }

  Status Converse(const HandOff& hand_off) {
    DI_ASSIGN_OR_RETURN(const wire::Ticket ticket, Reserve(hand_off));
    if (!ticket.refused().empty()) return Unavailable("no ticket: " + ticket.refused());
    DI_ASSIGN_OR_RETURN(const std::unique_ptr<ExtentPath> path, OpenPath(ticket));
    DI_ASSIGN_OR_RETURN(const Manifest manifest, PushImage(ticket, hand_off, path.get()));
    wire::Message message;
    wire::Commit* commit = message.mutable_commit();
    commit->set_ticket(ticket.ticket());
    commit->set_size_bytes(manifest.size_bytes);
    commit->set_num_extents(manifest.num_extents);
    commit->set_crc_of_crcs(manifest.crc_of_crcs);
    EncodeEvent(hand_off.request_id, hand_off.attempt, hand_off.first, commit->mutable_first());
    Send(std::move(message));
    DI_ASSIGN_OR_RETURN(const wire::Committed committed, WaitFor(&Current::committed));
    if (committed.refused().empty()) return OkStatus();
    return Unavailable("not taken: " + committed.refused());
  }

  // The gateway tells both workers at the same time, on different ways: a prompt that was quick may
  // be done before the other one has heard of it. And landings of others make room.
  Result<wire::Ticket> Reserve(const HandOff& hand_off) {
    const auto deadline = steady_clock::now() + kAnnounceLimit;
    while (true) {
      wire::Message message;
      wire::Reserve* reserve = message.mutable_reserve();
      reserve->set_request_id(hand_off.request_id);
      reserve->set_attempt(hand_off.attempt);
      reserve->set_size_bytes(static_cast<int64_t>(hand_off.first.image.size()));
      Send(std::move(message));
      DI_ASSIGN_OR_RETURN(wire::Ticket ticket, WaitFor(&Current::ticket));
      if (!ticket.try_again() || steady_clock::now() > deadline) return ticket;
      std::unique_lock lock(mutex_);
      current_.ticket.reset();
      changed_.wait_for(lock, kAnnounceLook, [this] { return !current_.stopped.ok(); });
    }
  }

  Result<std::unique_ptr<ExtentPath>> OpenPath(const wire::Ticket& ticket) {
    if (!ticket.shared_memory().empty() && sender_->transport_ != HandOffTransport::kTcp) {
      auto shared = OpenSharedPath(ticket.shared_memory(), ticket.credit_bytes());
      if (shared.ok() || sender_->transport_ == HandOffTransport::kSharedMemory) return shared;
      // Another container on the same kernel, or another user: the network reaches it.
    }
    if (ticket.data_endpoint().empty() && sender_->security_ != nullptr) {
      return std::unique_ptr<ExtentPath>(new InBandPath);
    }
    DI_ASSIGN_OR_RETURN(const Address address, DataAddress(endpoint_, ticket.data_endpoint()));
    return OpenStreamPath(address.host, address.port, steady_clock::now() + kDialLimit);
  }

  Result<Manifest> PushImage(const wire::Ticket& ticket, const HandOff& hand_off,
                             ExtentPath* path) {
    const bool in_band = dynamic_cast<const InBandPath*>(path) != nullptr;
    ExtentPush push(ticket.ticket(), hand_off.first.image, ticket.credit_bytes(), path,
                    [&](const Extent& extent) {
                      wire::Message message;
                      message.mutable_extent()->set_ticket(extent.ticket);
                      message.mutable_extent()->set_offset(extent.offset);
                      message.mutable_extent()->set_size_bytes(extent.size_bytes);
                      message.mutable_extent()->set_crc32c(extent.crc32c);
                      if (in_band) {
                        const std::byte* from = hand_off.first.image.data() + extent.offset;
                        message.mutable_extent()->set_data(from,
                                                           static_cast<size_t>(extent.size_bytes));
                      }
                      Send(std::move(message));
                    });
    {
      const std::lock_guard lock(mutex_);
      if (!current_.stopped.ok()) return current_.stopped;
      current_.push = &push;
    }
    const Status status = push.Run(kStallLimit);
    const std::lock_guard lock(mutex_);
    current_.push = nullptr;
    if (!status.ok()) return status;
    return push.manifest();
  }

  // The answer once it is there.
  template <typename T>
  Result<T> WaitFor(std::optional<T> Current::*answer) {
    std::unique_lock lock(mutex_);
    const auto over = [&] { return !current_.stopped.ok() || (current_.*answer).has_value(); };
    if (!changed_.wait_for(lock, kAnswerLimit, over)) {
      lost_ = true;
      return Unavailable("worker " + endpoint_ + " does not answer");
    }
    if (!current_.stopped.ok()) return current_.stopped;
    return *(current_.*answer);
  }

  Status Connect() {
    Disconnect();
    DI_ASSIGN_OR_RETURN(std::unique_ptr<Session> session,
                        DialSession(endpoint_, kDialLimit, sender_->security_));
    session->Send(MakeHello(sender_->own_.incarnation,
                            std::string(WorkerRoleName(sender_->own_.role)), sender_->own_));
    session_ = std::move(session);
    lost_ = closing_ = false;
    reader_ = std::thread([this] { Read(); });
    const Result<wire::Hello> hello = WaitFor(&Current::hello);
    if (hello.ok() && hello->refused().empty()) return OkStatus();
    Disconnect();
    if (!hello.ok()) return hello.status();
    return Unavailable("worker " + endpoint_ + " refuses the pair: " + hello->refused());
  }

  void Disconnect() {
    if (session_ == nullptr) return;
    closing_ = true;
    session_->Close();
    reader_.join();
    session_ = nullptr;
  }

  void Send(wire::Message message) {
    message.set_sender(sender_->own_.incarnation);
    message.set_target(peer_);
    session_->Send(std::move(message));
  }

  void Read() {
    wire::Message message;
    while (session_->Receive(&message)) {
      {
        const std::lock_guard lock(mutex_);
        OnMessage(message);
      }
      changed_.notify_all();
    }
    if (closing_) return;
    {
      const std::lock_guard lock(mutex_);
      lost_ = true;
      StopCurrent(Unavailable("worker " + endpoint_ + " was lost"));
    }
    changed_.notify_all();
  }

  // Under the lock. Words about hand-offs that are over have no effect.
  void OnMessage(const wire::Message& message) {
    if (message.has_hello()) {
      peer_ = message.sender();
      current_.hello = message.hello();
      return;
    }
    if (current_.run.empty()) return;
    if (message.has_ticket()) {
      const wire::Ticket& ticket = message.ticket();
      if (RunName(ticket.request_id(), ticket.attempt()) == current_.run) current_.ticket = ticket;
      return;
    }
    if (!current_.ticket) return;
    if (message.has_extent_ack() && message.extent_ack().ticket() == current_.ticket->ticket()) {
      if (current_.push == nullptr) return;
      current_.push->OnAck(message.extent_ack().offset(), message.extent_ack().corrupt());
    } else if (message.has_committed() &&
               message.committed().ticket() == current_.ticket->ticket()) {
      current_.committed = message.committed();
      if (current_.push == nullptr) return;
      current_.push->Stop(Unavailable("not taken: " + message.committed().refused()));
    }
  }

  // Under the lock.
  void StopCurrent(Status why) {
    if (current_.run.empty() || !current_.stopped.ok()) return;
    current_.stopped = std::move(why);
    if (current_.push != nullptr) current_.push->Stop(current_.stopped);
  }

  HandOffSender* const sender_;
  const std::string endpoint_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<HandOff> queue_;
  Current current_;
  std::unique_ptr<Session> session_;  // of the thread of the link
  std::atomic<uint64_t> peer_{0};
  std::atomic<bool> lost_{false};     // the session is of no use any more
  std::atomic<bool> closing_{false};  // by this side
  bool stop_ = false;
  std::thread reader_;
  std::thread thread_;
};

HandOffSender::HandOffSender(HandOffTransport transport, WorkerInfo own, SecurityPtr security)
    : transport_(transport), own_(std::move(own)), security_(std::move(security)) {}

HandOffSender::~HandOffSender() = default;

void HandOffSender::Start(HandOff hand_off) {
  const std::lock_guard lock(mutex_);
  ++counters_.pins_acquired;
  std::unique_ptr<Link>& link = links_[hand_off.endpoint];
  if (link == nullptr) link = std::make_unique<Link>(this, hand_off.endpoint);
  link->Add(std::move(hand_off));
}

void HandOffSender::Cancel(const std::string& run) {
  std::vector<Link*> links;
  {
    // Links stay until the end.
    const std::lock_guard lock(mutex_);
    for (const auto& [endpoint, link] : links_) links.push_back(link.get());
  }
  for (Link* link : links) link->Cancel(run);
}

void HandOffSender::Finish(const HandOff& hand_off, const Status& status) {
  {
    const std::lock_guard lock(mutex_);
    ++counters_.pins_released;
    ++(status.ok() ? counters_.committed : counters_.failed);
    if (status.ok()) counters_.bytes_sent += static_cast<int64_t>(hand_off.first.image.size());
  }
  if (!status.ok() && status.code() != StatusCode::kCancelled) {
    Log(LogLevel::kWarning, "hand_off.failed",
        {{"request_id", hand_off.request_id}, {"endpoint", hand_off.endpoint}, {"status", status}});
  }
  hand_off.done(status);
}

void HandOffSender::Count(HandOffCounters* counters) const {
  const std::lock_guard lock(mutex_);
  counters->pins_acquired = counters_.pins_acquired;
  counters->pins_released = counters_.pins_released;
  counters->committed = counters_.committed;
  counters->failed = counters_.failed;
  counters->bytes_sent = counters_.bytes_sent;
}

}  // namespace deepinfer
