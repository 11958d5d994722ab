// DI_CHECK: aborts on a broken invariant of our own code. Nothing that arrives from the network,
// a disk, a configuration or a model file may reach one; such input gets a Status.
#pragma once

namespace deepinfer {

[[noreturn]] void CheckFailed(const char* expression, const char* file, int line);

}  // namespace deepinfer

#define DI_CHECK(cond)                                     \
  do {                                                     \
    if (!(cond)) [[unlikely]]                              \
      ::deepinfer::CheckFailed(#cond, __FILE__, __LINE__); \
  } while (false)
