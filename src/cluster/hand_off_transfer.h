// One prompt's state on its way to the worker that runs the answer: complete blocks go out while
// the prompt still runs, the rest and the first token when it is done (docs/cluster.md §6).
//
// Blocks are pinned in the cache of this worker until the other one has taken the state. When the
// push fails, but both workers share a persistent cache, the first token moves alone and the blocks
// are read from there.
// Thread rule: StateSink on the engine thread, everything else from any; a thread of its own does
// the work. Owner: HandOffSender.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "cluster/hand_off_connection.h"
#include "cluster/hand_off_receiver.h"
#include "engine/request.h"
#include "engine/state_image.h"
#include "transfer/extent_push.h"

namespace deepinfer {

class HandOffSender;

struct HandOffTarget {
  std::string request_id;
  uint32_t attempt = 0;
  std::string endpoint;  // of the decode worker
  HandOffProfile profile = HandOffProfile::kFull;
  bool persists = false;  // the blocks of the prompt go to the persistent cache
};

class HandOffTransfer final : public StateSink,
                              private HandOffConnection::Listener,
                              public std::enable_shared_from_this<HandOffTransfer> {
 public:
  // unavailable: the worker did not take the state; cancelled: Cancel was called.
  using Done = std::function<void(const Status&)>;

  HandOffTransfer(HandOffSender* sender, HandOffTarget target);
  ~HandOffTransfer() override;

  // Called when the hand-off has failed for good before its prompt is done: the rest of the prompt
  // is of no use here. Before the first call of anything else.
  void WhenHopeless(std::function<void()> callback) { on_hopeless_ = std::move(callback); }
  // Why it was; ok while there is hope.
  Status failure() const;

  const HandOffTarget& target() const { return target_; }
  std::string run() const { return RunName(target_.request_id, target_.attempt); }

  void OnBlocks(StateBlocks blocks) override;
  void OnParked() override;

  // The prompt is done: its last event, with the image of what was not offered before. done is
  // called once.
  void Complete(TokenEvent last, Done done);
  // The prompt ended in another way.
  void Abandon();
  // Ends the hand-off; the sender has no part in it any more. Complete may still be called.
  void Stop(Status why);
  // The work has ended; Join does not wait for long.
  bool over() const { return over_.load(std::memory_order_acquire); }
  void Join();

 private:
  // Under the lock: begins the work unless that was done or it has ended.
  void Start();
  void Work();
  Status PushState(HandOffConnection* connection, const wire::Ticket& ticket);
  // After the push failed: whether the first token could move alone, and its move.
  bool MayUseStore() const;
  Status UseStore();
  // Nobody can use the prompt.
  void LoseHope(const Status& why);
  bool stopped() const;
  Status Converse(HandOffProfile profile);
  Result<wire::Ticket> Reserve(HandOffConnection* connection, HandOffProfile profile);
  Status Commit(HandOffConnection* connection, const wire::Ticket& ticket, HandOffProfile profile);
  void Release(HandOffConnection* connection);
  void Finish(const Status& status);
  // Until the prompt is done, or the hand-off was stopped.
  Status WaitForPrompt();

  // Under the lock.
  void Lay(int32_t positions, int32_t num_cut_rows, int64_t slot_bytes);
  void AddBlocks(int32_t first_block, const std::vector<const std::byte*>& blocks,
                 const std::shared_ptr<void>& keep);
  void AddBytes(int64_t offset, std::span<const std::byte> bytes);
  void AddRest();

  void OnTicket(const wire::Ticket& ticket) override;
  void OnExtentAck(const wire::ExtentAck& ack) override;
  void OnCommitted(const wire::Committed& committed) override;
  void OnLost(const Status& why) override;

  HandOffSender* const sender_;
  const HandOffTarget target_;
  std::function<void()> on_hopeless_;
  ExtentPush push_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<StateImageLayout> layout_;  // once anything is known of the state
  int32_t num_cut_rows_ = 0;
  int32_t num_offered_ = 0;         // leading blocks that came before the end
  std::optional<TokenEvent> last_;  // once the prompt is done
  std::chrono::steady_clock::time_point completed_at_;
  Done done_;
  bool parked_ = false;  // the prompt, as of now
  bool started_ = false;
  std::atomic<bool> over_{false};  // the work has ended; written under the lock
  Status failure_;                 // before the prompt was done
  Status stopped_;                 // from outside
  Status lost_;                    // the session
  std::unique_ptr<wire::Ticket> ticket_;
  std::unique_ptr<wire::Committed> committed_;
  std::shared_ptr<HandOffConnection> connection_;  // of the thread
  std::thread thread_;
};

}  // namespace deepinfer
