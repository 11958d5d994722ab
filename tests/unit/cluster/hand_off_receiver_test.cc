// The decode side of hand-offs by itself, under a clock that stands still: who may write to a
// landing, and when it is given back.

#include "cluster/hand_off_receiver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>

#include <cluster.pb.h>
#include "base/crc32c.h"
#include "support/eventually.h"
#include "support/fake_clock.h"
#include "transfer/socket.h"

namespace deepinfer {
namespace {

constexpr int64_t kLeaseUs = 10'000'000;
constexpr std::chrono::seconds kLongest{60};

std::string Bytes(size_t size) {
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 13 + i / 253);
  return bytes;
}

class Receiver : public ::testing::Test {
 protected:
  Receiver() { Expect("r"); }

  void Expect(const std::string& id) {
    EngineRequest request;
    request.request_id = id;
    request.prompt_ids = {5, 6, 7};
    receiver_.Expect(
        RunName(id, 1), std::move(request),
        [this](EngineRequest taken, TokenEvent) {
          taken_.push_back(std::move(taken));
          return OkStatus();
        },
        [this](const Status& why) { ended_.push_back(why); });
  }
  HandOffReceiver::Peer PeerOf(uint64_t session) {
    return {session, false, false,
            [this](wire::Message answer) { answers_.push_back(std::move(answer)); }};
  }
  // The last answer.
  const wire::Message& Heard() const { return answers_.back(); }
  wire::Ticket Reserve(uint64_t session, int64_t size_bytes, const std::string& id = "r",
                       wire::HandOffProfile profile = wire::FULL) {
    wire::Reserve reserve;
    reserve.set_request_id(id);
    reserve.set_attempt(1);
    reserve.set_profile(profile);
    if (size_bytes > 0) {
      reserve.add_regions()->set_size_bytes(size_bytes);
      reserve.mutable_regions(0)->set_unit_bytes(std::min(size_bytes, kExtentBytes));
    }
    receiver_.OnReserve(reserve, PeerOf(session));
    EXPECT_TRUE(Heard().has_ticket());
    return Heard().ticket();
  }
  // True when it was stored.
  bool Write(uint64_t session, uint64_t ticket, const std::string& bytes) {
    wire::Extent extent;
    extent.set_ticket(ticket);
    extent.set_size_bytes(static_cast<int64_t>(bytes.size()));
    extent.set_crc32c(Crc32c(std::as_bytes(std::span(bytes))));
    extent.set_data(bytes);
    receiver_.OnExtent(extent, PeerOf(session));
    return Heard().has_extent_ack() && !Heard().extent_ack().corrupt();
  }
  // True when it was taken.
  bool Commit(uint64_t session, uint64_t ticket, const std::string& bytes) {
    wire::Commit commit;
    commit.set_ticket(ticket);
    commit.set_size_bytes(static_cast<int64_t>(bytes.size()));
    commit.set_num_extents(bytes.empty() ? 0 : 1);
    const uint32_t crc = Crc32c(std::as_bytes(std::span(bytes)));
    commit.set_crc_of_crcs(bytes.empty() ? ManifestCrc({}) : ManifestCrc({&crc, 1}));
    commit.mutable_first()->add_ids(10);
    receiver_.OnCommit(commit, PeerOf(session));
    return Heard().committed().refused().empty();
  }
  HandOffCounters counters() const {
    HandOffCounters counters;
    receiver_.Count(&counters);
    return counters;
  }

  FakeClock clock_{0};
  std::vector<wire::Message> answers_;
  std::vector<EngineRequest> taken_;
  std::vector<Status> ended_;
  std::promise<void> writer_came_, writer_may_go_;
  std::atomic<bool> holds_writer_{false};
  HandOffReceiver receiver_{HandOffTransport::kTcp,
                            {.lease_us = kLeaseUs,
                             .before_fill =
                                 [this] {
                                   if (!holds_writer_.exchange(false)) return;
                                   writer_came_.set_value();
                                   writer_may_go_.get_future().wait_for(kLongest);
                                 }},
                            "127.0.0.1",
                            &clock_};
};

TEST_F(Receiver, GivesTheLandingsOfALostSessionBackAtOnce) {
  Expect("q");
  const uint64_t ticket = Reserve(1, 1000).ticket();
  const uint64_t other = Reserve(2, 1000, "q").ticket();
  ASSERT_NE(ticket, 0u);
  receiver_.OnPeerLost(1);
  EXPECT_EQ(counters().tickets_released, 1);
  EXPECT_FALSE(Write(1, ticket, Bytes(1000)));
  EXPECT_TRUE(Write(2, other, Bytes(1000))) << "of another session";
  EXPECT_TRUE(ended_.empty()) << "the gateway decides about the request";
  EXPECT_EQ(receiver_.awaited().requests, 2);
}

// A worker that dials again may have its old session still: the end of that one must not take what
// was agreed in the new one.
TEST_F(Receiver, KeepsTheTicketOfANewSessionWhenTheOldOneEnds) {
  const uint64_t old_ticket = Reserve(1, 1000).ticket();
  const uint64_t new_ticket = Reserve(2, 1000).ticket();
  ASSERT_NE(new_ticket, 0u);
  EXPECT_EQ(counters().tickets_released, 1) << "one landing for a request";
  receiver_.OnPeerLost(1);
  EXPECT_EQ(counters().tickets_released, 1);
  EXPECT_FALSE(Write(1, old_ticket, Bytes(1000)));
  EXPECT_TRUE(Write(2, new_ticket, Bytes(1000)));
  EXPECT_TRUE(Commit(2, new_ticket, Bytes(1000)));
  ASSERT_EQ(taken_.size(), 1u);
  EXPECT_EQ(taken_[0].resume->image.size(), 1000u);
  EXPECT_EQ(counters().tickets_granted, counters().tickets_released);
}

TEST_F(Receiver, ListensToTheSessionThatWasGrantedTheTicketAlone) {
  const uint64_t ticket = Reserve(1, 1000).ticket();
  EXPECT_FALSE(Write(2, ticket, Bytes(1000)));
  EXPECT_FALSE(Commit(2, ticket, ""));
  wire::Renew renew;
  renew.set_ticket(ticket);
  wire::Release release;
  release.set_request_id("r");
  release.set_attempt(1);
  receiver_.OnRelease(release, PeerOf(2));
  clock_.Advance(kLeaseUs - 1);
  receiver_.OnRenew(renew, PeerOf(2));
  EXPECT_EQ(counters().tickets_released, 0);
  clock_.Advance(1);
  receiver_.Sweep();
  EXPECT_EQ(counters().tickets_released, 1) << "a stranger renews nothing";
  ASSERT_EQ(ended_.size(), 1u);
  EXPECT_EQ(ended_[0].code(), StatusCode::kUnavailable);
}

TEST_F(Receiver, WaitsForAPromptThatStillRuns) {
  const uint64_t ticket = Reserve(1, 1000).ticket();
  wire::Renew renew;
  renew.set_ticket(ticket);
  for (int i = 0; i < 5; ++i) {
    clock_.Advance(kLeaseUs - 1);
    receiver_.OnRenew(renew, PeerOf(1));
    receiver_.Sweep();
  }
  EXPECT_TRUE(Write(1, ticket, Bytes(1000)));
  EXPECT_TRUE(Commit(1, ticket, Bytes(1000)));
}

TEST_F(Receiver, TakesLateAndRepeatedMessagesCalmly) {
  const uint64_t ticket = Reserve(1, 1000).ticket();
  EXPECT_TRUE(Write(1, ticket, Bytes(1000)));
  EXPECT_TRUE(Commit(1, ticket, Bytes(1000)));
  EXPECT_FALSE(Commit(1, ticket, Bytes(1000))) << "once only";
  EXPECT_FALSE(Write(1, ticket, Bytes(1000)));
  wire::Release release;
  release.set_request_id("r");
  release.set_attempt(1);
  receiver_.OnRelease(release, PeerOf(1));
  wire::Renew renew;
  renew.set_ticket(ticket);
  receiver_.OnRenew(renew, PeerOf(1));
  receiver_.OnPeerLost(1);
  EXPECT_EQ(taken_.size(), 1u);
  EXPECT_TRUE(ended_.empty());
  EXPECT_EQ(counters().tickets_granted, counters().tickets_released);
}

TEST_F(Receiver, GrantsNothingToForgedNames) {
  EXPECT_NE(Reserve(1, 1000, "stranger").refused(), "");
  EXPECT_NE(Reserve(1, 1000, "r", static_cast<wire::HandOffProfile>(77)).refused(), "");
  EXPECT_NE(Reserve(1, 0, "r", wire::STORE).refused(), "") << "it shares no persistent cache";
  for (uint64_t ticket : {uint64_t{0}, uint64_t{1}, UINT64_MAX}) {
    EXPECT_FALSE(Write(1, ticket, Bytes(10)));
    EXPECT_FALSE(Commit(1, ticket, ""));
  }
  EXPECT_EQ(counters().tickets_granted, 0);
  EXPECT_EQ(receiver_.awaited().requests, 1);
}

// The lease ends while a sender stands still in the middle of an extent, over a real connection:
// the memory is nobody else's until that connection is gone.
TEST_F(Receiver, FreesALandingWhenItsStalledWriterHasLeft) {
  holds_writer_ = true;
  const wire::Ticket ticket = Reserve(1, kExtentBytes);
  const auto deadline = std::chrono::steady_clock::now() + kLongest;
  const auto port = static_cast<uint16_t>(std::stoi(ticket.data_endpoint().substr(1)));
  auto socket = ConnectTcp("127.0.0.1", port, deadline);
  ASSERT_TRUE(socket.ok());
  const Extent extent{ticket.ticket(), 0, kExtentBytes, 0};
  ASSERT_TRUE(SendAll(*socket, EncodeFrame(extent), deadline).ok());
  const std::vector<std::byte> poison(1000, std::byte{0xDD});
  ASSERT_TRUE(SendAll(*socket, poison, deadline).ok());
  ASSERT_EQ(writer_came_.get_future().wait_for(kLongest), std::future_status::ready);
  clock_.Advance(kLeaseUs);
  receiver_.Sweep();
  EXPECT_EQ(ended_.size(), 1u);
  EXPECT_EQ(counters().tickets_released, 0) << "somebody may write to it";
  writer_may_go_.set_value();
  // The connection is cut, and then the memory is free.
  std::byte byte;
  EXPECT_EQ(ReceiveAll(*socket, {&byte, 1}, deadline).code(), StatusCode::kUnavailable);
  EXPECT_TRUE(Eventually([&] { return counters().tickets_released == 1; }));
  EXPECT_EQ(counters().bytes_received, 0);
}

}  // namespace
}  // namespace deepinfer
