#include "base/thread_stacks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/thread_name.h"

namespace deepinfer {
namespace {

constexpr std::chrono::milliseconds kLimit{10'000};

// A named thread that waits inside a function of its own.
class Waiting {
 public:
  explicit Waiting(const char* name) : thread_([this, name] { Run(name); }) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return inside_ != nullptr; });
  }
  ~Waiting() {
    {
      const std::lock_guard lock(mutex_);
      released_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  // Where the function that waits returns to.
  void* caller() const { return inside_; }

 private:
  void Run(const char* name) {
    NameThread(name);
    Wait();
    // So that the call above has somewhere to return to.
    const std::lock_guard lock(mutex_);
    returned_ = true;
  }
  [[gnu::noinline]] void Wait() {
    std::unique_lock lock(mutex_);
    inside_ = __builtin_return_address(0);
    changed_.notify_all();
    changed_.wait(lock, [this] { return released_; });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  void* inside_ = nullptr;
  bool released_ = false;
  bool returned_ = false;
  std::thread thread_;
};

bool Holds(const std::vector<void*>& frames, void* address) {
  return std::find(frames.begin(), frames.end(), address) != frames.end();
}

TEST(ThreadStacksTest, TellsWhereEveryThreadOfTheNamesIs) {
  const Waiting first("first"), second("second"), again("second"), other("other");
  const std::array<std::string_view, 2> names = {"first", "second"};
  const std::vector<ThreadStack> stacks = CollectStacks(names, kLimit);
  ASSERT_EQ(stacks.size(), 3u);
  EXPECT_EQ(std::count_if(stacks.begin(), stacks.end(),
                          [](const ThreadStack& s) { return s.name == "second"; }),
            2);
  for (const ThreadStack& stack : stacks) {
    EXPECT_TRUE(Holds(stack.frames, first.caller())) << DescribeFrames(stack.frames);
    EXPECT_NE(DescribeFrames(stack.frames).find("; "), std::string::npos);
  }
}

TEST(ThreadStacksTest, WaitsAgainAfterItWasAsked) {
  const Waiting thread("first");
  const std::array<std::string_view, 1> names = {"first"};
  for (int i = 0; i < 20; ++i) {
    const std::vector<ThreadStack> stacks = CollectStacks(names, kLimit);
    ASSERT_EQ(stacks.size(), 1u);
    EXPECT_TRUE(Holds(stacks[0].frames, thread.caller()));
  }
}

TEST(ThreadStacksTest, NoThreadOfTheNameIsNoStack) {
  const std::array<std::string_view, 1> names = {"nobody"};
  EXPECT_TRUE(CollectStacks(names, kLimit).empty());
  EXPECT_EQ(DescribeFrames({}), "");
}

}  // namespace
}  // namespace deepinfer
