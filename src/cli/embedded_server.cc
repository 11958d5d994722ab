#include "cli/embedded_server.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>
#include <utility>

#include "cli/effective_config.h"
#include "server/request_id.h"

namespace deepinfer {

EmbeddedCall::EmbeddedCall(HttpHandler* handler, HttpRequest request) : handler_(handler) {
  std::optional<HttpResponse> refusal = handler_->Admit(request);
  exchange_ = std::make_shared<HttpExchange>(std::move(request));
  exchange_->SetWake([this] {
    // Notified under the lock: the caller may take the last piece and let go of this object.
    const std::lock_guard lock(mutex_);
    woken_ = true;
    changed_.notify_all();
  });
  if (refusal) {
    exchange_->Respond(std::move(*refusal));
  } else {
    handler_->Handle(exchange_);
  }
}

EmbeddedCall::~EmbeddedCall() {
  if (!ended_) End(/*client_gone=*/true);
}

void EmbeddedCall::Cancel() {
  exchange_->MarkDisconnected();
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
  changed_.notify_all();
}

void EmbeddedCall::End(bool client_gone) {
  ended_ = true;
  exchange_->SetWake({});
  if (client_gone) {
    exchange_->MarkDisconnected();
  } else {
    exchange_->MarkDelivered();
  }
  HttpOutcome outcome;
  outcome.status = status_ == 0 ? 499 : status_;
  outcome.response_bytes = num_bytes_;
  outcome.client_gone = client_gone;
  outcome.duration = std::chrono::steady_clock::now() - exchange_->request().received;
  handler_->Done(exchange_->request(), outcome);
}

void EmbeddedCall::TakeOutput() {
  HttpExchange::Output output = exchange_->Take();
  if (output.head) {
    status_ = output.head->status;
    if (!output.streaming) pieces_.push_back(std::move(output.head->body));
  }
  for (HttpExchange::Chunk& chunk : output.chunks) pieces_.push_back(std::move(chunk.bytes));
  finished_ = output.finished || (output.head && !output.streaming);
}

EmbeddedCall::Step EmbeddedCall::Next(std::chrono::milliseconds timeout, std::string* piece) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (pieces_.empty() && !finished_ && !ended_) {
    {
      std::unique_lock lock(mutex_);
      const bool is_due =
          changed_.wait_until(lock, deadline, [this] { return woken_ || cancelled_; });
      if (!is_due) return Step::kPending;
      woken_ = false;
      if (cancelled_) break;
    }
    TakeOutput();
  }
  if (!pieces_.empty()) {
    *piece = std::move(pieces_.front());
    pieces_.pop_front();
    num_bytes_ += piece->size();
    return Step::kPiece;
  }
  if (!ended_) End(/*client_gone=*/!finished_);
  return Step::kEnd;
}

Result<std::unique_ptr<EmbeddedServer>> EmbeddedServer::Start(std::vector<std::string> flags) {
  std::unique_ptr<EmbeddedServer> embedded(new EmbeddedServer());
  CLI::App app;
  embedded->flags_.Register(&app);
  try {
    // The parser takes arguments from the back.
    std::reverse(flags.begin(), flags.end());
    app.parse(std::move(flags));
  } catch (const CLI::Error& error) {
    return InvalidRequest(error.what());
  }
  ServeFlags& parsed = embedded->flags_;
  parsed.server.config_hash = ConfigHash(EffectiveConfig(app, {}));
  parsed.server.listens = false;
  InitLogging(parsed.log_level(), parsed.log_format());
  DI_ASSIGN_OR_RETURN(const std::filesystem::path dir, parsed.model.ModelDir());
  DI_RETURN_IF_ERROR(parsed.Finish(dir));
  DI_ASSIGN_OR_RETURN(embedded->server_, Server::Start(parsed.server, &embedded->progress_));
  embedded->serving_.model_revision = parsed.model_revision;
  DI_RETURN_IF_ERROR(LoadAndAttach(
      dir,
      [&parsed](const std::filesystem::path& from, LoadProgress* progress, Serving* serving) {
        return LoadAllInOne(from, parsed, progress, serving);
      },
      &embedded->progress_, &embedded->serving_, embedded->server_.get()));
  return embedded;
}

EmbeddedServer::~EmbeddedServer() {
  if (server_) server_->Stop();
}

std::shared_ptr<EmbeddedCall> EmbeddedServer::Call(std::string method, std::string path,
                                                   std::string body) {
  HttpRequest request;
  request.method = std::move(method);
  request.path = std::move(path);
  request.body = std::move(body);
  request.request_id = MakeRandomId("req_");
  request.received = std::chrono::steady_clock::now();
  return std::make_shared<EmbeddedCall>(server_->handler(), std::move(request));
}

}  // namespace deepinfer
