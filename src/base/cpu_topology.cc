#include "base/cpu_topology.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <map>
#include <optional>
#include <string>

namespace deepinfer {

namespace fs = std::filesystem;

namespace {

// The kernel's own limit on x86-64.
constexpr int kMaxCpus = 8192;

std::optional<std::string> FirstLine(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

std::optional<int> ParseNumber(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

std::vector<int> ReadList(const fs::path& path) {
  const std::optional<std::string> line = FirstLine(path);
  if (!line) return {};
  Result<std::vector<int>> list = ParseCpuList(*line);
  return list.ok() ? *std::move(list) : std::vector<int>{};
}

int ReadNumber(const fs::path& path, int otherwise) {
  const std::optional<std::string> line = FirstLine(path);
  return line ? ParseNumber(*line).value_or(otherwise) : otherwise;
}

}  // namespace

Result<std::vector<int>> ParseCpuList(std::string_view text) {
  std::vector<int> ids;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    const std::string_view range = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    const size_t dash = std::min(range.find('-'), range.size());
    const std::optional<int> first = ParseNumber(range.substr(0, dash));
    const std::optional<int> last =
        dash == range.size() ? first : ParseNumber(range.substr(dash + 1));
    if (!first || !last || *last < *first || *last >= kMaxCpus) {
      return DataCorruption("'" + std::string(range) + "' is not a range of CPUs");
    }
    for (int id = *first; id <= *last; ++id) ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

CpuTopology ReadCpuTopology(const fs::path& system_dir) {
  CpuTopology topology;
  std::map<int, int> node_of;
  for (int node : ReadList(system_dir / "node/online")) {
    const fs::path dir = system_dir / "node" / ("node" + std::to_string(node));
    for (int cpu : ReadList(dir / "cpulist")) node_of[cpu] = node;
  }
  topology.memory_nodes = ReadList(system_dir / "node/has_memory");
  if (topology.memory_nodes.empty()) topology.memory_nodes = {0};
  for (int id : ReadList(system_dir / "cpu/online")) {
    const fs::path dir = system_dir / "cpu" / ("cpu" + std::to_string(id)) / "topology";
    LogicalCpu cpu;
    cpu.id = id;
    cpu.package = ReadNumber(dir / "physical_package_id", 0);
    cpu.core = ReadNumber(dir / "core_id", id);
    const auto node = node_of.find(id);
    cpu.node = node == node_of.end() ? topology.memory_nodes.front() : node->second;
    topology.cpus.push_back(cpu);
  }
  return topology;
}

std::vector<int> AllowedCpus() {
  std::array<cpu_set_t, kMaxCpus / CPU_SETSIZE> sets{};
  std::vector<int> ids;
  if (sched_getaffinity(0, sizeof sets, sets.data()) != 0) return ids;
  for (int id = 0; id < kMaxCpus; ++id) {
    if (CPU_ISSET_S(static_cast<size_t>(id), sizeof sets, sets.data())) ids.push_back(id);
  }
  return ids;
}

std::vector<int> PlanThreadCpus(const CpuTopology& topology, std::span<const int> allowed,
                                int num_threads) {
  struct Place {
    int sibling;  // how many CPUs of the same physical core come before
    int turn;     // how many places of the same node and sibling number come before
    int node;
    int id;
    auto operator<=>(const Place&) const = default;
  };
  std::vector<Place> places;
  std::map<std::pair<int, int>, int> num_in_core, num_in_node;
  for (const LogicalCpu& cpu : topology.cpus) {
    if (!std::binary_search(allowed.begin(), allowed.end(), cpu.id)) continue;
    const int sibling = num_in_core[{cpu.package, cpu.core}]++;
    const int turn = num_in_node[{sibling, cpu.node}]++;
    places.push_back({sibling, turn, cpu.node, cpu.id});
  }
  if (num_threads < 1 || places.size() < static_cast<size_t>(num_threads)) return {};
  std::sort(places.begin(), places.end());
  std::vector<int> cpus;
  for (int i = 0; i < num_threads; ++i) cpus.push_back(places[static_cast<size_t>(i)].id);
  return cpus;
}

}  // namespace deepinfer
