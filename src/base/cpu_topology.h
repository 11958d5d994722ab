// Which CPUs a process may use, their physical cores and memory nodes, and where threads go.
// Thread rule: values and pure functions; the two readers look at the system once.
#pragma once

#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace deepinfer {

struct LogicalCpu {
  int id = 0;
  int package = 0;
  int core = 0;  // unique inside a package
  int node = 0;  // memory node
};

struct CpuTopology {
  std::vector<LogicalCpu> cpus;   // online ones, ascending by id
  std::vector<int> memory_nodes;  // nodes that hold memory, ascending; never empty
};

// "0-3,8" -> {0, 1, 2, 3, 8}; ascending, without repetitions; empty text gives an empty list.
// data_corruption when the text has another form.
Result<std::vector<int>> ParseCpuList(std::string_view text);

// Reads the tree of /sys/devices/system. Whatever it lacks is taken as one node, and as one
// physical core for each CPU.
CpuTopology ReadCpuTopology(const std::filesystem::path& system_dir = "/sys/devices/system");

// CPUs the calling thread may run on (taskset, cpuset), ascending.
std::vector<int> AllowedCpus();

// One CPU for each of num_threads threads: physical cores before their further hardware threads,
// memory nodes in turn, so that few threads already use every node's bandwidth. Empty when there
// are fewer allowed CPUs than threads: then only the scheduler can share them out.
std::vector<int> PlanThreadCpus(const CpuTopology& topology, std::span<const int> allowed,
                                int num_threads);

}  // namespace deepinfer
