#include "base/cpu_topology.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <string>

#include "support/temp_dir.h"

namespace deepinfer {
namespace {

// A tree of /sys/devices/system: 2 nodes of 4 cores with 2 hardware threads each, numbered as on
// common servers: CPUs 0-7 first threads, 8-15 second ones; node 0 has cores 0-3.
class SystemTree {
 public:
  explicit SystemTree(int num_nodes) {
    namespace fs = std::filesystem;
    const int num_cpus = 8 * num_nodes;
    fs::create_directories(dir_.File("cpu"));
    dir_.Write("cpu/online", "0-" + std::to_string(num_cpus - 1) + "\n");
    for (int cpu = 0; cpu < num_cpus; ++cpu) {
      const std::string topology = "cpu/cpu" + std::to_string(cpu) + "/topology";
      fs::create_directories(dir_.File(topology));
      const int core = cpu % (num_cpus / 2);
      dir_.Write(topology + "/physical_package_id", std::to_string(core / 4) + "\n");
      dir_.Write(topology + "/core_id", std::to_string(core % 4) + "\n");
    }
    const std::string nodes = num_nodes == 1 ? "0\n" : "0-" + std::to_string(num_nodes - 1) + "\n";
    for (int node = 0; node < num_nodes; ++node) {
      const std::string name = "node/node" + std::to_string(node);
      fs::create_directories(dir_.File(name));
      const int first = 4 * node, second = num_cpus / 2 + 4 * node;
      dir_.Write(name + "/cpulist", std::to_string(first) + "-" + std::to_string(first + 3) + "," +
                                        std::to_string(second) + "-" + std::to_string(second + 3) +
                                        "\n");
    }
    dir_.Write("node/online", nodes);
    dir_.Write("node/has_memory", nodes);
  }

  CpuTopology Read() const { return ReadCpuTopology(dir_.path()); }

 private:
  TempDir dir_;
};

std::vector<int> Range(int count) {
  std::vector<int> ids;
  for (int i = 0; i < count; ++i) ids.push_back(i);
  return ids;
}

TEST(CpuList, HoldsRangesAndSingleIds) {
  EXPECT_EQ(*ParseCpuList("0-3,8"), (std::vector<int>{0, 1, 2, 3, 8}));
  EXPECT_EQ(*ParseCpuList("5"), (std::vector<int>{5}));
  EXPECT_EQ(*ParseCpuList(""), (std::vector<int>{}));
  EXPECT_EQ(*ParseCpuList("4-5,1,5"), (std::vector<int>{1, 4, 5}));
}

TEST(CpuList, RefusesOtherText) {
  for (const char* text : {"a", "3-1", "1-", "-1", "1,,2", "0-99999999", "1 2"}) {
    EXPECT_FALSE(ParseCpuList(text).ok()) << text;
  }
}

TEST(CpuTopology, ReadsCoresAndNodesOfATree) {
  const CpuTopology topology = SystemTree(2).Read();
  ASSERT_EQ(topology.cpus.size(), 16u);
  EXPECT_EQ(topology.memory_nodes, (std::vector<int>{0, 1}));
  EXPECT_EQ(topology.cpus[5].node, 1);
  EXPECT_EQ(topology.cpus[5].package, 1);
  EXPECT_EQ(topology.cpus[5].core, 1);
  EXPECT_EQ(topology.cpus[13].node, 1);
  EXPECT_EQ(topology.cpus[13].core, 1);
  EXPECT_EQ(topology.cpus[8].node, 0);
}

TEST(CpuTopology, IsOneNodeWhereTheTreeSaysNothing) {
  const TempDir empty;
  const CpuTopology topology = ReadCpuTopology(empty.path());
  EXPECT_TRUE(topology.cpus.empty());
  EXPECT_EQ(topology.memory_nodes, (std::vector<int>{0}));
}

TEST(CpuTopology, KnowsEveryCpuThisTestMayUse) {
  const CpuTopology topology = ReadCpuTopology();
  const std::vector<int> allowed = AllowedCpus();
  ASSERT_FALSE(allowed.empty());
  EXPECT_EQ(PlanThreadCpus(topology, allowed, static_cast<int>(allowed.size())).size(),
            allowed.size());
}

TEST(ThreadPlan, TakesPhysicalCoresOfEveryNodeBeforeSecondHardwareThreads) {
  const CpuTopology topology = SystemTree(2).Read();
  const std::vector<int> all = Range(16);
  EXPECT_EQ(PlanThreadCpus(topology, all, 4), (std::vector<int>{0, 4, 1, 5}));
  EXPECT_EQ(PlanThreadCpus(topology, all, 10), (std::vector<int>{0, 4, 1, 5, 2, 6, 3, 7, 8, 12}));
}

TEST(ThreadPlan, StaysInsideTheAllowedCpus) {
  const CpuTopology topology = SystemTree(1).Read();
  // CPU 1 and CPU 5 are hardware threads of one core.
  const std::vector<int> allowed = {1, 3, 5};
  EXPECT_EQ(PlanThreadCpus(topology, allowed, 2), (std::vector<int>{1, 3}));
  EXPECT_EQ(PlanThreadCpus(topology, allowed, 3), (std::vector<int>{1, 3, 5}));
}

TEST(ThreadPlan, IsLeftToTheSchedulerWhereThreadsOutnumberCpus) {
  const CpuTopology topology = SystemTree(1).Read();
  const std::vector<int> allowed = {0, 1};
  EXPECT_TRUE(PlanThreadCpus(topology, allowed, 3).empty());
  EXPECT_TRUE(PlanThreadCpus(topology, allowed, 0).empty());
}

}  // namespace
}  // namespace deepinfer
