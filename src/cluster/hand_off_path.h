// The way that the bytes of a hand-off take to the worker that granted its ticket.
// Thread rule: as ExtentPath.
#pragma once

#include <memory>
#include <string>

#include "cluster/hand_off_connection.h"
#include "cluster/hand_off_receiver.h"
#include "transfer/extent_path.h"

namespace deepinfer {

// Announces an extent.
wire::Message ExtentMessage(const Extent& extent);

// Shared memory where the ticket offers it and `transport` allows it, else a data connection to the
// host of `endpoint`; secure pairs have none and use the messages of the session. The connection is
// borrowed. unavailable: there is no way.
Result<std::unique_ptr<ExtentPath>> OpenHandOffPath(const wire::Ticket& ticket,
                                                    HandOffTransport transport,
                                                    const std::string& endpoint, bool is_secure,
                                                    HandOffConnection* connection);

}  // namespace deepinfer
