#include "economics/ledger_writer.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "economics/ledger_files.h"
#include "economics/utc_time.h"
#include "support/eventually.h"
#include "support/temp_dir.h"
#include "unit/economics/record_example.h"

namespace deepinfer {
namespace {

using testing::ExampleRecord;

std::string LineOf(int number) {
  LedgerRecord record = ExampleRecord();
  record.ids.attempt_id = std::to_string(number);
  return FormatLedgerLine(record);
}

std::chrono::steady_clock::time_point Soon() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(30);
}

std::vector<std::string> AttemptsIn(const std::string& folder, LedgerReadStats* stats) {
  std::vector<std::string> attempts;
  const Status status = ReadLedger(
      LedgerFiles(folder).value(),
      [&](const std::string&, const std::string&, const ParsedLine& line) {
        attempts.push_back(line.ledger.attempt_id);
        return OkStatus();
      },
      stats);
  EXPECT_TRUE(status.ok()) << status.ToString();
  return attempts;
}

TEST(LedgerWriter, WritesLinesInOrderFromManyThreads) {
  const TempDir dir;
  {
    const auto writer = LedgerWriter::Open({.folder = dir.path() + "/new/ledger"}).value();
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 50; ++i) writer->Append(LineOf(t * 1000 + i));
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(writer->Flush(Soon()));
    EXPECT_EQ(writer->num_written(), 200);
    EXPECT_EQ(writer->num_dropped(), 0);
  }
  LedgerReadStats stats;
  const auto attempts = AttemptsIn(dir.path() + "/new/ledger", &stats);
  ASSERT_EQ(attempts.size(), 200u);
  int last_of[4] = {-1, -1, -1, -1};
  for (const std::string& attempt : attempts) {
    const int number = std::stoi(attempt);
    EXPECT_GT(number % 1000, last_of[number / 1000]);
    last_of[number / 1000] = number % 1000;
  }
}

TEST(LedgerWriter, EveryHourHasAFileOfItsOwn) {
  const TempDir dir;
  std::atomic<int64_t> now{ParseUtc("2026-11-30T14:59:59Z").value()};
  {
    const auto writer =
        LedgerWriter::Open({.folder = dir.path(), .utc_now_us = [&] { return now.load(); }})
            .value();
    writer->Append(LineOf(1));
    EXPECT_TRUE(writer->Flush(Soon()));
    now += 2'000'000;
    writer->Append(LineOf(2));
  }
  const auto files = LedgerFiles(dir.path()).value();
  ASSERT_EQ(files.size(), 2u);
  EXPECT_NE(files[0].find("ledger-20261130T14-"), std::string::npos);
  EXPECT_NE(files[1].find("ledger-20261130T15-"), std::string::npos);
  LedgerReadStats stats;
  EXPECT_EQ(AttemptsIn(dir.path(), &stats), (std::vector<std::string>{"1", "2"}));
}

TEST(LedgerWriter, AFullDiskDropsWholeLinesAndCountsThem) {
  const TempDir dir;
  signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  {
    const auto writer = LedgerWriter::Open({.folder = dir.path()}).value();
    writer->Append(LineOf(1));
    EXPECT_TRUE(writer->Flush(Soon()));
    // Room for half of the next line.
    const rlimit tight{LineOf(1).size() * 3 / 2, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &tight), 0);
    writer->Append(LineOf(2));
    EXPECT_TRUE(writer->Flush(Soon()));
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_EQ(writer->num_dropped(), 1);
    writer->Append(LineOf(3));
    EXPECT_TRUE(writer->Flush(Soon()));
    EXPECT_EQ(writer->num_written(), 2);
  }
  LedgerReadStats stats;
  EXPECT_EQ(AttemptsIn(dir.path(), &stats), (std::vector<std::string>{"1", "3"}));
  EXPECT_EQ(stats.num_torn, 0);
}

TEST(LedgerWriter, AFullQueueDropsAndNeverBlocks) {
  const TempDir dir;
  const auto writer = LedgerWriter::Open({.folder = dir.path(), .max_queued_lines = 0}).value();
  writer->Append(LineOf(1));
  EXPECT_TRUE(writer->Flush(Soon()));
  EXPECT_EQ(writer->num_dropped(), 1);
}

TEST(LedgerWriter, AWriteThatHangsHoldsNobodyBeyondTheDeadline) {
  const TempDir dir;
  // Outlive the test's own part: a thread that was left behind looks at them.
  const auto reached = std::make_shared<std::promise<void>>();
  const auto released = std::make_shared<std::promise<void>>();
  {
    const auto writer = LedgerWriter::Open({.folder = dir.path(),
                                            .utc_now_us =
                                                [reached, released] {
                                                  reached->set_value();
                                                  released->get_future().wait();
                                                  return int64_t{0};
                                                }})
                            .value();
    writer->Append(LineOf(1));
    reached->get_future().wait();
    writer->Append(LineOf(2));
    EXPECT_FALSE(writer->Flush(std::chrono::steady_clock::now()));
    EXPECT_EQ(writer->num_dropped(), 1);
  }
  // The writer is gone and the disk still hangs. Once it goes on, what it held is written.
  released->set_value();
  LedgerReadStats stats;
  EXPECT_TRUE(Eventually([&] {
    const auto files = LedgerFiles(dir.path());
    return files.ok() && AttemptsIn(dir.path(), &stats) == std::vector<std::string>{"1"};
  }));
}

TEST(LedgerWriter, AFolderThatCannotBeWrittenIsRefused) {
  const auto writer = LedgerWriter::Open({.folder = "/proc/nowhere"});
  ASSERT_FALSE(writer.ok());
  EXPECT_NE(writer.status().message().find("/proc/nowhere"), std::string::npos);
}

TEST(LedgerWriter, AKilledProcessLeavesWholeLines) {
  const TempDir dir;
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto writer = LedgerWriter::Open({.folder = dir.path()}).value();
    for (int i = 0;; ++i) {
      writer->Append(LineOf(i));
      if (i % 16 == 0) (void)writer->Flush(Soon());
      if (i == 64 && write(ready[1], "x", 1) != 1) _exit(1);
    }
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  kill(child, SIGKILL);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  close(ready[0]);
  close(ready[1]);
  LedgerReadStats stats;
  const auto attempts = AttemptsIn(dir.path(), &stats);
  ASSERT_GE(attempts.size(), 64u);
  for (size_t i = 0; i < attempts.size(); ++i) EXPECT_EQ(attempts[i], std::to_string(i));
}

TEST(LedgerFiles, ATornLastLineIsLeftOutAndCounted) {
  const TempDir dir;
  const std::string path = dir.path() + "/ledger-20261130T14-1-00000000.jsonl";
  std::ofstream(path) << LineOf(1) << "\n" << LineOf(2).substr(0, 100);
  LedgerReadStats stats;
  EXPECT_EQ(AttemptsIn(dir.path(), &stats), std::vector<std::string>{"1"});
  EXPECT_EQ(stats.num_torn, 1);
}

TEST(LedgerFiles, DamageInTheMiddleNamesItsPlace) {
  const TempDir dir;
  const std::string path = dir.path() + "/ledger-20261130T14-1-00000000.jsonl";
  std::ofstream(path) << LineOf(1) << "\n" << LineOf(2).substr(0, 100) << "\n" << LineOf(3) << "\n";
  LedgerReadStats stats;
  const Status status = ReadLedger(
      {path}, [](const std::string&, const std::string&, const ParsedLine&) { return OkStatus(); },
      &stats);
  EXPECT_NE(status.message().find(path + ":2"), std::string::npos) << status.ToString();
}

TEST(LedgerFollower, HandsOutWhatWasAppended) {
  const TempDir dir;
  const std::string path = dir.path() + "/ledger-20261130T14-1-00000000.jsonl";
  std::ofstream(path) << LineOf(1) << "\n" << LineOf(2).substr(0, 100);
  LedgerFollower follower(dir.path());
  std::vector<std::string> attempts;
  const auto take = [&](const std::string&, const std::string&, const ParsedLine& line) {
    attempts.push_back(line.ledger.attempt_id);
    return OkStatus();
  };
  ASSERT_TRUE(follower.Poll(take).ok());
  EXPECT_EQ(attempts, std::vector<std::string>{"1"});
  std::ofstream(path, std::ios::app) << LineOf(2).substr(100) << "\n";
  std::ofstream(dir.path() + "/ledger-20261130T15-1-00000000.jsonl") << LineOf(3) << "\n";
  ASSERT_TRUE(follower.Poll(take).ok());
  EXPECT_EQ(attempts, (std::vector<std::string>{"1", "2", "3"}));
}

}  // namespace
}  // namespace deepinfer
