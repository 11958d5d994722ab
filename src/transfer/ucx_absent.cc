// A build without the headers of UCX.

#include "transfer/ucx.h"

namespace deepinfer {

namespace {

Status Absent() {
  return Unsupported(
      "this build has no UCX: install libucx-dev and build again, or choose another "
      "--transport");
}

}  // namespace

class UcxServer::Impl {};

bool HasUcx() { return false; }

Result<UcxContextPtr> OpenUcx(const UcxOptions&) { return Absent(); }

Result<std::unique_ptr<UcxServer>> UcxServer::Start(UcxContextPtr, LandingTable*,
                                                    DataServer::OnExtent) {
  return Absent();
}

UcxServer::UcxServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
UcxServer::~UcxServer() = default;

const std::string& UcxServer::address() const {
  static const std::string kNone;
  return kNone;
}

Result<std::unique_ptr<ExtentPath>> OpenUcxPath(UcxContextPtr, const std::string&, SocketDeadline) {
  return Absent();
}

}  // namespace deepinfer
