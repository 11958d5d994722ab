#include "cluster/registry_keys.h"

namespace deepinfer {

std::string PrefixEnd(std::string prefix) {
  while (!prefix.empty() && prefix.back() == '\xff') prefix.pop_back();
  // All of 0xff, or empty: up to the end of everything, which a zero byte says.
  if (prefix.empty()) return std::string(1, '\0');
  ++prefix.back();
  return prefix;
}

std::string WorkerPrefix(const std::string& cluster, const std::string& cell) {
  return "/deepinfer/" + cluster + "/" + cell + "/worker/";
}

std::string WorkerKey(const std::string& cluster, const std::string& cell, const std::string& node,
                      uint64_t incarnation) {
  return WorkerPrefix(cluster, cell) + node + "/" + std::to_string(incarnation);
}

}  // namespace deepinfer
