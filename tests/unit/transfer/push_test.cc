// Transfers between a sender and a receiver over memory and over real sockets, undisturbed and with
// faults of every kind.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "base/crc32c.h"
#include "support/fake_clock.h"
#include "transfer/data_server.h"
#include "transfer/extent_path.h"
#include "transfer/extent_push.h"
#include "transfer/ucx.h"

namespace deepinfer {
namespace {

constexpr std::chrono::seconds kPatience{60};
constexpr int64_t kLeaseUs = 10'000'000;

SocketDeadline Soon() { return std::chrono::steady_clock::now() + kPatience; }

std::vector<std::byte> Pattern(int64_t size) {
  std::vector<std::byte> bytes(static_cast<size_t>(size));
  uint32_t x = 12345;
  for (std::byte& b : bytes) {
    x = x * 1664525 + 1013904223;
    b = static_cast<std::byte>(x >> 24);
  }
  return bytes;
}

// Passes everything on; `before` may change an extent's bytes or end the process, and says whether
// to go on.
class FaultyPath final : public ExtentPath {
 public:
  using Before = std::function<Status(int n, std::vector<std::byte>* bytes)>;
  FaultyPath(std::unique_ptr<ExtentPath> path, Before before)
      : path_(std::move(path)), before_(std::move(before)) {}
  Status Send(const Extent& extent, std::span<const std::byte> bytes,
              SocketDeadline deadline) override {
    std::vector<std::byte> copy(bytes.begin(), bytes.end());
    DI_RETURN_IF_ERROR(before_(num_sent_++, &copy));
    return path_->Send(extent, copy, deadline);
  }
  bool needs_message() const override { return path_->needs_message(); }
  void Interrupt() override { path_->Interrupt(); }

 private:
  std::unique_ptr<ExtentPath> path_;
  Before before_;
  int num_sent_ = 0;
};

enum class Way { kShared, kStream, kUcxTcp, kUcxShm };

UcxOptions UcxOptionsOf(Way way) { return {way == Way::kUcxTcp ? "tcp" : "shm"}; }

class Push : public ::testing::TestWithParam<Way> {
 protected:
  Push() {
    auto server = DataServer::Listen(
        "127.0.0.1", &table_, [this](const Extent& e, auto outcome) { Acknowledge(e, outcome); });
    EXPECT_TRUE(server.ok());
    server_ = *std::move(server);
    if (GetParam() == Way::kUcxTcp || GetParam() == Way::kUcxShm) {
      const auto context = OpenUcx(UcxOptionsOf(GetParam()));
      EXPECT_TRUE(context.ok()) << context.status().ToString();
      ucx_ = *context;
      auto ucx_server = UcxServer::Start(
          ucx_, &table_, [this](const Extent& e, auto outcome) { Acknowledge(e, outcome); });
      EXPECT_TRUE(ucx_server.ok()) << ucx_server.status().ToString();
      ucx_server_ = *std::move(ucx_server);
    }
    const TransferRegion region{static_cast<int64_t>(bytes_.size()), kExtentBytes};
    const Result<LandingGrant> grant = table_.Grant({&region, 1}, GetParam() == Way::kShared);
    EXPECT_TRUE(grant.ok());
    grant_ = *grant;
  }
  std::unique_ptr<ExtentPath> Path() {
    auto path = Open();
    EXPECT_TRUE(path.ok()) << path.status().ToString();
    return *std::move(path);
  }
  Result<std::unique_ptr<ExtentPath>> Open() {
    switch (GetParam()) {
      case Way::kShared:
        return OpenSharedPath(grant_.shared_window, table_.options().window_bytes);
      case Way::kStream:
        return OpenStreamPath("127.0.0.1", server_->port(), Soon());
      default:
        return OpenUcxPath(ucx_, ucx_server_->address(), Soon());
    }
  }
  // Their threads may hold the push.
  void EndServers() {
    server_.reset();
    ucx_server_.reset();
  }
  void Acknowledge(const Extent& extent, ExtentOutcome outcome) {
    ExtentPush* push = push_.load();
    if (push == nullptr) return;
    if (outcome == ExtentOutcome::kRefused) return push->Stop(Unavailable("refused"));
    push->OnAck(extent.offset, outcome == ExtentOutcome::kCorrupt);
  }
  // Everything there is, in two runs that lie apart.
  void AddAll(ExtentPush* push) const {
    const std::span<const std::byte> all(bytes_);
    for (size_t at = 0; at < all.size(); at += kExtentBytes) {
      const auto part = all.subspan(at, std::min<size_t>(kExtentBytes, all.size() - at));
      push->Add({static_cast<int64_t>(at), {part.first(500), part.subspan(500)}, nullptr});
    }
    push->Close();
  }
  ExtentPushTarget Target(ExtentPath* path) {
    return {grant_.ticket, table_.options().window_bytes,
            path,          [this](const Extent& e) { Acknowledge(e, table_.OnShared(e)); },
            [] {},         kPatience};
  }
  Status Run(ExtentPath* path, std::chrono::milliseconds stall_limit = kPatience) {
    ExtentPush push({stall_limit});
    AddAll(&push);
    push_.store(&push);
    const Status status = push.Run(Target(path));
    manifest_ = push.manifest();
    EndServers();
    push_.store(nullptr);
    return status;
  }
  void ExpectNothingHeld() {
    EndServers();
    table_.Revoke(grant_.ticket);
    EXPECT_EQ(table_.counters().granted, table_.counters().released);
    EXPECT_EQ(table_.counters().bytes_held, 0);
  }

  // More than two windows and no whole number of extents.
  const std::vector<std::byte> bytes_ = Pattern(5 * kExtentBytes + 777);
  FakeClock clock_{0};
  LandingTable table_{{.window_bytes = 2 * kExtentBytes, .lease_us = kLeaseUs}, &clock_};
  std::atomic<ExtentPush*> push_{nullptr};
  std::unique_ptr<DataServer> server_;
  UcxContextPtr ucx_;
  std::unique_ptr<UcxServer> ucx_server_;
  LandingGrant grant_;
  Manifest manifest_;
};

TEST_P(Push, MovesAllBytes) {
  const auto path = Path();
  ASSERT_TRUE(Run(path.get()).ok());
  const auto taken = table_.Take(grant_.ticket, manifest_);
  ASSERT_TRUE(taken.ok()) << taken.status().ToString();
  EXPECT_EQ(*taken, bytes_);
  ExpectNothingHeld();
}

TEST_P(Push, RepairsABrokenExtent) {
  FaultyPath path(Path(), [](int n, std::vector<std::byte>* bytes) {
    if (n == 1) (*bytes)[1000] ^= std::byte{4};
    return OkStatus();
  });
  ASSERT_TRUE(Run(&path).ok());
  EXPECT_EQ(table_.counters().extents_nacked, 1);
  const auto taken = table_.Take(grant_.ticket, manifest_);
  ASSERT_TRUE(taken.ok());
  EXPECT_EQ(*taken, bytes_);
  ExpectNothingHeld();
}

TEST_P(Push, GivesUpWhenAnExtentArrivesBrokenTwice) {
  FaultyPath path(Path(), [](int, std::vector<std::byte>* bytes) {
    bytes->back() ^= std::byte{1};
    return OkStatus();
  });
  EXPECT_EQ(Run(&path).code(), StatusCode::kUnavailable);
  EXPECT_FALSE(table_.Take(grant_.ticket, manifest_).ok());
  ExpectNothingHeld();
}

TEST_P(Push, EndsWhenTheLandingIsRevokedMeanwhile) {
  FaultyPath path(Path(), [this](int n, std::vector<std::byte>*) {
    if (n == 3) table_.Revoke(grant_.ticket);
    return OkStatus();
  });
  EXPECT_EQ(Run(&path).code(), StatusCode::kUnavailable);
  ExpectNothingHeld();
}

TEST_P(Push, EndsWhenItIsStopped) {
  FaultyPath path(Path(), [this](int n, std::vector<std::byte>*) {
    if (n == 2) push_.load()->Stop(Cancelled("the client left"));
    return OkStatus();
  });
  EXPECT_EQ(Run(&path).code(), StatusCode::kCancelled);
  ExpectNothingHeld();
}

TEST_P(Push, EndsWhenNobodyAcknowledges) {
  const auto path = Path();
  ExtentPush push({std::chrono::milliseconds(20)});
  AddAll(&push);
  ExtentPushTarget target = Target(path.get());
  target.announce = [](const Extent&) {};
  EXPECT_EQ(push.Run(target).code(), StatusCode::kDeadline);
  ExpectNothingHeld();
}

// A process that dies in the middle of an extent: nothing of it is taken, and nothing stays.
using PushFromAFork = Push;

TEST_P(PushFromAFork, ASenderThatIsKilledLeavesNothing) {
  server_.reset();  // no thread while the process is copied
  int ends[2] = {-1, -1};
  ASSERT_EQ(pipe(ends), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    uint16_t port = 0;
    if (read(ends[0], &port, sizeof port) != sizeof port) _exit(1);
    auto path = GetParam() == Way::kShared
                    ? OpenSharedPath(grant_.shared_window, table_.options().window_bytes)
                    : OpenStreamPath("127.0.0.1", port, Soon());
    if (!path.ok()) _exit(1);
    const Extent extent{grant_.ticket, 0, kExtentBytes,
                        Crc32c(std::span(bytes_).first(kExtentBytes))};
    if (GetParam() == Way::kShared) {
      (void)(*path)->Send(extent, std::span(bytes_).first(1000), Soon());
    } else {
      const auto socket = ConnectTcp("127.0.0.1", port, Soon());
      (void)SendAll(*socket, EncodeFrame(extent), Soon());
      (void)SendAll(*socket, std::span(bytes_).first(1000), Soon());
    }
    raise(SIGKILL);
  }
  std::atomic<bool> refused{false};
  auto server = DataServer::Listen("127.0.0.1", &table_, [&](const Extent&, auto outcome) {
    refused = outcome == ExtentOutcome::kRefused;
  });
  ASSERT_TRUE(server.ok());
  const uint16_t port = (*server)->port();
  ASSERT_EQ(write(ends[1], &port, sizeof port), static_cast<ssize_t>(sizeof port));
  int result = 0;
  waitpid(pid, &result, 0);
  close(ends[0]), close(ends[1]);
  ASSERT_TRUE(WIFSIGNALED(result)) << "it got as far as it should";
  if (GetParam() == Way::kShared) {
    // Nobody announces it; if somebody did, the bytes would not be right.
    const Extent torn{grant_.ticket, 0, kExtentBytes,
                      Crc32c(std::span(bytes_).first(kExtentBytes))};
    EXPECT_EQ(table_.OnShared(torn), ExtentOutcome::kCorrupt);
  } else {
    const auto deadline = Soon();
    while (!refused && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    EXPECT_TRUE(refused);
  }
  clock_.Advance(kLeaseUs);
  EXPECT_EQ(table_.Sweep(), std::vector<uint64_t>{grant_.ticket});
  EXPECT_EQ(table_.counters().bytes_stored, 0);
  server->reset();
  ExpectNothingHeld();
}

std::string NameOfWay(const ::testing::TestParamInfo<Way>& way) {
  constexpr const char* kNames[] = {"SharedMemory", "Tcp", "UcxTcp", "UcxSharedMemory"};
  return kNames[static_cast<size_t>(way.param)];
}

std::vector<Way> BuiltWays() {
  if (!HasUcx()) return {Way::kShared, Way::kStream};
  return {Way::kShared, Way::kStream, Way::kUcxTcp, Way::kUcxShm};
}

INSTANTIATE_TEST_SUITE_P(Ways, Push, ::testing::ValuesIn(BuiltWays()), NameOfWay);
// A copy of a process cannot use UCX: ucx_test.cc kills programs of their own.
INSTANTIATE_TEST_SUITE_P(Ways, PushFromAFork, ::testing::Values(Way::kShared, Way::kStream),
                         NameOfWay);

class NowhereToGo final : public ExtentPath {
 public:
  Status Send(const Extent&, std::span<const std::byte>, SocketDeadline) override {
    ++num_sent;
    return OkStatus();
  }
  bool needs_message() const override { return true; }
  void Interrupt() override {}
  int num_sent = 0;
};

TEST(ExtentPush, AnExtentThatArrivesBrokenTwiceEndsIt) {
  NowhereToGo path;
  const auto bytes = Pattern(1024);
  ExtentPush push({kPatience});
  push.Add({0, {bytes}, nullptr});
  push.Close();
  EXPECT_EQ(push.Run({1, kExtentBytes, &path,
                      [&](const Extent& extent) { push.OnAck(extent.offset, true); }, [] {}})
                .code(),
            StatusCode::kUnavailable);
  EXPECT_EQ(path.num_sent, 2);
}

TEST(ExtentPush, WaitsForBytesThatAreStillToCome) {
  NowhereToGo path;
  const auto bytes = Pattern(3000);
  ExtentPush push({kPatience});
  int num_idle = 0;
  std::vector<Extent> sent;
  ExtentPushTarget target{1, kExtentBytes, &path, {}, {}, std::chrono::milliseconds(1)};
  // One slot: each goes when the one before has arrived, and the last is added while it waits.
  target.announce = [&](const Extent& extent) {
    sent.push_back(extent);
    push.OnAck(extent.offset, false);
    push.OnAck(extent.offset + 77, true);  // of nothing that is on the way
    push.OnAck(extent.offset, true);       // late
  };
  target.idle = [&] {
    if (++num_idle > 1) return;
    push.Add({2000, {std::span(bytes).subspan(2000)}, nullptr});
    push.Close();
  };
  push.Add({1000, {std::span(bytes).subspan(1000, 1000)}, nullptr});
  push.Add({0, {std::span(bytes).first(1000)}, nullptr});
  EXPECT_TRUE(push.Run(target).ok());
  EXPECT_EQ(num_idle, 1);
  ASSERT_EQ(sent.size(), 3u);
  EXPECT_EQ(sent[0].offset, 1000) << "in the order in which they were added";
  EXPECT_EQ(sent[2].slot, 0u);
  const uint32_t crcs[] = {sent[1].crc32c, sent[0].crc32c, sent[2].crc32c};
  EXPECT_EQ(push.manifest().crc_of_crcs, ManifestCrc(crcs)) << "in the order of their offsets";
  EXPECT_EQ(push.manifest().size_bytes, 3000);
}

TEST(ExtentPush, KeepsWhatItSendsUntilTheEndOrUntilItHasArrived) {
  NowhereToGo path;
  const auto bytes = Pattern(1000);
  for (const bool early : {false, true}) {
    ExtentPush push({kPatience});
    auto keep = std::make_shared<int>(1);
    std::weak_ptr<int> alive = keep;
    push.Add({0, {bytes}, keep});
    keep.reset();
    push.Close();
    if (early) push.LetGoEarly();
    EXPECT_FALSE(alive.expired());
    EXPECT_TRUE(push.Run({1, kExtentBytes, &path,
                          [&](const Extent& extent) { push.OnAck(extent.offset, false); }, [] {}})
                    .ok());
    EXPECT_EQ(alive.expired(), early);
    push.LetGoAll();
    EXPECT_TRUE(alive.expired());
  }
}

class DataConnection : public ::testing::Test {
 protected:
  DataConnection() {
    auto server = DataServer::Listen("127.0.0.1", &table_, [](const Extent&, ExtentOutcome) {});
    EXPECT_TRUE(server.ok());
    server_ = *std::move(server);
  }
  // True once the server has closed the connection.
  static bool IsClosed(const UniqueFd& socket) {
    std::byte byte;
    return ReceiveAll(socket, {&byte, 1}, Soon()).code() == StatusCode::kUnavailable;
  }

  FakeClock clock_{0};
  LandingTable table_{{}, &clock_};
  std::unique_ptr<DataServer> server_;
};

TEST_F(DataConnection, OfAStrangerIsClosed) {
  const auto noise = ConnectTcp("127.0.0.1", server_->port(), Soon());
  ASSERT_TRUE(noise.ok());
  ASSERT_TRUE(SendAll(*noise, Pattern(kFrameBytes), Soon()).ok());
  EXPECT_TRUE(IsClosed(*noise));
  const auto forged = ConnectTcp("127.0.0.1", server_->port(), Soon());
  ASSERT_TRUE(forged.ok());
  ASSERT_TRUE(SendAll(*forged, EncodeFrame({99, 0, 10, 0}), Soon()).ok());
  EXPECT_TRUE(IsClosed(*forged));
  EXPECT_EQ(table_.counters().granted, 0);
}

TEST_F(DataConnection, EndsWithItsServer) {
  const auto idle = ConnectTcp("127.0.0.1", server_->port(), Soon());
  ASSERT_TRUE(idle.ok());
  server_.reset();
  EXPECT_TRUE(IsClosed(*idle));
}

}  // namespace
}  // namespace deepinfer
