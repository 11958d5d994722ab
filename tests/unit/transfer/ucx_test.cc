// UCX over the transports that every machine has: what is peculiar to it, and peers that die.

#include "transfer/ucx.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/crc32c.h"
#include "support/child_process.h"
#include "support/eventually.h"
#include "support/fake_clock.h"
#include "support/temp_dir.h"
#include "unit/transfer/hex_text.h"

namespace deepinfer {
namespace {

SocketDeadline In(std::chrono::milliseconds time) {
  return std::chrono::steady_clock::now() + time;
}
constexpr std::chrono::seconds kPatience{60};
constexpr std::chrono::milliseconds kShort{300};

TEST(Ucx, RefusesTransportsThatAreNotThere) {
  const auto context = OpenUcx({"carrier_pigeon"});
  ASSERT_FALSE(context.ok());
  EXPECT_EQ(context.status().code(), StatusCode::kInvalidRequest);
  EXPECT_NE(context.status().message().find("carrier_pigeon"), std::string::npos);
}

class UcxPeers : public ::testing::TestWithParam<const char*> {
 protected:
  UcxPeers() {
    const auto context = OpenUcx({GetParam()});
    EXPECT_TRUE(context.ok()) << context.status().ToString();
    ucx_ = *context;
  }
  // Starts the program; true once it has said a line.
  bool StartPeer(std::vector<std::string> arguments) {
    std::vector<std::string> all{UCX_PEER, GetParam()};
    all.insert(all.end(), arguments.begin(), arguments.end());
    peer_ = std::make_unique<ChildProcess>(all, output_);
    return Eventually([&] {
      std::ifstream in(output_);
      said_.clear();
      return static_cast<bool>(std::getline(in, said_)) && !in.eof();
    });
  }
  void StartServer() {
    auto server = UcxServer::Start(ucx_, &table_, [this](const Extent&, ExtentOutcome outcome) {
      if (outcome == ExtentOutcome::kStored) ++num_stored_;
    });
    ASSERT_TRUE(server.ok()) << server.status().ToString();
    server_ = *std::move(server);
  }
  LandingGrant Grant() {
    const TransferRegion region{kExtentBytes, kExtentBytes};
    const Result<LandingGrant> grant = table_.Grant({&region, 1}, false);
    EXPECT_TRUE(grant.ok());
    return *grant;
  }
  Extent OfAll(uint64_t ticket) const { return {ticket, 0, kExtentBytes, Crc32c(bytes_), 0}; }

  const std::vector<std::byte> bytes_ = std::vector<std::byte>(kExtentBytes, std::byte{3});
  TempDir dir_;
  const std::string output_ = dir_.File("peer.txt");
  std::string said_;
  FakeClock clock_{0};
  LandingTable table_{{}, &clock_};
  std::atomic<int> num_stored_{0};
  UcxContextPtr ucx_;
  std::unique_ptr<UcxServer> server_;
  std::unique_ptr<ChildProcess> peer_;
};

TEST_P(UcxPeers, AnAddressThatIsNoneIsRefused) {
  StartServer();
  std::string changed = server_->address();
  changed.back() = static_cast<char>(changed.back() ^ 1);
  const std::string cut = server_->address().substr(0, 20);
  for (const std::string& address : {std::string(), std::string("ucx1"), changed, cut}) {
    const auto path = OpenUcxPath(ucx_, address, In(kPatience));
    EXPECT_EQ(path.status().code(), StatusCode::kUnavailable) << HexOf(address);
  }
}

// Shared memory does not show it, so that the deadline has to.
TEST_P(UcxPeers, AReceiverThatIsKilledEndsTheSender) {
  const bool shows = GetParam() == std::string("tcp");
  const auto patience = shows ? std::chrono::milliseconds(kPatience) : kShort;
  ASSERT_TRUE(StartPeer({"receive"}));
  const auto path = OpenUcxPath(ucx_, BytesOfHex(said_), In(kPatience));
  ASSERT_TRUE(path.ok()) << path.status().ToString();
  ASSERT_TRUE((*path)->Send(OfAll(1), bytes_, In(kPatience)).ok());
  peer_->Kill();
  Status status;
  // What the system has buffered goes through.
  for (int i = 0; i < 1000 && status.ok(); ++i) {
    status = (*path)->Send(OfAll(1), bytes_, In(patience));
  }
  EXPECT_EQ(status.code(), shows ? StatusCode::kUnavailable : StatusCode::kDeadline)
      << status.ToString();
  EXPECT_NE(status.message().find("UCX"), std::string::npos);
  EXPECT_FALSE((*path)->Send(OfAll(1), bytes_, In(kPatience)).ok()) << "it stays so";
  if (shows) {
    EXPECT_FALSE(OpenUcxPath(ucx_, BytesOfHex(said_), In(std::chrono::seconds(2))).ok());
  }
}

TEST_P(UcxPeers, AReceiverThatStandsStillEndsTheSenderAtItsDeadline) {
  ASSERT_TRUE(StartPeer({"receive"}));
  const auto path = OpenUcxPath(ucx_, BytesOfHex(said_), In(kPatience));
  ASSERT_TRUE(path.ok()) << path.status().ToString();
  peer_->Stop();
  Status status;
  for (int i = 0; i < 1000 && status.ok(); ++i) {
    status = (*path)->Send(OfAll(1), bytes_, In(kShort));
  }
  EXPECT_EQ(status.code(), StatusCode::kDeadline) << status.ToString();
}

TEST_P(UcxPeers, AnInterruptEndsASendThatWaits) {
  ASSERT_TRUE(StartPeer({"receive"}));
  const auto path = OpenUcxPath(ucx_, BytesOfHex(said_), In(kPatience));
  ASSERT_TRUE(path.ok()) << path.status().ToString();
  peer_->Stop();
  Status status;
  std::atomic<bool> over{false};
  std::thread sender([&] {
    while (status.ok()) status = (*path)->Send(OfAll(1), bytes_, In(kPatience));
    over = true;
  });
  (*path)->Interrupt();
  EXPECT_TRUE(Eventually([&] { return over.load(); }));
  if (!over) peer_->Kill();
  sender.join();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.ToString();
}

// Its landing stays until the lease is over; others are served on.
TEST_P(UcxPeers, ASenderThatIsKilledLeavesNothingAndHoldsUpNobody) {
  StartServer();
  const uint64_t of_nobody = 77;
  const std::string address = HexOf(server_->address());
  ASSERT_TRUE(StartPeer({"send", address, std::to_string(of_nobody)})) << "it sends";
  peer_->Kill();
  const LandingGrant grant = Grant();
  const auto path = OpenUcxPath(ucx_, server_->address(), In(kPatience));
  ASSERT_TRUE(path.ok()) << path.status().ToString();
  ASSERT_TRUE((*path)->Send(OfAll(grant.ticket), bytes_, In(kPatience)).ok());
  EXPECT_TRUE(Eventually([&] { return num_stored_ == 1; }));
  const uint32_t crc = Crc32c(bytes_);
  const auto taken = table_.Take(grant.ticket, {kExtentBytes, 1, ManifestCrc({&crc, 1})});
  ASSERT_TRUE(taken.ok());
  EXPECT_EQ(*taken, bytes_);
  server_.reset();
  EXPECT_EQ(table_.counters().granted, table_.counters().released);
  EXPECT_EQ(table_.counters().bytes_held, 0);
}

// What the path and the server hold ends with them: descriptors do not add up.
TEST_P(UcxPeers, ManyPathsOneAfterTheOtherLeaveNothing) {
  StartServer();
  const auto num_open = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  std::ptrdiff_t after_first = 0;
  for (int i = 0; i < 20; ++i) {
    const LandingGrant grant = Grant();
    {
      const auto path = OpenUcxPath(ucx_, server_->address(), In(kPatience));
      ASSERT_TRUE(path.ok()) << path.status().ToString();
      ASSERT_TRUE((*path)->Send(OfAll(grant.ticket), bytes_, In(kPatience)).ok());
    }
    ASSERT_TRUE(Eventually([&] { return num_stored_ == i + 1; }));
    table_.Revoke(grant.ticket);
    if (i == 4) after_first = num_open();
  }
  // The other side lets go of an ended connection a moment later.
  EXPECT_TRUE(Eventually([&] { return num_open() <= after_first + 2; })) << num_open();
}

INSTANTIATE_TEST_SUITE_P(Transports, UcxPeers, ::testing::Values("tcp", "shm"),
                         [](const auto& transport) { return std::string(transport.param); });

}  // namespace
}  // namespace deepinfer
