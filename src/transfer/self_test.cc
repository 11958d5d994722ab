#include "transfer/self_test.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "transfer/data_server.h"
#include "transfer/extent_push.h"
#include "transfer/landing_table.h"

namespace deepinfer {

namespace {

constexpr std::chrono::seconds kLimit{10};

// No two extents are alike, so that one in the place of another is noticed.
std::vector<std::byte> Pattern(int64_t size_bytes) {
  std::vector<std::byte> bytes(static_cast<size_t>(size_bytes));
  constexpr size_t kWord = sizeof(uint64_t);
  uint64_t x = 88172645463325252u;
  for (size_t at = 0; at + kWord <= bytes.size(); at += kWord) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    std::memcpy(bytes.data() + at, &x, kWord);
  }
  return bytes;
}

}  // namespace

Status TestTransport(const SelfTestOptions& options) {
  const bool shares = options.way == SelfTestWay::kSharedMemory;
  const std::vector<std::byte> sent = Pattern(options.size_bytes);
  const SteadyClock clock;
  LandingOptions landing;
  landing.max_bytes = options.size_bytes;
  LandingTable table(landing, &clock);
  ExtentPush push({.stall_limit = kLimit});
  const auto acknowledge = [&](const Extent& extent, ExtentOutcome outcome) {
    if (outcome == ExtentOutcome::kRefused)
      return push.Stop(DataCorruption("an extent was refused"));
    push.OnAck(extent.offset, outcome == ExtentOutcome::kCorrupt);
  };
  std::unique_ptr<DataServer> server;
  std::unique_ptr<UcxServer> ucx_server;
  if (options.way == SelfTestWay::kTcp) {
    DI_ASSIGN_OR_RETURN(server, DataServer::Listen(options.host, &table, acknowledge));
  } else if (options.way == SelfTestWay::kUcx) {
    DI_ASSIGN_OR_RETURN(ucx_server, UcxServer::Start(options.ucx, &table, acknowledge));
  }
  const TransferRegion region{options.size_bytes, kExtentBytes};
  DI_ASSIGN_OR_RETURN(const LandingGrant grant, table.Grant({&region, 1}, shares));
  if (shares && grant.shared_window.empty())
    return Unavailable("the system gives no shared memory");
  const auto open = [&] {
    const SocketDeadline deadline = std::chrono::steady_clock::now() + kLimit;
    if (shares) return OpenSharedPath(grant.shared_window, landing.window_bytes);
    if (server != nullptr) return OpenStreamPath(options.host, server->port(), deadline);
    return OpenUcxPath(options.ucx, ucx_server->address(), deadline);
  };
  DI_ASSIGN_OR_RETURN(std::unique_ptr<ExtentPath> path, open());
  if (options.wrap_path) path = options.wrap_path(std::move(path));
  const std::span<const std::byte> all(sent);
  for (size_t at = 0; at < all.size(); at += kExtentBytes) {
    const size_t size = std::min<size_t>(kExtentBytes, all.size() - at);
    push.Add({static_cast<int64_t>(at), {all.subspan(at, size)}, nullptr});
  }
  push.Close();
  ExtentPushTarget target;
  target.ticket = grant.ticket;
  target.window_bytes = landing.window_bytes;
  target.path = path.get();
  target.announce = [&](const Extent& extent) { acknowledge(extent, table.OnShared(extent)); };
  target.idle = [] {};
  const Status pushed = push.Run(target);
  // Its threads use the push.
  path.reset();
  server.reset();
  ucx_server.reset();
  DI_RETURN_IF_ERROR(pushed);
  DI_ASSIGN_OR_RETURN(const std::vector<std::byte> received,
                      table.Take(grant.ticket, push.manifest()));
  if (received != sent) return DataCorruption("other bytes arrived than were sent");
  return OkStatus();
}

}  // namespace deepinfer
