// A blocking HTTP/1.1 client over one raw socket, for tests that care about bytes and timing.
// Thread rule: one object, one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace deepinfer::testing {

struct ClientResponse {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // de-chunked
  std::vector<std::string> chunks;             // of a chunked body, the last empty one left out
};

class TestClient {
 public:
  // receive_buffer_bytes: of the socket, so that a client that does not read stops the sender soon;
  // 0: the system's.
  explicit TestClient(uint16_t port, int receive_buffer_bytes = 0);
  explicit TestClient(const std::string& unix_path);
  ~TestClient();
  TestClient(const TestClient&) = delete;
  TestClient& operator=(const TestClient&) = delete;

  using Headers = std::initializer_list<std::pair<std::string_view, std::string_view>>;

  void SendRaw(std::string_view bytes);
  void Send(std::string_view method, std::string_view path, std::string_view body = {},
            Headers headers = {});

  // Nothing when the connection ended before the answer was complete.
  std::optional<ClientResponse> ReadResponse(bool head_request = false);
  std::optional<ClientResponse> Request(std::string_view method, std::string_view path,
                                        std::string_view body = {}, Headers headers = {});

  // Status line and headers of a streamed answer, then its chunks one by one.
  std::optional<ClientResponse> ReadHead();
  // Nothing at the end of the body.
  std::optional<std::string> ReadChunk();

  // One recv call: what a client that splits on reads sees. Empty at the end.
  std::string ReadSome();

  // True when the server closes (or resets) the connection; reads and drops what comes before.
  bool WaitForClose(std::chrono::milliseconds timeout = std::chrono::milliseconds(5000));

  void HalfClose();
  void Reset();  // sends RST
  void Close();

 private:
  bool Fill();
  std::optional<std::string> ReadLine();
  std::optional<std::string> ReadBytes(size_t size);

  int fd_ = -1;
  std::string pending_;
};

}  // namespace deepinfer::testing
