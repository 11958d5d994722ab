// Moves bytes over a transport of this process to itself, before others rely on it.
// Thread rule: any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "transfer/extent_path.h"
#include "transfer/ucx.h"

namespace deepinfer {

enum class SelfTestWay : unsigned char { kSharedMemory, kTcp, kUcx };

struct SelfTestOptions {
  SelfTestWay way = SelfTestWay::kTcp;
  std::string host = "127.0.0.1";  // where data connections are taken
  UcxContextPtr ucx = nullptr;     // of that way
  // Large enough that the window is used many times over.
  int64_t size_bytes = int64_t{64} << 20;
  // Wraps the way that bytes take; empty but in tests of faults.
  std::function<std::unique_ptr<ExtentPath>(std::unique_ptr<ExtentPath>)> wrap_path = nullptr;
};

// Ok when what arrived is what was sent. Errors say what does not work; within ten seconds.
Status TestTransport(const SelfTestOptions& options);

}  // namespace deepinfer
