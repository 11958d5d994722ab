#include "base/process_stats.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

TEST(ResidentMemory, IsReadFromTheKernelsText) {
  const ResidentMemory m = ParseResidentMemory(
      "Name:\tdeepinfer\nVmRSS:\t  700 kB\nRssAnon:\t     300 kB\nRssFile:\t     380 kB\n"
      "RssShmem:\t      20 kB\n");
  EXPECT_EQ(m.anonymous_bytes, 300 * 1024);
  EXPECT_EQ(m.file_bytes, 380 * 1024);
  EXPECT_EQ(m.shared_bytes, 20 * 1024);
  EXPECT_EQ(m.total_bytes(), 700 * 1024);
}

TEST(ResidentMemory, IsZeroWhereTheTextLacksIt) {
  EXPECT_EQ(ParseResidentMemory("Name:\tx\n").total_bytes(), 0);
  EXPECT_EQ(ParseResidentMemory("RssAnon:").total_bytes(), 0);
}

TEST(ResidentMemory, OfThisProcessIsThere) {
  EXPECT_GT(ReadResidentMemory().anonymous_bytes, 0);
  EXPECT_GT(ReadResidentMemory().file_bytes, 0);
}

TEST(AvailableMemory, IsReadFromTheKernelsText) {
  EXPECT_EQ(ParseAvailableMemory("MemTotal: 9 kB\nMemAvailable:    7 kB\n"), 7 * 1024);
  EXPECT_EQ(ParseAvailableMemory("MemTotal: 9 kB\n"), -1);
  EXPECT_GT(ReadAvailableMemory(), 0);
}

TEST(CpuTimes, GrowWithWork) {
  const CpuTimes before = ReadCpuTimes();
  if (before.running_ns == 0) GTEST_SKIP() << "the kernel does not count";
  CpuTimes now = before;
  // The kernel books the time of a running thread at the latest with a tick of its clock.
  for (int i = 0; i < 1'000'000 && now.running_ns == before.running_ns; ++i) now = ReadCpuTimes();
  EXPECT_GT(now.running_ns, before.running_ns);
  EXPECT_GE(now.waiting_ns, before.waiting_ns);
}

}  // namespace
}  // namespace deepinfer
