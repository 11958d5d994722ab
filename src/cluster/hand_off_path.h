// The way that the bytes of a hand-off take to the worker that granted its ticket.
// Thread rule: as ExtentPath.
#pragma once

#include <memory>
#include <string>

#include "cluster/hand_off_connection.h"
#include "cluster/hand_off_sender.h"
#include "transfer/extent_path.h"

namespace deepinfer {

// Announces an extent.
wire::Message ExtentMessage(const Extent& extent);

// UCX where the ticket offers it and the options have it; shared memory where the ticket offers it
// and their transport allows it; else a data connection to the host of `endpoint`. Secure pairs
// have none of these and use the messages of the session. The connection is borrowed. unavailable:
// there is no way.
Result<std::unique_ptr<ExtentPath>> OpenHandOffPath(const wire::Ticket& ticket,
                                                    const HandOffSenderOptions& options,
                                                    const std::string& endpoint,
                                                    HandOffConnection* connection);

}  // namespace deepinfer
