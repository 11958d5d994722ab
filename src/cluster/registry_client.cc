// The client of the registry over gRPC, the only file that includes it for that.

#include <grpcpp/grpcpp.h>

#include <utility>

#include <etcd.grpc.pb.h>
#include "cluster/grpc_deadline.h"
#include "cluster/registry.h"
#include "cluster/registry_keys.h"

namespace deepinfer {

namespace {

namespace etcd = etcdserverpb;

// A registry that came back is found soon.
constexpr int kLeastBackoffMs = 200;
constexpr int kMostBackoffMs = 2000;
constexpr int kConnectMs = 2000;
// etcd closes connections that ping more often than every five seconds.
constexpr int kKeepaliveMs = 10'000;
constexpr int kKeepaliveTimeoutMs = 4000;

RegistryEntry EntryOf(const etcd::KeyValue& kv) {
  return {kv.key(), kv.value(), kv.mod_revision(), kv.lease()};
}

Status StatusOf(const grpc::Status& status) {
  if (status.ok()) return OkStatus();
  if (status.error_code() == grpc::StatusCode::NOT_FOUND) return NotFound(status.error_message());
  if (status.error_code() == grpc::StatusCode::INVALID_ARGUMENT) {
    return InvalidRequest(status.error_message());
  }
  return Unavailable("the registry: " + status.error_message());
}

class GrpcWatch final : public RegistryWatch {
 public:
  GrpcWatch(const std::shared_ptr<grpc::Channel>& channel, const std::string& prefix,
            int64_t after_revision)
      : stub_(etcd::Watch::NewStub(channel)), stream_(stub_->Watch(&context_)) {
    etcd::WatchRequest request;
    etcd::WatchCreateRequest* create = request.mutable_create_request();
    create->set_key(prefix);
    create->set_range_end(PrefixEnd(prefix));
    create->set_start_revision(after_revision + 1);
    (void)stream_->Write(request);
  }
  ~GrpcWatch() override {
    Stop();
    (void)stream_->Finish();
  }

  std::optional<std::vector<RegistryEvent>> Next() override {
    etcd::WatchResponse response;
    while (stream_->Read(&response)) {
      if (response.canceled() || response.compact_revision() != 0) return std::nullopt;
      std::vector<RegistryEvent> events;
      for (const etcd::Event& event : response.events()) {
        events.push_back({event.type() == etcd::Event::DELETE, EntryOf(event.kv())});
      }
      if (!events.empty()) return events;
    }
    return std::nullopt;
  }
  void Stop() override { context_.TryCancel(); }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<etcd::Watch::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<etcd::WatchRequest, etcd::WatchResponse>> stream_;
};

class GrpcRegistry final : public Registry {
 public:
  GrpcRegistry(const std::string& endpoint, std::chrono::milliseconds limit) : limit_(limit) {
    grpc::ChannelArguments args;
    args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kLeastBackoffMs);
    args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectMs);
    args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMostBackoffMs);
    args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
    args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
    args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    channel_ = grpc::CreateCustomChannel(endpoint, grpc::InsecureChannelCredentials(), args);
    kv_ = etcd::KV::NewStub(channel_);
    lease_ = etcd::Lease::NewStub(channel_);
  }

  Status Put(const std::string& key, const std::string& value, int64_t lease) override {
    etcd::PutRequest request;
    FillPut(key, value, lease, &request);
    etcd::PutResponse response;
    return Call([&](auto* context) { return kv_->Put(context, request, &response); });
  }

  Result<bool> CompareAndPut(const std::string& key, int64_t mod_revision, const std::string& value,
                             int64_t lease) override {
    etcd::TxnRequest request;
    etcd::Compare* compare = request.add_compare();
    compare->set_target(etcd::Compare::MOD);
    compare->set_key(key);
    compare->set_mod_revision(mod_revision);
    FillPut(key, value, lease, request.add_success()->mutable_request_put());
    etcd::TxnResponse response;
    DI_RETURN_IF_ERROR(Call([&](auto* context) { return kv_->Txn(context, request, &response); }));
    return response.succeeded();
  }

  Result<std::optional<RegistryEntry>> Get(const std::string& key) override {
    DI_ASSIGN_OR_RETURN(const RegistryList list, Range(key, {}));
    if (list.entries.empty()) return std::optional<RegistryEntry>();
    return std::optional(list.entries.front());
  }

  Result<RegistryList> List(const std::string& prefix) override {
    return Range(prefix, PrefixEnd(prefix));
  }

  Status Delete(const std::string& key) override {
    etcd::DeleteRangeRequest request;
    request.set_key(key);
    etcd::DeleteRangeResponse response;
    return Call([&](auto* context) { return kv_->DeleteRange(context, request, &response); });
  }

  Result<int64_t> GrantLease(std::chrono::seconds ttl) override {
    etcd::LeaseGrantRequest request;
    request.set_ttl(ttl.count());
    etcd::LeaseGrantResponse response;
    DI_RETURN_IF_ERROR(
        Call([&](auto* context) { return lease_->LeaseGrant(context, request, &response); }));
    return response.id();
  }

  Result<std::chrono::seconds> KeepAlive(int64_t lease) override {
    etcd::LeaseKeepAliveRequest request;
    request.set_id(lease);
    etcd::LeaseKeepAliveResponse response;
    DI_RETURN_IF_ERROR(Call([&](auto* context) {
      const auto stream = lease_->LeaseKeepAlive(context);
      const bool answered = stream->Write(request) && stream->Read(&response);
      if (answered) context->TryCancel();
      const grpc::Status status = stream->Finish();
      return answered ? grpc::Status::OK : status;
    }));
    if (response.ttl() <= 0) return NotFound("the lease is over");
    return std::chrono::seconds(response.ttl());
  }

  Status RevokeLease(int64_t lease) override {
    etcd::LeaseRevokeRequest request;
    request.set_id(lease);
    etcd::LeaseRevokeResponse response;
    return Call([&](auto* context) { return lease_->LeaseRevoke(context, request, &response); });
  }

  Result<std::unique_ptr<RegistryWatch>> Watch(const std::string& prefix,
                                               int64_t after_revision) override {
    if (!channel_->WaitForConnected(DeadlineIn(limit_))) {
      return Unavailable("the registry does not answer");
    }
    return std::unique_ptr<RegistryWatch>(new GrpcWatch(channel_, prefix, after_revision));
  }

 private:
  static void FillPut(const std::string& key, const std::string& value, int64_t lease,
                      etcd::PutRequest* request) {
    request->set_key(key);
    request->set_value(value);
    request->set_lease(lease);
  }

  template <typename Rpc>
  Status Call(Rpc rpc) {
    grpc::ClientContext context;
    context.set_deadline(DeadlineIn(limit_));
    // A connection is only made while a call waits for it: one that failed at once would leave it
    // half made for ever.
    context.set_wait_for_ready(true);
    return StatusOf(rpc(&context));
  }

  Result<RegistryList> Range(const std::string& key, const std::string& end) {
    etcd::RangeRequest request;
    request.set_key(key);
    request.set_range_end(end);
    etcd::RangeResponse response;
    DI_RETURN_IF_ERROR(
        Call([&](auto* context) { return kv_->Range(context, request, &response); }));
    RegistryList list;
    list.revision = response.header().revision();
    for (const etcd::KeyValue& kv : response.kvs()) list.entries.push_back(EntryOf(kv));
    return list;
  }

  const std::chrono::milliseconds limit_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<etcd::KV::Stub> kv_;
  std::unique_ptr<etcd::Lease::Stub> lease_;
};

}  // namespace

std::unique_ptr<Registry> MakeRegistryClient(const std::string& endpoint,
                                             std::chrono::milliseconds limit) {
  return std::make_unique<GrpcRegistry>(endpoint, limit);
}

}  // namespace deepinfer
