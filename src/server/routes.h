// The one table of routes and how a URL finds its row (api.md §2).
// Thread rule: constants and pure functions.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "server/http.h"

namespace deepinfer {

struct ServerOptions;
struct ServerState;

// Where a handler runs. Inline handlers answer from what is in memory and never wait.
enum class RoutePool : unsigned char { kInline, kPrepare, kTokenize };

struct Route {
  std::string_view name;    // label in metrics and logs
  std::string_view method;  // GET also serves HEAD
  std::string_view path;    // canonical, see CanonicalPath
  RoutePool pool;
  void (*handle)(ServerState& state, const std::shared_ptr<HttpExchange>& exchange);
  bool takes_suffix = false;  // the path is a prefix, more must follow
  bool needs_key = true;      // off: probes of the process
  bool needs_model = false;   // 503 until a model is attached
  bool generates = false;     // 503 while draining; counts against the key's limits
  bool is_page = false;       // matched as sent, without alias prefixes
  bool needs_admin = false;   // where keys are set
  // Served only when it is on; null: always.
  bool ServerOptions::*flag = nullptr;
};

std::span<const Route> AllRoutes();

struct RouteMatch {
  const Route* route = nullptr;
  std::string allow;             // a known path with another method: the value of Allow
  bool known_elsewhere = false;  // a route of the OpenAI or Anthropic APIs that is not served
};

RouteMatch MatchRoute(std::string_view method, std::string_view path);

// The path without the alias prefixes /beta, /anthropic and /v1, at most one of each.
std::string_view CanonicalPath(std::string_view path);

// A request of the Anthropic API: by its path, or by the header all its clients send.
bool SpeaksAnthropic(const HttpRequest& request);

// Text behind the prefix of a takes_suffix route, percent-decoded; valid UTF-8.
std::string RouteSuffix(const HttpRequest& request);

// Handlers, one file per family.
using RouteHandler = void(ServerState& state, const std::shared_ptr<HttpExchange>& exchange);
RouteHandler HandleChatCompletions, HandleChatRender;                      // routes_chat.cc
RouteHandler HandleCompletions, HandleCompletionsRender;                   // routes_completions.cc
RouteHandler HandleResponses, HandleResponsesRender;                       // routes_responses.cc
RouteHandler HandleMessages, HandleMessagesRender, HandleCountTokens;      // routes_messages.cc
RouteHandler HandleModels, HandleModel;                                    // routes_models.cc
RouteHandler HandleTokenize, HandleDetokenize, HandleTokenizerInfo;        // routes_tokenize.cc
RouteHandler HandleLive, HandleHealth, HandleReady, HandleHealthGenerate;  // routes_health.cc
RouteHandler HandleVersion, HandleMetrics, HandleOpenApi;                  // routes_info.cc
RouteHandler HandleChatPage, HandleDashboardPage, HandleWebAsset;          // routes_web.cc
RouteHandler HandleBalance;                                                // routes_balance.cc
RouteHandler HandleProfile;                                                // routes_profile.cc
RouteHandler HandleDebugPrefix;                                            // routes_debug.cc

}  // namespace deepinfer
