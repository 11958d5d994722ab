// Sessions over gRPC, the only file that includes it for them.

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include <cluster.grpc.pb.h>
#include "cluster/grpc_deadline.h"
#include "cluster/session.h"

namespace deepinfer {

namespace {

// docs/cluster.md §3: a dead link is noticed within six seconds even when nobody speaks.
constexpr int kKeepaliveMs = 2000;
constexpr int kKeepaliveTimeoutMs = 4000;
// A prompt of a million ids takes three bytes each.
constexpr int kMaxMessageBytes = 64 << 20;
// More than every live request can have on the way under its delivery window.
constexpr size_t kMaxQueued = 200'000;

// The name in every certificate of a cluster, whatever the host is called.
constexpr const char* kSecureName = "deepinfer";

std::shared_ptr<grpc::ServerCredentials> ServerCredentialsOf(const SecurityPtr& security) {
  if (security == nullptr) return grpc::InsecureServerCredentials();
  grpc::SslServerCredentialsOptions options(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = security->authority;
  options.pem_key_cert_pairs.push_back({security->key, security->certificate});
  return grpc::SslServerCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> ChannelCredentialsOf(const SecurityPtr& security) {
  if (security == nullptr) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = security->authority;
  options.pem_private_key = security->key;
  options.pem_cert_chain = security->certificate;
  return grpc::SslCredentials(options);
}

// The queue and the thread that writes it; Stream is one side of a bidirectional call.
template <typename Stream>
class QueuedSession : public Session {
 public:
  bool Receive(wire::Message* message) override { return stream_->Read(message); }

  void Send(wire::Message message) override {
    {
      const std::lock_guard lock(mutex_);
      if (closed_) return;
      if (message.has_tokens() && !queue_.empty() && queue_.back().has_tokens()) {
        // What waits to be written goes out in one message.
        for (wire::TokenEvent& event : *message.mutable_tokens()->mutable_events()) {
          queue_.back().mutable_tokens()->add_events()->Swap(&event);
        }
      } else {
        queue_.push_back(std::move(message));
      }
      if (queue_.size() <= kMaxQueued) {
        changed_.notify_one();
        return;
      }
    }
    Close();
  }

  void Close() override {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    changed_.notify_one();
    Abort();
  }

 protected:
  explicit QueuedSession(Stream* stream) : stream_(stream) {}
  void StartWriting() {
    writer_ = std::thread([this] { Write(); });
  }
  void StopWriting() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    changed_.notify_one();
    if (writer_.joinable()) writer_.join();
  }
  // Ends the call at once, from any thread.
  virtual void Abort() = 0;

 private:
  void Write() {
    while (true) {
      wire::Message message;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return closed_ || !queue_.empty(); });
        if (queue_.empty()) return;
        message = std::move(queue_.front());
        queue_.pop_front();
      }
      if (!stream_->Write(message)) {
        Close();
        return;
      }
    }
  }

  Stream* const stream_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<wire::Message> queue_;
  bool closed_ = false;
  std::thread writer_;
};

using ClientStream = grpc::ClientReaderWriter<wire::Message, wire::Message>;
using ServerStream = grpc::ServerReaderWriter<wire::Message, wire::Message>;

class ClientCall {
 protected:
  explicit ClientCall(const std::shared_ptr<grpc::Channel>& channel)
      : stub_(wire::Peer::NewStub(channel)), call_(stub_->Session(&context_)) {}

  grpc::ClientContext context_;
  std::unique_ptr<wire::Peer::Stub> stub_;
  std::unique_ptr<ClientStream> call_;
};

class ClientSession final : private ClientCall, public QueuedSession<ClientStream> {
 public:
  explicit ClientSession(const std::shared_ptr<grpc::Channel>& channel)
      : ClientCall(channel), QueuedSession(call_.get()) {
    StartWriting();
  }
  ~ClientSession() override {
    context_.TryCancel();
    StopWriting();
    (void)call_->Finish();
  }

 private:
  void Abort() override { context_.TryCancel(); }
};

class ServerSession final : public QueuedSession<ServerStream> {
 public:
  ServerSession(grpc::ServerContext* context, ServerStream* stream)
      : QueuedSession(stream), context_(context) {
    StartWriting();
  }
  // What is queued is still written unless the session was closed.
  ~ServerSession() override { StopWriting(); }

 private:
  void Abort() override { context_->TryCancel(); }

  grpc::ServerContext* const context_;
};

class GrpcSessionServer final : public SessionServer, private wire::Peer::Service {
 public:
  GrpcSessionServer(std::function<void(deepinfer::Session*)> serve, bool secure)
      : serve_(std::move(serve)), secure_(secure) {}
  ~GrpcSessionServer() override { Shutdown(); }

  Status Start(const std::string& endpoint, const SecurityPtr& security) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(endpoint, ServerCredentialsOf(security), &port);
    builder.RegisterService(this);
    builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || (port == 0 && !endpoint.starts_with("unix:"))) {
      return Unavailable("cannot listen on " + endpoint);
    }
    endpoint_ = endpoint;
    const size_t colon = endpoint.rfind(':');
    if (!endpoint.starts_with("unix:")) {
      endpoint_ = endpoint.substr(0, colon + 1) + std::to_string(port);
    }
    return OkStatus();
  }

  const std::string& endpoint() const override { return endpoint_; }

  void Shutdown() override {
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
    server_.reset();
  }

 private:
  grpc::Status Session(grpc::ServerContext* context, ServerStream* stream) override {
    // gRPC has checked the chain; the authority may sign for others than this cluster too.
    const auto names = context->auth_context()->FindPropertyValues(GRPC_X509_SAN_PROPERTY_NAME);
    if (secure_ && std::find(names.begin(), names.end(), kSecureName) == names.end()) {
      return {grpc::StatusCode::UNAUTHENTICATED, "the certificate is not for the name deepinfer"};
    }
    ServerSession session(context, stream);
    serve_(&session);
    return grpc::Status::OK;
  }

  const std::function<void(deepinfer::Session*)> serve_;
  const bool secure_;
  std::string endpoint_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

Result<std::unique_ptr<Session>> DialSession(const std::string& endpoint,
                                             std::chrono::milliseconds limit,
                                             const SecurityPtr& security) {
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(kMaxMessageBytes);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  if (security != nullptr) args.SetSslTargetNameOverride(kSecureName);
  const auto channel = grpc::CreateCustomChannel(endpoint, ChannelCredentialsOf(security), args);
  if (!channel->WaitForConnected(DeadlineIn(limit))) {
    return Unavailable("no connection to " + endpoint);
  }
  return std::unique_ptr<Session>(new ClientSession(channel));
}

Result<std::unique_ptr<SessionServer>> SessionServer::Listen(const std::string& endpoint,
                                                             std::function<void(Session*)> serve,
                                                             const SecurityPtr& security) {
  auto server = std::make_unique<GrpcSessionServer>(std::move(serve), security != nullptr);
  DI_RETURN_IF_ERROR(server->Start(endpoint, security));
  return std::unique_ptr<SessionServer>(std::move(server));
}

}  // namespace deepinfer
