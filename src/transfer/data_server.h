// Takes extents from data connections into their landings. A connection that sends anything else,
// or for a landing that is gone, is closed.
// Thread rule: the callback runs on the thread of a connection. Owner: HandOffReceiver.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "transfer/landing_table.h"
#include "transfer/socket.h"

namespace deepinfer {

class DataServer {
 public:
  using OnExtent = std::function<void(const Extent&, ExtentOutcome)>;

  // On a port of the system's choice. landings is borrowed. unavailable: the address is not to be
  // had.
  static Result<std::unique_ptr<DataServer>> Listen(const std::string& host, LandingTable* landings,
                                                    OnExtent on_extent);
  ~DataServer();  // closes every connection

  uint16_t port() const { return port_; }

 private:
  struct Connection {
    UniqueFd socket;
    std::thread thread;
    bool over = false;
  };

  DataServer(UniqueFd socket, LandingTable* landings, OnExtent on_extent);
  void Accept();
  void Serve(Connection* connection);
  // Joins those that are over.
  void Reap();

  const UniqueFd socket_;
  const uint16_t port_;
  LandingTable* const landings_;
  const OnExtent on_extent_;
  std::mutex mutex_;
  std::list<Connection> connections_;
  bool stop_ = false;
  std::thread acceptor_;
};

}  // namespace deepinfer
