#include "cluster/hand_off_receiver.h"

#include <cstring>
#include <utility>
#include <vector>

#include <cluster.pb.h>
#include "base/log.h"
#include "cluster/wire_codec.h"

namespace deepinfer {

std::string RunName(const std::string& request_id, uint32_t attempt) {
  return request_id + "/" + std::to_string(attempt);
}

namespace {

std::optional<HandOffProfile> DecodeProfile(wire::HandOffProfile profile) {
  switch (profile) {
    case wire::FULL:
      return HandOffProfile::kFull;
    case wire::STORE:
      return HandOffProfile::kStore;
    case wire::ENCODER:
      return HandOffProfile::kEncoder;
    case wire::TAIL:
      return HandOffProfile::kTail;
    default:
      return std::nullopt;
  }
}

}  // namespace

HandOffReceiver::HandOffReceiver(HandOffTransport transport, const LandingOptions& options,
                                 const std::string& host, const Clock* clock,
                                 const UcxContextPtr& ucx)
    : transport_(transport), clock_(clock), landings_(options, clock) {
  if (ucx != nullptr) ListenByUcx(ucx);
  if (transport == HandOffTransport::kSharedMemory) return;
  Result<std::unique_ptr<DataServer>> server = DataServer::Listen(
      host, &landings_, [this](const Extent& e, ExtentOutcome outcome) { OnData(e, outcome); });
  if (server.ok()) {
    data_server_ = *std::move(server);
  } else {
    Log(LogLevel::kWarning, "hand_off.no_data_server",
        {{"host", host}, {"status", server.status()}});
  }
}

void HandOffReceiver::ListenByUcx(const UcxContextPtr& ucx) {
  Result<std::unique_ptr<UcxServer>> server =
      UcxServer::Start(ucx, &landings_, [this](const Extent& extent, ExtentOutcome outcome) {
        if (outcome == ExtentOutcome::kStored) bytes_by_ucx_ += extent.size_bytes;
        OnData(extent, outcome);
      });
  if (server.ok()) {
    ucx_server_ = *std::move(server);
  } else {
    Log(LogLevel::kWarning, "hand_off.no_ucx_server", {{"status", server.status()}});
  }
}

HandOffReceiver::~HandOffReceiver() {
  data_server_.reset();
  ucx_server_.reset();
  GiveUpAll(Unavailable("the worker stops"));
}

void HandOffReceiver::Expect(const std::string& run, EngineRequest request, Start start, End end) {
  const std::lock_guard lock(mutex_);
  waiting_[run] = {std::move(request), std::move(start), std::move(end), 0};
}

std::optional<HandOffReceiver::Waiting> HandOffReceiver::TakeOut(const std::string& run) {
  std::optional<Waiting> taken;
  {
    const std::lock_guard lock(mutex_);
    const auto it = waiting_.find(run);
    if (it == waiting_.end()) return std::nullopt;
    taken = std::move(it->second);
    waiting_.erase(it);
    senders_.erase(taken->ticket);
  }
  if (taken->ticket != 0) landings_.Revoke(taken->ticket);
  return taken;
}

bool HandOffReceiver::GiveUp(const std::string& run, const Status& why) {
  const std::optional<Waiting> taken = TakeOut(run);
  if (taken) taken->end(why);
  return taken.has_value();
}

void HandOffReceiver::GiveUpAll(const Status& why) {
  std::vector<std::string> runs;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [run, waiting] : waiting_) runs.push_back(run);
  }
  for (const std::string& run : runs) (void)GiveUp(run, why);
}

void HandOffReceiver::OnReserve(const wire::Reserve& message, const Peer& peer) {
  const std::string run = RunName(message.request_id(), message.attempt());
  wire::Message answer;
  wire::Ticket* ticket = answer.mutable_ticket();
  ticket->set_request_id(message.request_id());
  ticket->set_attempt(message.attempt());
  ticket->set_profile(message.profile());
  uint64_t older = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto it = waiting_.find(run);
    if (it == waiting_.end()) {
      // A stranger's, or one that came too late: it makes no state here.
      ticket->set_refused("nobody waits for it");
      ticket->set_try_again(true);
    } else {
      older = std::exchange(it->second.ticket, 0);
      senders_.erase(older);
    }
  }
  if (older != 0) landings_.Revoke(older);
  if (ticket->refused().empty()) Grant(message, peer, ticket);
  peer.reply(std::move(answer));
}

void HandOffReceiver::Grant(const wire::Reserve& message, const Peer& peer, wire::Ticket* ticket) {
  const std::optional<HandOffProfile> profile = DecodeProfile(message.profile());
  if (!profile) return ticket->set_refused("no profile that this worker knows");
  if (*profile == HandOffProfile::kStore && !peer.shares_store) {
    return ticket->set_refused("the workers share no persistent cache");
  }
  std::vector<TransferRegion> regions;
  for (const wire::Region& region : message.regions()) {
    regions.push_back({region.size_bytes(), region.unit_bytes()});
  }
  const bool by_ucx = ucx_server_ != nullptr && message.ucx();
  const bool shares = peer.same_host && transport_ != HandOffTransport::kTcp && !by_ucx;
  const Result<LandingGrant> grant = landings_.Grant(regions, shares, message.early());
  if (!grant.ok()) {
    const bool no_room = grant.status().code() == StatusCode::kResourceExhausted;
    ticket->set_no_room(no_room);
    ticket->set_try_again(no_room);
    return ticket->set_refused(grant.status().message());
  }
  const std::string run = RunName(message.request_id(), message.attempt());
  bool waits = false;
  {
    const std::lock_guard lock(mutex_);
    const auto it = waiting_.find(run);
    waits = it != waiting_.end() && it->second.ticket == 0;
    if (waits) {
      it->second.ticket = grant->ticket;
      senders_[grant->ticket] = {run, peer.session, peer.reply, *profile, clock_->NowUs()};
    }
  }
  if (!waits) {
    landings_.Revoke(grant->ticket);
    return ticket->set_refused("nobody waits for it");
  }
  ticket->set_ticket(grant->ticket);
  ticket->set_lease_us(landings_.options().lease_us);
  ticket->set_credit_bytes(landings_.options().window_bytes);
  ticket->set_shared_memory(grant->shared_window);
  if (by_ucx) ticket->set_ucx_address(ucx_server_->address());
  if (data_server_ != nullptr) {
    ticket->set_data_endpoint(":" + std::to_string(data_server_->port()));
  }
}

void HandOffReceiver::OnRenew(const wire::Renew& message, const Peer& peer) {
  if (IsSender(peer.session, message.ticket())) landings_.Renew(message.ticket());
}

bool HandOffReceiver::IsSender(uint64_t session, uint64_t ticket) const {
  const std::lock_guard lock(mutex_);
  const auto it = senders_.find(ticket);
  return it != senders_.end() && it->second.session == session;
}

void HandOffReceiver::OnExtent(const wire::Extent& message, const Peer& peer) {
  const Extent extent{message.ticket(), message.offset(), message.size_bytes(), message.crc32c(),
                      message.slot()};
  ExtentOutcome outcome = ExtentOutcome::kRefused;
  if (IsSender(peer.session, extent.ticket)) {
    outcome =
        message.data().empty() ? landings_.OnShared(extent) : OnInBand(extent, message.data());
  }
  Answer(extent, outcome, peer.reply);
}

ExtentOutcome HandOffReceiver::OnInBand(const Extent& extent, const std::string& data) {
  const auto copy = [&](std::span<std::byte> to) -> Status {
    if (data.size() != to.size()) return InvalidRequest("an extent and its bytes differ in size");
    std::memcpy(to.data(), data.data(), data.size());
    return OkStatus();
  };
  return landings_.OnStream(extent, copy, [] {});
}

void HandOffReceiver::OnData(const Extent& extent, ExtentOutcome outcome) {
  Reply reply;
  {
    const std::lock_guard lock(mutex_);
    const auto it = senders_.find(extent.ticket);
    if (it != senders_.end()) reply = it->second.reply;
  }
  if (reply) Answer(extent, outcome, reply);
}

void HandOffReceiver::Answer(const Extent& extent, ExtentOutcome outcome, const Reply& reply) {
  wire::Message answer;
  if (outcome == ExtentOutcome::kRefused) {
    answer.mutable_committed()->set_ticket(extent.ticket);
    answer.mutable_committed()->set_refused("an extent was refused");
  } else {
    wire::ExtentAck* ack = answer.mutable_extent_ack();
    ack->set_ticket(extent.ticket);
    ack->set_offset(extent.offset);
    ack->set_size_bytes(extent.size_bytes);
    ack->set_corrupt(outcome == ExtentOutcome::kCorrupt);
  }
  reply(std::move(answer));
}

std::optional<HandOffReceiver::Taken> HandOffReceiver::TakeForCommit(uint64_t ticket,
                                                                     uint64_t session) {
  const std::lock_guard lock(mutex_);
  const auto sender = senders_.find(ticket);
  if (sender == senders_.end() || sender->second.session != session) return std::nullopt;
  const HandOffProfile profile = sender->second.profile;
  const int64_t reserved_us = sender->second.reserved_us;
  const auto it = waiting_.find(sender->second.run);
  senders_.erase(sender);
  if (it == waiting_.end() || it->second.ticket != ticket) return std::nullopt;
  Taken taken{std::move(it->second), profile, reserved_us};
  waiting_.erase(it);
  return taken;
}

Status HandOffReceiver::SetResume(const wire::Commit& message, HandOffProfile profile,
                                  const TokenEvent& first, EngineRequest* request) {
  DI_ASSIGN_OR_RETURN(std::vector<std::byte> image,
                      landings_.Take(message.ticket(), {message.size_bytes(), message.num_extents(),
                                                        message.crc_of_crcs()}));
  const bool decided = profile == HandOffProfile::kFull || profile == HandOffProfile::kStore;
  if (first.ids.empty() == decided || first.start_index != 0) {
    return InvalidRequest("a hand-off with another first token than its profile says");
  }
  request->queue_deadline_us = 0;
  if (decided) request->first_token_deadline_us = 0;
  // A prompt that is all decoder tail begins here.
  if (!decided && image.empty()) return OkStatus();
  ResumePoint& resume = request->resume.emplace();
  resume.ids = first.ids;
  resume.origin = first.origin;
  resume.counters = first.counters;
  resume.image = std::move(image);
  resume.positions = message.positions();
  resume.num_cut_rows = message.num_cut_rows();
  resume.num_stored_blocks = message.num_stored_blocks();
  return OkStatus();
}

void HandOffReceiver::OnCommit(const wire::Commit& message, const Peer& peer) {
  wire::Message answer;
  wire::Committed* committed = answer.mutable_committed();
  committed->set_ticket(message.ticket());
  std::optional<Taken> taken = TakeForCommit(message.ticket(), peer.session);
  if (!taken) {
    committed->set_refused("nobody waits for it");
    return peer.reply(std::move(answer));
  }
  Waiting& waiting = taken->waiting;
  Result<TokenEvent> first = DecodeEvent(message.first());
  Status status =
      first.ok() ? SetResume(message, taken->profile, *first, &waiting.request) : first.status();
  if (status.ok()) {
    if (waiting.request.resume) {
      waiting.request.resume->counters.transfer_us = clock_->NowUs() - taken->reserved_us;
      waiting.request.resume->counters.handoff_bytes += message.size_bytes();
    }
    status = waiting.start(std::move(waiting.request), *std::move(first));
  } else {
    landings_.Revoke(message.ticket());
    // Whatever came is the sender's fault, not the request's: it may run elsewhere.
    waiting.end(Unavailable("the hand-off failed: " + status.message()));
  }
  if (!status.ok()) committed->set_refused(status.ToString());
  peer.reply(std::move(answer));
}

void HandOffReceiver::OnRelease(const wire::Release& message, const Peer& peer) {
  uint64_t ticket = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto it = waiting_.find(RunName(message.request_id(), message.attempt()));
    if (it == waiting_.end()) return;
    const auto sender = senders_.find(it->second.ticket);
    if (sender == senders_.end() || sender->second.session != peer.session) return;
    ticket = std::exchange(it->second.ticket, 0);
    senders_.erase(sender);
  }
  landings_.Revoke(ticket);
}

void HandOffReceiver::OnPeerLost(uint64_t session) {
  std::vector<uint64_t> tickets;
  {
    const std::lock_guard lock(mutex_);
    for (auto it = senders_.begin(); it != senders_.end();) {
      if (it->second.session != session) {
        ++it;
        continue;
      }
      tickets.push_back(it->first);
      const auto waiting = waiting_.find(it->second.run);
      if (waiting != waiting_.end()) waiting->second.ticket = 0;
      it = senders_.erase(it);
    }
  }
  for (const uint64_t ticket : tickets) landings_.Revoke(ticket);
}

void HandOffReceiver::Sweep() {
  for (const uint64_t ticket : landings_.Sweep()) {
    std::string run;
    {
      const std::lock_guard lock(mutex_);
      const auto it = senders_.find(ticket);
      if (it == senders_.end()) continue;
      run = it->second.run;
    }
    Log(LogLevel::kWarning, "hand_off.lease_over", {{"run", run}});
    (void)GiveUp(run, Unavailable("its prefill worker stood still"));
  }
}

HandOffReceiver::Awaited HandOffReceiver::awaited() const {
  Awaited sum;
  const std::lock_guard lock(mutex_);
  for (const auto& [run, waiting] : waiting_) {
    ++sum.requests;
    sum.tokens += static_cast<int64_t>(waiting.request.prompt_ids.size());
  }
  return sum;
}

void HandOffReceiver::Count(HandOffCounters* counters) const {
  const LandingCounters landed = landings_.counters();
  counters->tickets_granted = landed.granted;
  counters->tickets_released = landed.released;
  counters->bytes_received = landed.bytes_stored;
  counters->extents_nacked = landed.extents_nacked;
  counters->bytes_by_ucx = bytes_by_ucx_.load();
}

}  // namespace deepinfer
