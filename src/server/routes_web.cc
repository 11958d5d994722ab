// GET /, /chat, /dashboard and /assets/{name}: the pages of web/. They hold no data: what they show
// comes from other routes, with the key that the reader enters.
#include <algorithm>
#include <string>
#include <utility>

#include "server/error_response.h"
#include "server/routes.h"
#include "server/server_state.h"
#include "server/web_assets.h"

namespace deepinfer {
namespace {

// Nothing from elsewhere, nothing inline, in nobody's frame.
constexpr const char* kContentSecurityPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

std::string ContentTypeOf(std::string_view name) {
  if (name.ends_with(".html")) return "text/html; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  if (name.ends_with(".svg")) return "image/svg+xml";
  return "text/javascript; charset=utf-8";
}

void RespondAsset(HttpExchange& exchange, std::string_view name) {
  const auto assets = WebAssets();
  const auto found = std::find_if(assets.begin(), assets.end(),
                                  [&](const WebAsset& asset) { return asset.name == name; });
  if (found == assets.end()) {
    return RespondError(
        exchange, ServeError(404, "invalid_request_error", "unknown_url", "There is no such file"));
  }
  HttpResponse response;
  response.content_type = ContentTypeOf(name);
  response.headers = {{"Content-Security-Policy", kContentSecurityPolicy},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cache-Control", "no-cache"}};
  response.body = std::string(found->bytes);
  exchange.Respond(std::move(response));
}

}  // namespace

void HandleChatPage(ServerState&, const std::shared_ptr<HttpExchange>& exchange) {
  RespondAsset(*exchange, "chat.html");
}

void HandleDashboardPage(ServerState&, const std::shared_ptr<HttpExchange>& exchange) {
  RespondAsset(*exchange, "dashboard.html");
}

void HandleWebAsset(ServerState&, const std::shared_ptr<HttpExchange>& exchange) {
  const HttpRequest& request = exchange->request();
  RespondAsset(*exchange, std::string_view(request.path).substr(request.route->path.size()));
}

}  // namespace deepinfer
