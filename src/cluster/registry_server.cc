// The dev registry over gRPC.

#include "cluster/registry_server.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <utility>

#include <etcd.grpc.pb.h>
#include "cluster/key_store.h"

namespace deepinfer {

namespace {

namespace etcd = etcdserverpb;

// How often a watch looks whether its client is still there.
constexpr std::chrono::milliseconds kWatchLook{100};

KeyRange RangeOf(const auto& request) { return {request.key(), request.range_end()}; }

void Fill(const std::string& key, const StoredKey& stored, etcd::KeyValue* out) {
  out->set_key(key);
  out->set_value(stored.value);
  out->set_create_revision(stored.create_revision);
  out->set_mod_revision(stored.mod_revision);
  out->set_version(stored.version);
  out->set_lease(stored.lease);
}

grpc::Status NoLease() {
  return {grpc::StatusCode::NOT_FOUND, "etcdserver: requested lease not found"};
}

void DoRange(const KeyStore::Batch& batch, const etcd::RangeRequest& request,
             etcd::RangeResponse* response) {
  for (const auto& [key, stored] : batch.Range(RangeOf(request))) {
    Fill(key, stored, response->add_kvs());
  }
  response->set_count(response->kvs_size());
}

bool Holds(const KeyStore::Batch& batch, const etcd::Compare& compare) {
  const auto found = batch.Range({compare.key(), ""});
  const StoredKey stored = found.empty() ? StoredKey{} : found.front().second;
  int order = 0;
  const auto against = [&](int64_t have, int64_t want) { order = (have > want) - (have < want); };
  switch (compare.target()) {
    case etcd::Compare::CREATE:
      against(stored.create_revision, compare.create_revision());
      break;
    case etcd::Compare::MOD:
      against(stored.mod_revision, compare.mod_revision());
      break;
    case etcd::Compare::VALUE:
      if (found.empty()) return false;
      order = stored.value.compare(compare.value());
      break;
    default:
      against(stored.version, compare.version());
  }
  switch (compare.result()) {
    case etcd::Compare::GREATER:
      return order > 0;
    case etcd::Compare::LESS:
      return order < 0;
    case etcd::Compare::NOT_EQUAL:
      return order != 0;
    default:
      return order == 0;
  }
}

class KvService final : public etcd::KV::Service {
 public:
  explicit KvService(KeyStore* store) : store_(store) {}

  grpc::Status Range(grpc::ServerContext*, const etcd::RangeRequest* request,
                     etcd::RangeResponse* response) override {
    const KeyStore::Batch batch(store_);
    DoRange(batch, *request, response);
    response->mutable_header()->set_revision(batch.revision());
    return grpc::Status::OK;
  }

  grpc::Status Put(grpc::ServerContext*, const etcd::PutRequest* request,
                   etcd::PutResponse* response) override {
    KeyStore::Batch batch(store_);
    if (!batch.Put(request->key(), request->value(), request->lease())) return NoLease();
    response->mutable_header()->set_revision(batch.revision());
    return grpc::Status::OK;
  }

  grpc::Status DeleteRange(grpc::ServerContext*, const etcd::DeleteRangeRequest* request,
                           etcd::DeleteRangeResponse* response) override {
    KeyStore::Batch batch(store_);
    response->set_deleted(batch.Delete(RangeOf(*request)));
    response->mutable_header()->set_revision(batch.revision());
    return grpc::Status::OK;
  }

  grpc::Status Txn(grpc::ServerContext*, const etcd::TxnRequest* request,
                   etcd::TxnResponse* response) override {
    KeyStore::Batch batch(store_);
    bool holds = true;
    for (const etcd::Compare& compare : request->compare()) holds = holds && Holds(batch, compare);
    response->set_succeeded(holds);
    for (const etcd::RequestOp& op : holds ? request->success() : request->failure()) {
      etcd::ResponseOp* out = response->add_responses();
      if (op.has_request_range()) {
        DoRange(batch, op.request_range(), out->mutable_response_range());
      } else if (op.has_request_put()) {
        const etcd::PutRequest& put = op.request_put();
        if (!batch.Put(put.key(), put.value(), put.lease())) return NoLease();
        (void)out->mutable_response_put();
      } else if (op.has_request_delete_range()) {
        const int64_t deleted = batch.Delete(RangeOf(op.request_delete_range()));
        out->mutable_response_delete_range()->set_deleted(deleted);
      }
    }
    response->mutable_header()->set_revision(batch.revision());
    return grpc::Status::OK;
  }

 private:
  KeyStore* const store_;
};

class LeaseService final : public etcd::Lease::Service {
 public:
  explicit LeaseService(KeyStore* store) : store_(store) {}

  grpc::Status LeaseGrant(grpc::ServerContext*, const etcd::LeaseGrantRequest* request,
                          etcd::LeaseGrantResponse* response) override {
    if (request->ttl() < 1 || request->ttl() > kMostTtlS) {
      return {grpc::StatusCode::INVALID_ARGUMENT, "TTL must be between 1 and 9000000000 s"};
    }
    const std::optional<int64_t> id = store_->GrantLease(request->ttl(), request->id());
    if (!id) return {grpc::StatusCode::FAILED_PRECONDITION, "the lease exists"};
    response->set_id(*id);
    response->set_ttl(request->ttl());
    return grpc::Status::OK;
  }

  grpc::Status LeaseRevoke(grpc::ServerContext*, const etcd::LeaseRevokeRequest* request,
                           etcd::LeaseRevokeResponse*) override {
    return store_->RevokeLease(request->id()) ? grpc::Status::OK : NoLease();
  }

  grpc::Status LeaseKeepAlive(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<etcd::LeaseKeepAliveResponse, etcd::LeaseKeepAliveRequest>* stream)
      override {
    etcd::LeaseKeepAliveRequest request;
    while (stream->Read(&request)) {
      etcd::LeaseKeepAliveResponse response;
      response.set_id(request.id());
      response.set_ttl(store_->KeepAlive(request.id()));
      if (!stream->Write(response)) break;
    }
    return grpc::Status::OK;
  }

 private:
  static constexpr int64_t kMostTtlS = 9'000'000'000;  // etcd's
  KeyStore* const store_;
};

class WatchService final : public etcd::Watch::Service {
 public:
  explicit WatchService(KeyStore* store) : store_(store) {}
  void Stop() { stop_.store(true); }

  // One watch a stream, which is all that the client makes.
  grpc::Status Watch(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<etcd::WatchResponse, etcd::WatchRequest>* stream) override {
    etcd::WatchRequest request;
    if (!stream->Read(&request) || !request.has_create_request()) return grpc::Status::OK;
    const KeyRange range = RangeOf(request.create_request());
    int64_t from = request.create_request().start_revision();
    etcd::WatchResponse created;
    created.set_created(true);
    {
      const KeyStore::Batch batch(store_);
      created.mutable_header()->set_revision(batch.revision());
      if (from == 0) from = batch.revision() + 1;
    }
    if (!stream->Write(created)) return grpc::Status::OK;
    while (!context->IsCancelled() && !stop_.load()) {
      store_->Sweep();
      const std::optional<KeyStore::Changes> changes = store_->Wait(range, from, kWatchLook);
      etcd::WatchResponse response;
      if (!changes) {
        response.set_canceled(true);
        response.set_compact_revision(from);
        (void)stream->Write(response);
        return grpc::Status::OK;
      }
      from = changes->revision + 1;
      if (changes->events.empty()) continue;
      response.mutable_header()->set_revision(changes->revision);
      for (const RegistryEvent& event : changes->events) {
        etcd::Event* out = response.add_events();
        out->set_type(event.deleted ? etcd::Event::DELETE : etcd::Event::PUT);
        out->mutable_kv()->set_key(event.entry.key);
        out->mutable_kv()->set_value(event.entry.value);
        out->mutable_kv()->set_mod_revision(event.entry.mod_revision);
        out->mutable_kv()->set_lease(event.entry.lease);
      }
      if (!stream->Write(response)) break;
    }
    return grpc::Status::OK;
  }

 private:
  KeyStore* const store_;
  std::atomic<bool> stop_{false};
};

class GrpcRegistryServer final : public RegistryServer {
 public:
  explicit GrpcRegistryServer(const Clock* clock)
      : store_(clock), kv_(&store_), lease_(&store_), watch_(&store_) {}
  ~GrpcRegistryServer() override {
    if (server_ == nullptr) return;
    watch_.Stop();
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }

  Status Start(const std::string& endpoint) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(endpoint, grpc::InsecureServerCredentials(), &port);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
    builder.RegisterService(&kv_);
    builder.RegisterService(&lease_);
    builder.RegisterService(&watch_);
    server_ = builder.BuildAndStart();
    const bool is_unix = endpoint.starts_with("unix:");
    if (server_ == nullptr || (port == 0 && !is_unix)) {
      return Unavailable("cannot listen on " + endpoint);
    }
    endpoint_ =
        is_unix ? endpoint : endpoint.substr(0, endpoint.rfind(':') + 1) + std::to_string(port);
    return OkStatus();
  }

  const std::string& endpoint() const override { return endpoint_; }

 private:
  KeyStore store_;
  KvService kv_;
  LeaseService lease_;
  WatchService watch_;
  std::string endpoint_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

Result<std::unique_ptr<RegistryServer>> RegistryServer::Listen(const std::string& endpoint,
                                                               const Clock* clock) {
  auto server = std::make_unique<GrpcRegistryServer>(clock);
  DI_RETURN_IF_ERROR(server->Start(endpoint));
  return std::unique_ptr<RegistryServer>(std::move(server));
}

}  // namespace deepinfer
