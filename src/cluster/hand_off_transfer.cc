#include "cluster/hand_off_transfer.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include <cluster.pb.h>
#include "base/thread_name.h"
#include "cluster/hand_off_path.h"
#include "cluster/hand_off_sender.h"
#include "cluster/wire_codec.h"

namespace deepinfer {

namespace {

using std::chrono::steady_clock;

// For an answer of the other side: its engine takes a state over.
constexpr std::chrono::seconds kAnswerLimit{10};
// For a landing once the prompt is done: landings of others make room, and the request may have to
// be announced to the other side too.
constexpr std::chrono::milliseconds kRoomLimit{10'000};
constexpr std::chrono::milliseconds kAnnounceLimit{1000};
constexpr std::chrono::milliseconds kFirstLook{10};
constexpr std::chrono::milliseconds kLongestLook{200};
// Without an acknowledgement for so long the receiver is lost: its lease, docs/cluster.md §6.
constexpr std::chrono::seconds kStallLimit{10};
// Of the lease of a ticket: how often it is renewed while there is nothing to send.
constexpr int64_t kRenewalsPerLease = 4;

wire::HandOffProfile EncodeProfile(HandOffProfile profile) {
  switch (profile) {
    case HandOffProfile::kStore:
      return wire::STORE;
    case HandOffProfile::kEncoder:
      return wire::ENCODER;
    case HandOffProfile::kTail:
      return wire::TAIL;
    default:
      return wire::FULL;
  }
}

}  // namespace

HandOffTransfer::HandOffTransfer(HandOffSender* sender, HandOffTarget target)
    : sender_(sender), target_(std::move(target)), push_({.stall_limit = kStallLimit}) {}

HandOffTransfer::~HandOffTransfer() = default;

void HandOffTransfer::Lay(int32_t positions, int32_t num_cut_rows, int64_t slot_bytes) {
  if (layout_) return;
  const auto num_blocks = static_cast<int32_t>(KvLayout::NumBlocks(positions));
  layout_.emplace(slot_bytes, sender_->own().kv_section_bytes, num_blocks);
  num_cut_rows_ = num_cut_rows;
}

void HandOffTransfer::AddBytes(int64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const size_t size = std::min(bytes.size(), static_cast<size_t>(kExtentBytes));
    push_.Add({offset, {bytes.first(size)}, nullptr});
    offset += static_cast<int64_t>(size);
    bytes = bytes.subspan(size);
  }
}

// One extent for each KV source, or as many as it takes.
void HandOffTransfer::AddBlocks(int32_t first_block, const std::vector<const std::byte*>& blocks,
                                const std::shared_ptr<void>& keep) {
  for (size_t s = 0; s < layout_->num_sections(); ++s) {
    const int64_t part = layout_->section_bytes(s);
    const auto most = static_cast<size_t>(std::max<int64_t>(1, kExtentBytes / part));
    for (size_t i = 0; i < blocks.size(); i += most) {
      ExtentBytes extent{layout_->ImageOffset(s, first_block + static_cast<int32_t>(i)), {}, keep};
      for (size_t j = i; j < std::min(blocks.size(), i + most); ++j) {
        extent.parts.emplace_back(blocks[j] + layout_->BlockOffset(s), static_cast<size_t>(part));
      }
      push_.Add(std::move(extent));
    }
  }
}

void HandOffTransfer::OnBlocks(StateBlocks blocks) {
  const std::lock_guard lock(mutex_);
  parked_ = false;
  if (over_ || !stopped_.ok() || blocks.first_block != num_offered_) return;
  Lay(blocks.positions, blocks.num_cut_rows, sender_->own().kv_slot_bytes);
  num_offered_ += static_cast<int32_t>(blocks.blocks.size());
  AddBlocks(blocks.first_block, blocks.blocks, blocks.pin);
  Start();
}

void HandOffTransfer::OnParked() {
  push_.LetGoEarly();
  {
    const std::lock_guard lock(mutex_);
    parked_ = true;
  }
  changed_.notify_all();
}

void HandOffTransfer::AddRest() {
  const std::vector<std::byte>& image = last_->image;
  if (image.empty()) return push_.Close();
  const WorkerInfo& own = sender_->own();
  const int64_t cut_bytes = last_->num_cut_rows * own.cut_row_bytes;
  const int64_t num_left = KvLayout::NumBlocks(last_->image_positions) - num_offered_;
  const int64_t slot_bytes =
      static_cast<int64_t>(image.size()) - cut_bytes - num_left * own.kv_block_bytes;
  Lay(last_->image_positions, last_->num_cut_rows, slot_bytes);
  const std::span<const std::byte> bytes(image);
  std::vector<const std::byte*> left;
  for (int64_t i = 0; i < num_left; ++i) {
    left.push_back(image.data() + slot_bytes + i * own.kv_block_bytes);
  }
  AddBlocks(num_offered_, left, nullptr);
  AddBytes(0, bytes.first(static_cast<size_t>(slot_bytes)));
  AddBytes(layout_->size_bytes(), bytes.last(static_cast<size_t>(cut_bytes)));
  push_.Close();
}

void HandOffTransfer::Complete(TokenEvent last, Done done) {
  Status over;
  {
    const std::lock_guard lock(mutex_);
    if (stopped_.ok() && !over_) {
      parked_ = false;
      last_ = std::move(last);
      done_ = std::move(done);
      completed_at_ = steady_clock::now();
      AddRest();
      Start();
      // Without a thread it is over at once.
      if (stopped_.ok()) {
        changed_.notify_all();
        return;
      }
      done = std::exchange(done_, nullptr);
    }
    over = stopped_.ok() ? Unavailable("the hand-off is over") : stopped_;
  }
  // Whoever waits for done may end the sender at once.
  sender_->Forget(this);
  done(over);
}

void HandOffTransfer::Abandon() {
  Stop(Cancelled("the prompt was not finished"));
  sender_->Forget(this);
}

void HandOffTransfer::Stop(Status why) {
  {
    const std::lock_guard lock(mutex_);
    if (!stopped_.ok() || over_) return;
    stopped_ = why;
  }
  push_.Stop(std::move(why));
  changed_.notify_all();
}

void HandOffTransfer::Join() {
  if (thread_.joinable()) thread_.join();
}

void HandOffTransfer::Start() {
  if (started_) return;
  try {
    thread_ = std::thread([self = shared_from_this()] { self->Work(); });
    started_ = true;
    sender_->NoteStart(shared_from_this());
  } catch (const std::system_error&) {
    stopped_ = Unavailable("the worker may start no more threads");
    push_.LetGoAll();
  }
}

void HandOffTransfer::Work() {
  NameThread("hand-off");
  Status status = Converse(target_.profile);
  if (status.code() == StatusCode::kDeadline) {
    // A receiver that stands still is a lost one: the time of the request is not over.
    status = Unavailable(status.message());
  }
  if (!status.ok()) {
    // Nothing of it is sent any more, and no pin outlives it.
    push_.Stop(status);
    push_.LetGoAll();
    const bool may_use_store = MayUseStore();
    if (!may_use_store) LoseHope(status);
    if (const Status prompt = WaitForPrompt(); !prompt.ok()) {
      status = prompt;
    } else if (may_use_store) {
      status = UseStore();
    }
  }
  Finish(status);
}

Status HandOffTransfer::Converse(HandOffProfile profile) {
  const bool moves_state = profile != HandOffProfile::kStore;
  if (!moves_state) DI_RETURN_IF_ERROR(WaitForPrompt());
  DI_ASSIGN_OR_RETURN(connection_,
                      sender_->Connect(target_.endpoint, [this] { return stopped(); }));
  connection_->Add(run(), this);
  const Status status = [&]() -> Status {
    DI_ASSIGN_OR_RETURN(const wire::Ticket ticket, Reserve(connection_.get(), profile));
    if (!ticket.refused().empty()) return Unavailable("no ticket: " + ticket.refused());
    if (moves_state) DI_RETURN_IF_ERROR(PushState(connection_.get(), ticket));
    return Commit(connection_.get(), ticket, profile);
  }();
  if (!status.ok()) Release(connection_.get());
  connection_->Remove(run());
  return status;
}

Status HandOffTransfer::WaitForPrompt() {
  std::unique_lock lock(mutex_);
  // Whoever runs the prompt says how it ended.
  changed_.wait(lock, [this] { return last_.has_value() || !stopped_.ok(); });
  return stopped_;
}

// The gateway tells both workers at the same time, on different ways: a prompt that was quick may
// be done before the other one has heard of it.
Result<wire::Ticket> HandOffTransfer::Reserve(HandOffConnection* connection,
                                              HandOffProfile profile) {
  wire::Message message;
  wire::Reserve* reserve = message.mutable_reserve();
  reserve->set_request_id(target_.request_id);
  reserve->set_attempt(target_.attempt);
  reserve->set_profile(EncodeProfile(profile));
  const auto began = steady_clock::now();
  std::unique_lock lock(mutex_);
  if (profile != HandOffProfile::kStore && layout_) {
    const auto add = [&](int64_t size_bytes, int64_t unit_bytes) {
      if (size_bytes == 0) return;
      wire::Region* region = reserve->add_regions();
      region->set_size_bytes(size_bytes);
      region->set_unit_bytes(std::min(size_bytes, unit_bytes));
    };
    add(layout_->slot_bytes(), kExtentBytes);
    for (size_t s = 0; s < layout_->num_sections(); ++s) {
      add(layout_->section_bytes(s) * layout_->num_blocks(), layout_->section_bytes(s));
    }
    add(num_cut_rows_ * sender_->own().cut_row_bytes, kExtentBytes);
  }
  for (auto look = kFirstLook;; look = std::min(2 * look, kLongestLook)) {
    ticket_ = nullptr;
    const bool early = !last_;
    reserve->set_early(early);
    reserve->set_ucx(sender_->options().ucx != nullptr);
    lock.unlock();
    connection->Send(message);
    lock.lock();
    const auto ended = [this] { return !stopped_.ok() || !lost_.ok(); };
    if (!changed_.wait_for(lock, kAnswerLimit, [&] { return ended() || ticket_ != nullptr; })) {
      return Unavailable("worker " + target_.endpoint + " does not answer");
    }
    if (ended()) return stopped_.ok() ? lost_ : stopped_;
    if (ticket_->refused().empty() && ticket_->profile() != reserve->profile()) {
      return Unavailable("worker " + target_.endpoint + " grants another profile");
    }
    const auto limit = ticket_->no_room() ? kRoomLimit : kAnnounceLimit;
    const bool late = last_ && steady_clock::now() > std::max(completed_at_, began) + limit;
    // Blocks of a prompt without memory must not wait here for somebody else's.
    if (!ticket_->try_again() || late || parked_) return *ticket_;
    changed_.wait_for(lock, look,
                      [&] { return ended() || parked_ || (early && last_.has_value()); });
  }
}

Status HandOffTransfer::PushState(HandOffConnection* connection, const wire::Ticket& ticket) {
  {
    const std::lock_guard lock(mutex_);
    // A prompt that is all decoder tail leaves nothing to move.
    if (!layout_) return OkStatus();
  }
  const HandOffSenderOptions& options = sender_->options();
  DI_ASSIGN_OR_RETURN(std::unique_ptr<ExtentPath> path,
                      OpenHandOffPath(ticket, options, target_.endpoint, connection));
  if (options.wrap_path) path = options.wrap_path(std::move(path));
  ExtentPushTarget to;
  to.ticket = ticket.ticket();
  to.window_bytes = ticket.credit_bytes();
  to.path = path.get();
  to.announce = [&](const Extent& extent) { connection->Send(ExtentMessage(extent)); };
  to.idle = [&] {
    // The lease of a prompt that stands still ends: its answer may begin elsewhere.
    if (options.gets_on && !options.gets_on()) return;
    wire::Message message;
    message.mutable_renew()->set_ticket(ticket.ticket());
    connection->Send(std::move(message));
  };
  to.idle_interval =
      std::chrono::milliseconds(std::max<int64_t>(1, ticket.lease_us() / kRenewalsPerLease / 1000));
  return push_.Run(to);
}

Status HandOffTransfer::Commit(HandOffConnection* connection, const wire::Ticket& ticket,
                               HandOffProfile profile) {
  const Manifest manifest = push_.manifest();
  wire::Message message;
  wire::Commit* commit = message.mutable_commit();
  commit->set_ticket(ticket.ticket());
  std::unique_lock lock(mutex_);
  if (profile == HandOffProfile::kStore) {
    if (target_.persists) commit->set_num_stored_blocks(last_->image_positions / kBlockTokens);
    commit->set_crc_of_crcs(ManifestCrc({}));
  } else {
    commit->set_size_bytes(manifest.size_bytes);
    commit->set_num_extents(manifest.num_extents);
    commit->set_crc_of_crcs(manifest.crc_of_crcs);
    commit->set_positions(last_->image_positions);
    commit->set_num_cut_rows(last_->num_cut_rows);
  }
  EncodeEvent(target_.request_id, target_.attempt, *last_, commit->mutable_first());
  committed_ = nullptr;
  lock.unlock();
  connection->Send(std::move(message));
  lock.lock();
  const auto heard = [this] { return !stopped_.ok() || !lost_.ok() || committed_ != nullptr; };
  if (!changed_.wait_for(lock, kAnswerLimit, heard)) {
    return Unavailable("worker " + target_.endpoint + " does not answer");
  }
  if (committed_ != nullptr && committed_->refused().empty()) return OkStatus();
  if (committed_ != nullptr) return Unavailable("not taken: " + committed_->refused());
  return stopped_.ok() ? lost_ : stopped_;
}

// The other side need not wait for the lease to end.
void HandOffTransfer::Release(HandOffConnection* connection) {
  wire::Message message;
  message.mutable_release()->set_request_id(target_.request_id);
  message.mutable_release()->set_attempt(target_.attempt);
  connection->Send(std::move(message));
}

bool HandOffTransfer::MayUseStore() const {
  const WorkerInfo& own = sender_->own();
  const bool shares =
      connection_ != nullptr && !own.kv_root.empty() && connection_->peer().kv_root == own.kv_root;
  if (!shares || target_.profile != HandOffProfile::kFull) return false;
  const std::lock_guard lock(mutex_);
  // The other side has decided what becomes of the request.
  return committed_ == nullptr;
}

void HandOffTransfer::LoseHope(const Status& why) {
  {
    const std::lock_guard lock(mutex_);
    if (last_ || !stopped_.ok()) return;
    failure_ = why;
  }
  if (on_hopeless_) on_hopeless_();
}

Status HandOffTransfer::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

bool HandOffTransfer::stopped() const {
  const std::lock_guard lock(mutex_);
  return !stopped_.ok();
}

Status HandOffTransfer::UseStore() {
  {
    const std::lock_guard lock(mutex_);
    lost_ = OkStatus();
  }
  return Converse(HandOffProfile::kStore);
}

void HandOffTransfer::Finish(const Status& status) {
  Done done;
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
    done = std::exchange(done_, nullptr);
  }
  connection_ = nullptr;
  push_.LetGoAll();
  sender_->NoteEnd(*this, status, push_.manifest().size_bytes, done != nullptr);
  if (done) done(status);
  sender_->Forget(this);
}

void HandOffTransfer::OnTicket(const wire::Ticket& ticket) {
  {
    const std::lock_guard lock(mutex_);
    ticket_ = std::make_unique<wire::Ticket>(ticket);
  }
  changed_.notify_all();
}

void HandOffTransfer::OnExtentAck(const wire::ExtentAck& ack) {
  push_.OnAck(ack.offset(), ack.corrupt());
}

void HandOffTransfer::OnCommitted(const wire::Committed& committed) {
  {
    const std::lock_guard lock(mutex_);
    if (committed_ != nullptr) return;  // the first word counts
    committed_ = std::make_unique<wire::Committed>(committed);
  }
  if (!committed.refused().empty()) push_.Stop(Unavailable("not taken: " + committed.refused()));
  changed_.notify_all();
}

void HandOffTransfer::OnLost(const Status& why) {
  {
    const std::lock_guard lock(mutex_);
    lost_ = why;
  }
  push_.Stop(why);
  changed_.notify_all();
}

}  // namespace deepinfer
