#include "transfer/shared_window.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string>

namespace deepinfer {
namespace {

// A process that makes a window, sends its address and waits to be killed.
class Owner {
 public:
  Owner() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(pipe(ends), 0);
    pid_ = fork();
    if (pid_ == 0) {
      const Result<SharedWindow> window = SharedWindow::Create(4096);
      if (!window.ok()) _exit(1);
      window->bytes()[7] = std::byte{42};
      const std::string line = window->address() + "\n";
      if (write(ends[1], line.data(), line.size()) < 0) _exit(1);
      while (true) pause();
    }
    close(ends[1]);
    for (char c = 0; read(ends[0], &c, 1) == 1 && c != '\n';) address_ += c;
    close(ends[0]);
  }
  ~Owner() { Kill(); }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  const std::string& address() const { return address_; }

 private:
  pid_t pid_ = 0;
  std::string address_;
};

TEST(SharedWindow, IsSeenByAnotherProcessAndOutlivesItsKilledOwner) {
  Owner owner;
  Result<SharedWindow> window = SharedWindow::Open(owner.address(), 4096);
  ASSERT_TRUE(window.ok()) << window.status().ToString();
  EXPECT_EQ(window->bytes()[7], std::byte{42});
  owner.Kill();
  window->bytes()[4095] = std::byte{1};  // no fault
  EXPECT_EQ(SharedWindow::Open(owner.address(), 4096).status().code(), StatusCode::kUnavailable)
      << "nothing is left to be opened";
}

TEST(SharedWindow, OfAnotherSizeOrNameIsNotTaken) {
  const Result<SharedWindow> window = SharedWindow::Create(4096);
  ASSERT_TRUE(window.ok());
  EXPECT_TRUE(SharedWindow::Open(window->address(), 4096).ok());
  EXPECT_EQ(SharedWindow::Open(window->address(), 8192).status().code(),
            StatusCode::kDataCorruption);
  EXPECT_EQ(SharedWindow::Open(window->address() + "0", 4096).status().code(),
            StatusCode::kDataCorruption);
  // A descriptor number that means something else by now.
  const std::string pid = std::to_string(getpid());
  const std::string name = window->address().substr(window->address().rfind(':'));
  EXPECT_FALSE(SharedWindow::Open(pid + ":0" + name, 4096).ok());
  for (const char* nonsense :
       {"", ":", "x", "1", "1:", "1:2", "1:2:", "99999999999999999999:1:a"}) {
    EXPECT_FALSE(SharedWindow::Open(nonsense, 4096).ok()) << nonsense;
  }
}

TEST(SharedWindow, CannotBeCutByItsPeer) {
  const Result<SharedWindow> window = SharedWindow::Create(4096);
  ASSERT_TRUE(window.ok());
  const std::string address = window->address();
  const std::string fd = address.substr(address.find(':') + 1);
  EXPECT_NE(truncate(("/proc/self/fd/" + fd.substr(0, fd.find(':'))).c_str(), 0), 0);
  EXPECT_TRUE(std::all_of(window->bytes().begin(), window->bytes().end(),
                          [](std::byte b) { return b == std::byte{0}; }));
}

}  // namespace
}  // namespace deepinfer
