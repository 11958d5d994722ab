#include "server/routes.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <set>

#include "server/openapi.h"

namespace deepinfer {
namespace {

TEST(Routes, AliasesReachTheSameRow) {
  for (const char* path : {"/v1/chat/completions", "/chat/completions", "/beta/chat/completions",
                           "/beta/v1/chat/completions"}) {
    const RouteMatch match = MatchRoute("POST", path);
    ASSERT_NE(match.route, nullptr) << path;
    EXPECT_EQ(match.route->name, "/v1/chat/completions");
  }
  EXPECT_EQ(MatchRoute("GET", "/v1/health").route->name, "/health");
  EXPECT_EQ(MatchRoute("HEAD", "/health").route->name, "/health");
  EXPECT_EQ(MatchRoute("GET", "/models").route->name, "/v1/models");
}

TEST(Routes, WrongMethodNamesTheRightOnes) {
  EXPECT_EQ(MatchRoute("GET", "/v1/chat/completions").allow, "POST");
  EXPECT_EQ(MatchRoute("POST", "/health").allow, "GET, HEAD");
  EXPECT_EQ(MatchRoute("DELETE", "/v1/models/x").allow, "GET, HEAD");
  EXPECT_EQ(MatchRoute("GET", "/v1/chat/completions").route, nullptr);
}

TEST(Routes, UnknownPathsAreToldFromForeignOnes) {
  for (const char* path : {"/v1/embeddings", "/v1/audio/speech"}) {
    const RouteMatch match = MatchRoute("POST", path);
    EXPECT_EQ(match.route, nullptr) << path;
    EXPECT_TRUE(match.known_elsewhere) << path;
  }
  for (const char* path :
       {"", "/v1", "/v1/", "/v1/files", "/nothing", "/v1/chat", "/v1/chat/completions/",
        "/v1/v1/models", "/beta", "/v1/models/", "/embeddingsx", "/V1/models", "/v1/dashboard",
        "/beta/assets/x", "/assets/"}) {
    const RouteMatch match = MatchRoute("GET", path);
    EXPECT_EQ(match.route, nullptr) << path;
    EXPECT_TRUE(match.allow.empty()) << path;
    EXPECT_FALSE(match.known_elsewhere) << path;
  }
}

TEST(Routes, SuffixIsDecoded) {
  HttpRequest request;
  const auto suffix = [&](const char* path) {
    request.path = path;
    request.route = MatchRoute("GET", path).route;
    return RouteSuffix(request);
  };
  EXPECT_EQ(suffix("/v1/models/org/name"), "org/name");
  EXPECT_EQ(suffix("/models/a%2Fb%20c"), "a/b c");
  EXPECT_EQ(suffix("/models/100%"), "100%");
  EXPECT_EQ(suffix("/models/%4"), "%4");
  EXPECT_EQ(suffix("/models/%zz"), "%zz");
  EXPECT_EQ(suffix("/models/%ff"), "\xef\xbf\xbd");
}

TEST(Routes, PagesAreFoundAsTheyAreWritten) {
  for (const char* path : {"/", "/chat", "/dashboard", "/assets/chat.js"}) {
    const RouteMatch match = MatchRoute("GET", path);
    ASSERT_NE(match.route, nullptr) << path;
    EXPECT_TRUE(match.route->is_page);
    EXPECT_FALSE(match.route->needs_key);
  }
}

TEST(Routes, NamesAreUnique) {
  std::set<std::string_view> names;
  for (const Route& route : AllRoutes()) EXPECT_TRUE(names.insert(route.name).second) << route.name;
}

TEST(OpenApi, DescribesEveryRoute) {
  const boost::json::value document = boost::json::parse(OpenApiDocument());
  const auto& paths = document.at("paths").as_object();
  size_t num_described = 0;
  for (const Route& route : AllRoutes()) {
    if (route.is_page) continue;
    ++num_described;
    const auto& item = paths.at({route.name.data(), route.name.size()}).as_object();
    const auto& operation = item.at(route.method == "GET" ? "get" : "post").as_object();
    EXPECT_TRUE(operation.at("responses").as_object().contains("200"));
    EXPECT_EQ(operation.contains("requestBody"), route.method == "POST") << route.name;
  }
  EXPECT_EQ(paths.size(), num_described);
}

}  // namespace
}  // namespace deepinfer
