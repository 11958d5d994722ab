// The first message of a session: who speaks, which versions it knows, which model it serves; and
// whether the two can work together (docs/cluster.md §3).
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "cluster/worker.h"

namespace deepinfer {

namespace wire {
class Hello;
class Message;
}  // namespace wire

inline constexpr uint32_t kProtocolVersion = 2;
inline constexpr uint32_t kOldestProtocolVersion = 2;

inline constexpr char kGatewayRole[] = "gateway";
inline constexpr char kOperatorRole[] = "operator";

// What a process says of itself. `role` is one of these or a worker's.
wire::Message MakeHello(uint64_t incarnation, const std::string& role, const WorkerInfo& info);

// Of a worker that answered.
WorkerInfo InfoOfHello(const wire::Message& message);

// Why sender and receiver cannot pair; empty when they can. An operator needs no model, a gateway
// takes that of its first worker; others must serve the same one in the same form.
std::string WhyRefused(const wire::Hello& hello, const WorkerInfo& own);

}  // namespace deepinfer
