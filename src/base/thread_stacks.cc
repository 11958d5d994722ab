#include "base/thread_stacks.h"

#include <execinfo.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>

namespace deepinfer {

namespace {

constexpr int kMaxFrames = 64;
// The default action of this signal is to ignore it, so one that comes late does no harm.
constexpr int kSignal = SIGURG;

enum class SlotState : int { kFree, kAsked, kWriting, kAnswered };

// A signal handler gets at nothing that is not of the process: where the asked thread answers.
struct Slot {
  std::atomic<SlotState> state{SlotState::kFree};
  std::atomic<pid_t> wanted{0};
  std::array<void*, kMaxFrames> frames{};
  int num_frames = 0;
};
Slot g_slot;
std::mutex g_collecting;

pid_t ThreadId() { return static_cast<pid_t>(syscall(SYS_gettid)); }

void Answer(int) {
  const int saved_errno = errno;
  SlotState asked = SlotState::kAsked;
  if (g_slot.wanted.load() == ThreadId() &&
      g_slot.state.compare_exchange_strong(asked, SlotState::kWriting)) {
    g_slot.num_frames = backtrace(g_slot.frames.data(), kMaxFrames);
    g_slot.state.store(SlotState::kAnswered);
  }
  errno = saved_errno;
}

bool Reaches(SlotState wanted, std::chrono::milliseconds limit) {
  const auto until = std::chrono::steady_clock::now() + limit;
  while (g_slot.state.load() != wanted) {
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

// Precondition: the handler is in place. A slot in which a thread hangs is never free again.
std::vector<void*> Ask(pid_t thread_id, std::chrono::milliseconds limit) {
  if (g_slot.state.load() != SlotState::kFree) return {};
  g_slot.wanted.store(thread_id);
  g_slot.state.store(SlotState::kAsked);
  std::vector<void*> frames;
  if (syscall(SYS_tgkill, getpid(), thread_id, kSignal) == 0) {
    (void)Reaches(SlotState::kAnswered, limit);
  }
  SlotState asked = SlotState::kAsked;
  if (g_slot.state.compare_exchange_strong(asked, SlotState::kFree)) return frames;
  if (!Reaches(SlotState::kAnswered, limit)) return frames;
  frames.assign(g_slot.frames.begin(), g_slot.frames.begin() + g_slot.num_frames);
  g_slot.state.store(SlotState::kFree);
  return frames;
}

struct NamedThread {
  std::string name;
  pid_t thread_id = 0;
};

std::vector<NamedThread> ThreadsNamed(std::span<const std::string_view> names) {
  std::vector<NamedThread> threads;
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", error)) {
    NamedThread thread;
    thread.thread_id = static_cast<pid_t>(std::atoi(task.path().filename().c_str()));
    std::ifstream(task.path() / "comm") >> thread.name;
    if (thread.thread_id == ThreadId()) continue;
    if (std::find(names.begin(), names.end(), thread.name) != names.end()) {
      threads.push_back(std::move(thread));
    }
  }
  return threads;
}

}  // namespace

std::vector<ThreadStack> CollectStacks(std::span<const std::string_view> names,
                                       std::chrono::milliseconds limit) {
  const std::lock_guard lock(g_collecting);
  // The first call loads the unwinder, which a signal handler must not.
  std::array<void*, 1> frame{};
  (void)backtrace(frame.data(), 1);
  struct sigaction answer {};
  answer.sa_handler = Answer;
  answer.sa_flags = SA_RESTART;
  struct sigaction before {};
  if (sigaction(kSignal, &answer, &before) != 0) return {};
  std::vector<ThreadStack> stacks;
  for (NamedThread& thread : ThreadsNamed(names)) {
    stacks.push_back({std::move(thread.name), thread.thread_id, Ask(thread.thread_id, limit)});
  }
  (void)sigaction(kSignal, &before, nullptr);
  return stacks;
}

std::string DescribeFrames(std::span<void* const> frames) {
  std::string text;
  const std::unique_ptr<char*, decltype(&std::free)> symbols(
      backtrace_symbols(frames.data(), static_cast<int>(frames.size())), std::free);
  if (symbols == nullptr) return text;
  for (size_t i = 0; i < frames.size(); ++i) {
    if (i > 0) text += "; ";
    text += symbols.get()[i];
  }
  return text;
}

}  // namespace deepinfer
