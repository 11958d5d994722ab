#include "cluster/incarnation.h"

#include <sys/random.h>
#include <sys/stat.h>

#include <fstream>

#include "base/check.h"

namespace deepinfer {

uint64_t NewIncarnation() {
  uint64_t id = 0;
  while (id == 0) DI_CHECK(getrandom(&id, sizeof id, 0) == sizeof id);
  return id;
}

std::string HostId() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat pid_namespace {};
  if (boot.empty() || stat("/proc/self/ns/pid", &pid_namespace) != 0) return {};
  return boot + "/" + std::to_string(pid_namespace.st_ino);
}

}  // namespace deepinfer
