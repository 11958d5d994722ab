#include "server/trace_exporter.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "server/request_record.h"
#include "support/eventually.h"
#include "support/temp_dir.h"
#include "support/wait_until.h"

namespace deepinfer {
namespace {

void Await(const char* what, std::promise<void>* promise) {
  if (promise->get_future().wait_for(kTestDeadline) != std::future_status::ready) {
    GiveUpWaiting(what);
  }
}

RequestFacts Traced() {
  RequestFacts facts;
  facts.trace.trace_id = "0af7651916cd43dd8448eb211c80319c";
  facts.trace.span_id = "b7ad6b7169203331";
  return facts;
}

// Takes one connection, reads a request and answers 200 when it may.
class HeldCollector {
 public:
  HeldCollector() : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(listener_, any, size), 0);
    EXPECT_EQ(listen(listener_, 16), 0);
    EXPECT_EQ(getsockname(listener_, any, &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Answer(); });
  }
  ~HeldCollector() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }
  HeldCollector(const HeldCollector&) = delete;
  HeldCollector& operator=(const HeldCollector&) = delete;

  std::string url() const { return "http://collector:" + std::to_string(port_) + "/v1/traces"; }
  void WaitAsked() { Await("a post", &asked_); }
  void Release() { released_.set_value(); }

 private:
  // Every post after the first is answered at once.
  void Answer() {
    for (bool first = true;; first = false) {
      const int client = accept(listener_, nullptr, nullptr);
      if (client < 0) return;
      std::string request;
      while (!IsWhole(request)) {
        char bytes[4096];
        const ssize_t count = recv(client, bytes, sizeof bytes, 0);
        if (count <= 0) break;
        request.append(bytes, static_cast<size_t>(count));
      }
      if (first) {
        asked_.set_value();
        Await("the release", &released_);
      }
      constexpr std::string_view kAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
      (void)send(client, kAnswer.data(), kAnswer.size(), MSG_NOSIGNAL);
      close(client);
    }
  }

  static bool IsWhole(const std::string& request) {
    constexpr std::string_view kLength = "Content-Length: ";
    const size_t end = request.find("\r\n\r\n");
    const size_t length = request.find(kLength);
    if (end == std::string::npos || length == std::string::npos) return false;
    return request.size() >= end + 4 + std::stoul(request.substr(length + kLength.size()));
  }

  const int listener_;
  int port_ = 0;
  std::promise<void> asked_;
  std::promise<void> released_;
  std::thread thread_;
};

Result<std::vector<std::string>> Loopback(const std::string& /*host*/) {
  return std::vector<std::string>{"127.0.0.1"};
}

TEST(TraceExporter, ANameServerThatHangsHoldsNobody) {
  // Outlive the test's own part: a thread that was left behind looks at them.
  const auto asked = std::make_shared<std::promise<void>>();
  const auto released = std::make_shared<std::promise<void>>();
  const auto left = std::make_shared<std::promise<void>>();
  TraceOptions options;
  options.endpoint = "http://collector:4318/v1/traces";
  options.stop_time = std::chrono::milliseconds(0);
  options.export_timeout = std::chrono::milliseconds(20);
  options.resolve_host = [asked, released,
                          left](const std::string&) -> Result<std::vector<std::string>> {
    asked->set_value();  // throws where it is asked a second time meanwhile
    Await("the release", released.get());
    left->set_value();
    return Unavailable("gone");
  };
  {
    const auto exporter = TraceExporter::Open(options).value();
    exporter->Record(Traced());
    Await("the look-up", asked.get());
    exporter->Stop();
    EXPECT_EQ(exporter->num_dropped(), 1);
  }
  released->set_value();
  Await("the end of the look-up", left.get());
}

TEST(TraceExporter, ASlowCollectorIsLeftWhenTheTimeToStopIsUp) {
  constexpr int64_t kNumRequests = 1000;
  HeldCollector collector;
  TraceOptions options;
  options.endpoint = collector.url();
  options.resolve_host = Loopback;
  options.export_timeout = std::chrono::minutes(5);
  options.stop_time = std::chrono::milliseconds(0);
  options.max_queued_requests = 1 << 20;  // only the stop makes it drop
  const auto exporter = TraceExporter::Open(options).value();
  for (int64_t i = 0; i < kNumRequests; ++i) exporter->Record(Traced());
  collector.WaitAsked();
  std::thread stop([&] { exporter->Stop(); });
  // What comes behind the stop is dropped: then its time has begun, and is up.
  int64_t num_more = 0;
  EXPECT_TRUE(Eventually([&] {
    exporter->Record(Traced());
    ++num_more;
    return exporter->num_dropped() > 0;
  }));
  collector.Release();
  stop.join();
  EXPECT_GE(exporter->num_exported(), 1);
  EXPECT_LE(exporter->num_exported(), 256) << "more than the batch that was under way";
  EXPECT_EQ(exporter->num_exported() + exporter->num_dropped(), kNumRequests + num_more);
}

TEST(TraceExporter, AFullDiskLeavesNoPartOfALine) {
  const TempDir dir;
  TraceOptions options;
  options.file = dir.File("traces.jsonl");
  const auto exporter = TraceExporter::Open(options).value();
  exporter->Record(Traced());
  ASSERT_TRUE(Eventually([&] { return exporter->num_exported() == 1; }));
  signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = std::filesystem::file_size(options.file) + 100;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  exporter->Record(Traced());
  EXPECT_TRUE(Eventually([&] { return exporter->num_dropped() == 1; }));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  exporter->Record(Traced());
  EXPECT_TRUE(Eventually([&] { return exporter->num_exported() == 2; }));
  exporter->Stop();
  std::ifstream file(options.file);
  std::string line;
  int num_lines = 0;
  for (; std::getline(file, line); ++num_lines) {
    EXPECT_TRUE(line.starts_with("{\"resourceSpans\"") && line.ends_with("}")) << line;
  }
  EXPECT_EQ(num_lines, 2);
}

}  // namespace
}  // namespace deepinfer
