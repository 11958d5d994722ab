// One request at the gateway, from its submission to its last event: what the client has got so
// far, and the attempt that produces the rest (docs/cluster.md §4).
// Thread rule: any thread; the client's sink is called by one thread at a time. Owner: Gateway.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cluster/route_forecasts.h"
#include "cluster/worker.h"

namespace deepinfer {

class LiveRequest {
 public:
  LiveRequest(EngineRequest request, TokenSink sink)
      : request_(std::move(request)), sink_(std::move(sink)) {}

  // Which worker an event comes from.
  enum class Leg : unsigned char { kWhole, kPrefill, kDecode };
  enum class Outcome : unsigned char {
    kStale,   // nothing for the client
    kGoesOn,  // the sink was called
    kEnded,   // the sink has been told so and is gone
    kLost,    // the attempt is over; the request needs another
  };

  // Workers of the running attempt, which may leave the gateway meanwhile; whole requests have only
  // `decode`.
  struct Placement {
    std::shared_ptr<Worker> prefill;
    std::shared_ptr<Worker> decode;
  };

  const EngineRequest& request() const { return request_; }  // as it was submitted
  const std::string& id() const { return request_.request_id; }
  int64_t prompt_tokens() const { return static_cast<int64_t>(request_.prompt_ids.size()); }
  PromptWork prompt() const { return PromptOf(request_); }
  int64_t deadline_us() const { return request_.deadline_us; }
  const std::string& branch_of() const { return request_.branch_of; }
  const std::string& work_id() const { return request_.work_id; }
  // Positions that it holds at most beyond its prompt.
  int64_t max_tokens() const { return request_.sampling.max_tokens; }

  RequestClass request_class() const { return request_.request_class; }
  uint64_t tenant() const { return request_.cache_retention.tenant_tag; }

  // It waited at the gateway for so long; its account says so from now on.
  void NoteWait(int64_t wait_us);

  // What its tenant was charged for it beforehand: its prompt, and tokens of which not all may
  // come.
  struct Charge {
    double us_per_output_token = 0;
    int64_t output_tokens = 0;
  };
  void NoteCharge(const Charge& charge);
  Charge TakeCharge();  // once, at its end

  // Begins the next attempt: the request as it must be submitted now, with the tokens so far.
  // Nothing when the request has ended or was cancelled.
  std::optional<EngineRequest> Begin(const Placement& placement);
  // What the running attempt was sent with; nothing is measured without it.
  void Watch(const RouteTimes& times);
  // Takes the attempt back, which no worker accepted.
  void Abandon(uint32_t attempt);
  // The same for one that only asked a worker whether it has the run: it does not count.
  void Withdraw(uint32_t attempt);

  // What an event says of the forecast for a watched attempt.
  struct News {
    bool first = false;  // it brought the first token
    bool end = false;    // it was the last
    RouteTimes times;
  };
  // before_last runs just before the sink is told of the end; news, which may be null, is filled
  // before that.
  Outcome OnEvent(uint32_t attempt, Leg leg, TokenEvent event, int64_t now_us,
                  const std::function<void()>& before_last, News* news);

  // Ends the request here when no attempt runs; true if it did.
  bool End(FinishReason reason, Status status, const std::function<void()>& before_last);

  // Marks it as cancelled and says where it runs.
  Placement Cancel();
  Placement placement() const;
  // Forgets its workers, which hold it by their sinks; nothing else changes.
  void LetGo();
  uint32_t num_attempts() const;  // those that count
  bool started() const;           // the client has got a token
  int64_t num_generated() const;  // tokens that the client has got
  bool cancelled() const;

 private:
  // Drops what the client already has; false when tokens are missing in between.
  bool Trim(TokenEvent* event) const;
  // As the client sees it. Under the lock.
  RequestCounters Account() const;
  // What OnEvent decides before anything is sent: the event as the client gets it.
  Outcome Digest(uint32_t attempt, Leg leg, int64_t now_us, TokenEvent* event, News* news);
  // Under the lock: tokens of the watched attempt came, or its end.
  void Time(int64_t now_us, int64_t num_tokens, bool is_end, News* news);

  const EngineRequest request_;
  std::mutex order_mutex_;  // held while the sink is called, taken before the other
  TokenSink sink_;          // under order_mutex_
  mutable std::mutex mutex_;
  std::vector<int32_t> ids_;
  int64_t waited_us_ = 0;  // here; the account of the attempts does not know of it
  Charge charge_;
  RequestCounters counters_;
  int64_t control_bytes_ = 0;  // of all attempts, which do not know of them
  SequenceOrigin origin_;
  Placement placement_;
  std::optional<RouteTimes> times_;  // while the running attempt is watched
  uint32_t attempt_ = 0;             // its number, which is never used again
  uint32_t num_attempts_ = 0;
  bool running_ = false;
  bool handed_off_ = false;  // the prefill leg has ended well
  bool compiled_ = false;    // the client knows that its grammar is
  bool cancelled_ = false;
  bool ended_ = false;
};

}  // namespace deepinfer
