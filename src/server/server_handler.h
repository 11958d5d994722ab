// Between sockets and routes: finds the route, checks key and state, picks the thread, and turns
// the finished request into its log line and metrics.
// Thread rule: as HttpHandler. Owner: server/server.cc.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "server/http.h"
#include "server/routes.h"
#include "server/server_state.h"

namespace deepinfer {

class ServerHandler final : public HttpHandler {
 public:
  // state is borrowed and outlives the handler.
  explicit ServerHandler(ServerState* state) : state_(state) {}

  std::optional<HttpResponse> Admit(HttpRequest& request) override;
  void Handle(std::shared_ptr<HttpExchange> exchange) override;
  void Done(const HttpRequest& request, const HttpOutcome& outcome) override;
  HttpResponse Error(const HttpRequest& request, int status, std::string_view code,
                     std::string_view message) override;
  void OnLoopDelay(std::chrono::nanoseconds delay) override;

 private:
  void AddCorsHeaders(HttpRequest& request) const;
  std::optional<HttpResponse> Preflight(const HttpRequest& request, const RouteMatch& match) const;
  std::optional<HttpResponse> CheckKey(HttpRequest& request);
  // Concurrency and rates of the key; takes what the request needs of them.
  std::optional<HttpResponse> CheckLimits(HttpRequest& request);
  std::optional<HttpResponse> CheckState(const HttpRequest& request);

  ServerState* state_;
};

}  // namespace deepinfer
