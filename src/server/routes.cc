#include "server/routes.h"

#include <algorithm>
#include <iterator>

#include "base/utf8.h"
#include "server/server_options.h"

namespace deepinfer {
namespace {

constexpr Route kRoutes[] = {
    {.name = "/v1/chat/completions",
     .method = "POST",
     .path = "/chat/completions",
     .pool = RoutePool::kPrepare,
     .handle = HandleChatCompletions,
     .needs_model = true,
     .generates = true},
    {.name = "/v1/completions",
     .method = "POST",
     .path = "/completions",
     .pool = RoutePool::kPrepare,
     .handle = HandleCompletions,
     .needs_model = true,
     .generates = true},
    {.name = "/v1/chat/completions/render",
     .method = "POST",
     .path = "/chat/completions/render",
     .pool = RoutePool::kTokenize,
     .handle = HandleChatRender,
     .needs_model = true},
    {.name = "/v1/completions/render",
     .method = "POST",
     .path = "/completions/render",
     .pool = RoutePool::kTokenize,
     .handle = HandleCompletionsRender,
     .needs_model = true},
    {.name = "/v1/messages",
     .method = "POST",
     .path = "/messages",
     .pool = RoutePool::kPrepare,
     .handle = HandleMessages,
     .needs_model = true,
     .generates = true},
    {.name = "/v1/messages/count_tokens",
     .method = "POST",
     .path = "/messages/count_tokens",
     .pool = RoutePool::kTokenize,
     .handle = HandleCountTokens,
     .needs_model = true},
    {.name = "/v1/messages/render",
     .method = "POST",
     .path = "/messages/render",
     .pool = RoutePool::kTokenize,
     .handle = HandleMessagesRender,
     .needs_model = true},
    {.name = "/v1/responses",
     .method = "POST",
     .path = "/responses",
     .pool = RoutePool::kPrepare,
     .handle = HandleResponses,
     .needs_model = true,
     .generates = true},
    {.name = "/v1/responses/render",
     .method = "POST",
     .path = "/responses/render",
     .pool = RoutePool::kTokenize,
     .handle = HandleResponsesRender,
     .needs_model = true},
    {.name = "/v1/models",
     .method = "GET",
     .path = "/models",
     .pool = RoutePool::kInline,
     .handle = HandleModels,
     .needs_model = true},
    {.name = "/v1/models/{id}",
     .method = "GET",
     .path = "/models/",
     .pool = RoutePool::kInline,
     .handle = HandleModel,
     .takes_suffix = true,
     .needs_model = true},
    {.name = "/tokenize",
     .method = "POST",
     .path = "/tokenize",
     .pool = RoutePool::kTokenize,
     .handle = HandleTokenize,
     .needs_model = true},
    {.name = "/detokenize",
     .method = "POST",
     .path = "/detokenize",
     .pool = RoutePool::kTokenize,
     .handle = HandleDetokenize,
     .needs_model = true},
    {.name = "/tokenizer_info",
     .method = "GET",
     .path = "/tokenizer_info",
     .pool = RoutePool::kInline,
     .handle = HandleTokenizerInfo,
     .needs_model = true},
    {.name = "/live",
     .method = "GET",
     .path = "/live",
     .pool = RoutePool::kInline,
     .handle = HandleLive,
     .needs_key = false},
    {.name = "/health",
     .method = "GET",
     .path = "/health",
     .pool = RoutePool::kInline,
     .handle = HandleHealth,
     .needs_key = false},
    {.name = "/ping",
     .method = "GET",
     .path = "/ping",
     .pool = RoutePool::kInline,
     .handle = HandleHealth,
     .needs_key = false},
    {.name = "/ready",
     .method = "GET",
     .path = "/ready",
     .pool = RoutePool::kInline,
     .handle = HandleReady,
     .needs_key = false},
    {.name = "/health_generate",
     .method = "GET",
     .path = "/health_generate",
     .pool = RoutePool::kInline,
     .handle = HandleHealthGenerate},
    {.name = "/version",
     .method = "GET",
     .path = "/version",
     .pool = RoutePool::kInline,
     .handle = HandleVersion},
    {.name = "/metrics",
     .method = "GET",
     .path = "/metrics",
     .pool = RoutePool::kInline,
     .handle = HandleMetrics},
    {.name = "/openapi.json",
     .method = "GET",
     .path = "/openapi.json",
     .pool = RoutePool::kInline,
     .handle = HandleOpenApi},
    {.name = "/user/balance",
     .method = "GET",
     .path = "/user/balance",
     .pool = RoutePool::kInline,
     .handle = HandleBalance,
     .flag = &ServerOptions::balance_endpoint},
    {.name = "/",
     .method = "GET",
     .path = "/",
     .pool = RoutePool::kInline,
     .handle = HandleChatPage,
     .needs_key = false,
     .is_page = true,
     .flag = &ServerOptions::web_pages},
    {.name = "/chat",
     .method = "GET",
     .path = "/chat",
     .pool = RoutePool::kInline,
     .handle = HandleChatPage,
     .needs_key = false,
     .is_page = true,
     .flag = &ServerOptions::web_pages},
    {.name = "/dashboard",
     .method = "GET",
     .path = "/dashboard",
     .pool = RoutePool::kInline,
     .handle = HandleDashboardPage,
     .needs_key = false,
     .is_page = true,
     .flag = &ServerOptions::web_pages},
    {.name = "/assets/{name}",
     .method = "GET",
     .path = "/assets/",
     .pool = RoutePool::kInline,
     .handle = HandleWebAsset,
     .takes_suffix = true,
     .needs_key = false,
     .is_page = true,
     .flag = &ServerOptions::web_pages},
    {.name = "/debug/prefix/{request_id}",
     .method = "GET",
     .path = "/debug/prefix/",
     .pool = RoutePool::kTokenize,
     .handle = HandleDebugPrefix,
     .takes_suffix = true,
     .needs_model = true,
     .needs_admin = true,
     .flag = &ServerOptions::debug_endpoints},
    {.name = "/profile",
     .method = "POST",
     .path = "/profile",
     .pool = RoutePool::kTokenize,
     .handle = HandleProfile,
     .needs_model = true,
     .needs_admin = true,
     .flag = &ServerOptions::debug_endpoints},
};

// Routes of the public APIs that clients try; they get their own error code.
constexpr std::string_view kKnownElsewhere[] = {
    "/embeddings", "/audio",   "/images",   "/moderations",   "/batches",  "/fine_tuning",
    "/assistants", "/threads", "/uploads",  "/vector_stores", "/realtime", "/rerank",
    "/score",      "/pooling", "/classify", "/conversations", "/evals",    "/containers",
};

bool StripPrefix(std::string_view prefix, std::string_view* path) {
  if (!path->starts_with(prefix) || path->size() == prefix.size() ||
      (*path)[prefix.size()] != '/') {
    return false;
  }
  path->remove_prefix(prefix.size());
  return true;
}

bool IsKnownElsewhere(std::string_view path) {
  return std::any_of(std::begin(kKnownElsewhere), std::end(kKnownElsewhere),
                     [&](std::string_view known) {
                       return path.starts_with(known) &&
                              (path.size() == known.size() || path[known.size()] == '/');
                     });
}

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::string PercentDecode(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const int high = i + 2 < text.size() ? HexValue(text[i + 1]) : -1;
    const int low = i + 2 < text.size() ? HexValue(text[i + 2]) : -1;
    if (text[i] == '%' && high >= 0 && low >= 0) {
      out += static_cast<char>(high * 16 + low);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace

std::span<const Route> AllRoutes() { return kRoutes; }

std::string_view CanonicalPath(std::string_view path) {
  if (!StripPrefix("/beta", &path)) StripPrefix("/anthropic", &path);
  StripPrefix("/v1", &path);
  return path;
}

bool SpeaksAnthropic(const HttpRequest& request) {
  std::string_view path = request.path;
  return StripPrefix("/anthropic", &path) || CanonicalPath(path).starts_with("/messages") ||
         !request.Header("anthropic-version").empty();
}

RouteMatch MatchRoute(std::string_view method, std::string_view path) {
  const std::string_view canonical = CanonicalPath(path);
  if (method == "HEAD") method = "GET";
  RouteMatch match;
  for (const Route& route : kRoutes) {
    const std::string_view seen = route.is_page ? path : canonical;
    const bool hit = route.takes_suffix
                         ? seen.size() > route.path.size() && seen.starts_with(route.path)
                         : seen == route.path;
    if (!hit) continue;
    if (route.method == method) {
      match.route = &route;
      match.allow.clear();
      return match;
    }
    match.allow = route.method == "GET" ? "GET, HEAD" : route.method;
  }
  match.known_elsewhere = match.allow.empty() && IsKnownElsewhere(canonical);
  return match;
}

std::string RouteSuffix(const HttpRequest& request) {
  return ReplaceInvalidUtf8(
      PercentDecode(CanonicalPath(request.path).substr(request.route->path.size())));
}

}  // namespace deepinfer
