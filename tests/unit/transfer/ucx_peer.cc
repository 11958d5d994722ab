// The other end of a transfer by UCX, as a program that a test kills.
//   ucx_peer TRANSPORTS receive              prints its address, takes extents for no landing
//   ucx_peer TRANSPORTS send ADDRESS TICKET  sends extents of that transfer for ever
// Addresses are hexadecimal. Prints "sent" after the first extent.

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/crc32c.h"
#include "transfer/ucx.h"
#include "unit/transfer/hex_text.h"

namespace deepinfer {
namespace {

int Receive(const UcxContextPtr& context) {
  const SteadyClock clock;
  LandingTable table({}, &clock);
  const auto server = UcxServer::Start(context, &table, [](const Extent&, ExtentOutcome) {});
  if (!server.ok()) return 1;
  std::printf("%s\n", HexOf((*server)->address()).c_str());
  std::fflush(stdout);
  pause();
  return 0;
}

int Send(const UcxContextPtr& context, const std::string& address, uint64_t ticket) {
  const auto soon = [] { return std::chrono::steady_clock::now() + std::chrono::seconds(60); };
  const auto path = OpenUcxPath(context, address, soon());
  if (!path.ok()) return 1;
  const std::vector<std::byte> bytes(kExtentBytes, std::byte{7});
  for (bool first = true;; first = false) {
    const Extent extent{ticket, 0, kExtentBytes, Crc32c(bytes), 0};
    if (!(*path)->Send(extent, bytes, soon()).ok()) return 1;
    if (!first) continue;
    std::printf("sent\n");
    std::fflush(stdout);
  }
}

int Run(const std::vector<std::string>& arguments) {
  if (arguments.size() < 3) return 2;
  const auto context = OpenUcx({arguments[1]});
  if (!context.ok()) {
    std::fprintf(stderr, "%s\n", context.status().ToString().c_str());
    return 1;
  }
  if (arguments[2] == "receive") return Receive(*context);
  if (arguments.size() != 5) return 2;
  return Send(*context, BytesOfHex(arguments[3]), std::stoull(arguments[4]));
}

}  // namespace
}  // namespace deepinfer

int main(int argc, char** argv) {
  return deepinfer::Run(std::vector<std::string>(argv, argv + argc));
}
