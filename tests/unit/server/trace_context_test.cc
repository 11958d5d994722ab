#include "server/trace_context.h"

#include <gtest/gtest.h>

#include "server/http_post.h"

namespace deepinfer {
namespace {

constexpr std::string_view kWhole = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

TEST(TraceContext, AStateIsPassedOnWholeOrNotAtAll) {
  for (const char* whole : {"a=1", "vendor@x=t61rcWkgMzE,b=2", "a=1,,b=2", "a=1, b=2"}) {
    EXPECT_EQ(CheckTracestate(whole), whole);
  }
  std::string many;
  for (int i = 0; i < 33; ++i) many += "k" + std::to_string(i) + "=v,";
  for (const std::string& bad : {std::string(""), std::string("a"), std::string("=1"),
                                 std::string("a=\x01"), many, "a=" + std::string(600, 'x')}) {
    EXPECT_EQ(CheckTracestate(bad), "") << bad;
  }
}

TEST(TraceContext, ReadsAndWritesTheHeader) {
  TraceContext context = ParseTraceparent(kWhole);
  EXPECT_EQ(context.trace_id, "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(context.parent_span_id, "b7ad6b7169203331");
  EXPECT_TRUE(context.sampled);
  context.span_id = context.parent_span_id;
  EXPECT_EQ(FormatTraceparent(context), kWhole);
  EXPECT_FALSE(ParseTraceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00").sampled);
  // A later version may have more behind the flags.
  EXPECT_FALSE(ParseTraceparent("01" + std::string(kWhole.substr(2)) + "-more").trace_id.empty());
}

TEST(TraceContext, OtherFormsAreNoTrace) {
  for (const std::string_view header :
       {"", "00", "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0x",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01x",
        "00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}) {
    EXPECT_TRUE(ParseTraceparent(header).trace_id.empty()) << header;
  }
}

TEST(TraceContext, ASpanIsOfItsCallersTraceOrBeginsOne) {
  TraceContext called = ParseTraceparent(kWhole);
  BeginSpan(&called);
  EXPECT_EQ(called.trace_id, "0af7651916cd43dd8448eb211c80319c");
  EXPECT_NE(called.span_id, called.parent_span_id);
  TraceContext own;
  BeginSpan(&own);
  EXPECT_EQ(own.trace_id.size(), 32u);
  EXPECT_EQ(own.span_id.size(), 16u);
  EXPECT_FALSE(ParseTraceparent(FormatTraceparent(own)).trace_id.empty());
}

TEST(HttpUrl, IsHostPortAndPath) {
  const HttpTarget whole = ParseHttpUrl("http://collector:4318/v1/traces").value();
  EXPECT_EQ(whole.host, "collector");
  EXPECT_EQ(whole.port, "4318");
  EXPECT_EQ(whole.path, "/v1/traces");
  const HttpTarget shortest = ParseHttpUrl("http://x").value();
  EXPECT_EQ(shortest.port, "80");
  EXPECT_EQ(shortest.path, "/");
  EXPECT_FALSE(shortest.is_tls);
  const HttpTarget secure = ParseHttpUrl("https://x/y").value();
  EXPECT_TRUE(secure.is_tls);
  EXPECT_EQ(secure.port, "443");
  EXPECT_EQ(secure.path, "/y");
  const HttpTarget address = ParseHttpUrl("http://[::1]:1/").value();
  EXPECT_EQ(address.host, "::1");
  EXPECT_EQ(address.port, "1");
  for (const char* url : {"", "http://", "http://:1", "http://x:", "http://x:1a", "ftp://x",
                          "https://", "http://x:123456"}) {
    EXPECT_FALSE(ParseHttpUrl(url).ok()) << url;
  }
}

}  // namespace
}  // namespace deepinfer
