#include "base/isolated_runner.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include "base/clock.h"

namespace deepinfer {

namespace {

enum class Outcome : unsigned char { kAnswer, kFailed, kDeadline, kMemory, kReplySize, kCrashed };

// What the caller grants the host beyond the limit of the run before it takes it for dead: the
// host only has to be scheduled.
constexpr int64_t kHostGraceUs = 5'000'000;

int64_t NowUs() { return SteadyClock().NowUs(); }

// Rounded up, so that a poll never ends before the deadline; -1 means no deadline.
int MillisecondsUntil(int64_t deadline_us) {
  if (deadline_us < 0) return -1;
  return static_cast<int>(std::max<int64_t>(0, (deadline_us - NowUs() + 999) / 1000));
}

bool WriteAll(int fd, const void* data, size_t size) {
  const char* bytes = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = write(fd, bytes, size);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes += written;
    size -= static_cast<size_t>(written);
  }
  return true;
}

// False at the end of the stream, on errors and at the deadline.
bool ReadAll(int fd, void* data, size_t size, int64_t deadline_us) {
  char* bytes = static_cast<char*>(data);
  while (size > 0) {
    pollfd waited{fd, POLLIN, 0};
    const int ready = poll(&waited, 1, MillisecondsUntil(deadline_us));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    const ssize_t got = read(fd, bytes, size);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    bytes += got;
    size -= static_cast<size_t>(got);
  }
  return true;
}

bool WriteMessage(int fd, Outcome outcome, std::string_view text) {
  const uint64_t size = text.size();
  return WriteAll(fd, &outcome, sizeof(outcome)) && WriteAll(fd, &size, sizeof(size)) &&
         WriteAll(fd, text.data(), text.size());
}

std::optional<std::pair<Outcome, std::string>> ReadMessage(int fd, int64_t deadline_us) {
  Outcome outcome{};
  uint64_t size = 0;
  if (!ReadAll(fd, &outcome, sizeof(outcome), deadline_us)) return std::nullopt;
  if (!ReadAll(fd, &size, sizeof(size), deadline_us)) return std::nullopt;
  std::string text(size, '\0');
  if (!ReadAll(fd, text.data(), text.size(), deadline_us)) return std::nullopt;
  return std::pair{outcome, std::move(text)};
}

int64_t AddressSpaceBytes() {
  std::FILE* file = std::fopen("/proc/self/statm", "re");
  if (file == nullptr) return 0;
  int64_t num_pages = 0;
  if (std::fscanf(file, "%ld", &num_pages) != 1) num_pages = 0;
  std::fclose(file);
  return num_pages * sysconf(_SC_PAGESIZE);
}

void LimitMemory(int64_t bytes) {
  const auto limit = static_cast<rlim_t>(AddressSpaceBytes() + bytes);
  const rlimit address_space{limit, limit};
  setrlimit(RLIMIT_AS, &address_space);
  const rlimit no_core_file{0, 0};
  setrlimit(RLIMIT_CORE, &no_core_file);
}

// The process of one run. The first byte it writes is the outcome, the rest the answer.
[[noreturn]] void RunJob(const IsolatedRunner::Handler& handler, const IsolationLimits& limits,
                         std::string_view request, int reply_fd) {
  LimitMemory(limits.memory_bytes);
  Outcome outcome = Outcome::kAnswer;
  std::string answer;
  try {
    answer = handler(request);
  } catch (const std::bad_alloc&) {
    outcome = Outcome::kMemory;
  } catch (const std::exception& error) {
    outcome = Outcome::kFailed;
    answer.assign(error.what(), strnlen(error.what(), 4096));
  }
  if (answer.size() > static_cast<size_t>(limits.max_reply_bytes)) {
    outcome = Outcome::kReplySize;
    answer.clear();
  }
  const bool written = WriteAll(reply_fd, &outcome, sizeof(outcome)) &&
                       WriteAll(reply_fd, answer.data(), answer.size());
  _exit(written ? 0 : 1);
}

// Collects what a run writes until it ends, the time is over or the caller hangs up.
class JobOutput {
 public:
  JobOutput(int reply_fd, int socket, int64_t deadline_us)
      : reply_fd_(reply_fd), socket_(socket), deadline_us_(deadline_us) {}

  // False at the deadline or when nobody waits any more.
  bool Collect() {
    while (true) {
      pollfd waited[] = {{reply_fd_, POLLIN, 0}, {socket_, POLLIN, 0}};
      const int ready = poll(waited, 2, MillisecondsUntil(deadline_us_));
      if (ready < 0 && errno == EINTR) continue;
      if (ready <= 0 || waited[1].revents != 0) return false;
      char buffer[1 << 16];
      const ssize_t got = read(reply_fd_, buffer, sizeof(buffer));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return true;
      bytes_.append(buffer, static_cast<size_t>(got));
    }
  }

  // Nothing at all was written by a run that crashed.
  std::pair<Outcome, std::string_view> Parse() const {
    if (bytes_.empty()) return {Outcome::kCrashed, {}};
    return {static_cast<Outcome>(bytes_[0]), std::string_view(bytes_).substr(1)};
  }

 private:
  const int reply_fd_;
  const int socket_;
  const int64_t deadline_us_;
  std::string bytes_;
};

bool HandleRequest(const IsolatedRunner::Handler& handler, const IsolationLimits& limits,
                   std::string_view request, int socket) {
  const int64_t deadline_us = NowUs() + limits.time_us;
  int pipe_fds[2];
  if (pipe2(pipe_fds, O_CLOEXEC) != 0) return false;
  const pid_t job = fork();
  if (job == 0) {
    close(socket);
    close(pipe_fds[0]);
    RunJob(handler, limits, request, pipe_fds[1]);
  }
  close(pipe_fds[1]);
  if (job < 0) {
    close(pipe_fds[0]);
    return false;
  }
  JobOutput output(pipe_fds[0], socket, deadline_us);
  const bool ended = output.Collect();
  kill(job, SIGKILL);  // no effect on one that ended
  int wait_status = 0;
  waitpid(job, &wait_status, 0);
  close(pipe_fds[0]);
  if (!ended) return WriteMessage(socket, Outcome::kDeadline, {});
  const auto [outcome, text] = output.Parse();
  return WriteMessage(socket, outcome, text);
}

void CloseAllBut(int kept_fd) {
  if (kept_fd > 3) close_range(3, static_cast<unsigned>(kept_fd) - 1, 0);
  close_range(static_cast<unsigned>(kept_fd) + 1, ~0U, 0);
}

// The host process: waits for requests until the caller closes its end.
[[noreturn]] void RunHost(const IsolatedRunner::Handler& handler, const IsolationLimits& limits,
                          int socket) {
  // A terminal sends its signals to the whole group; the end of this process is the caller's.
  for (int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) signal(number, SIG_IGN);
  signal(SIGCHLD, SIG_DFL);
  prctl(PR_SET_NAME, "di-isolated");
  // Listening sockets and files of the caller must not live on here.
  CloseAllBut(socket);
  while (auto request = ReadMessage(socket, -1)) {
    if (!HandleRequest(handler, limits, request->second, socket)) break;
  }
  _exit(0);
}

}  // namespace

IsolatedRunner::IsolatedRunner(Handler handler, IsolationLimits limits)
    : handler_(std::move(handler)), limits_(limits) {}

IsolatedRunner::~IsolatedRunner() { EndHost(); }

Result<std::unique_ptr<IsolatedRunner>> IsolatedRunner::Start(Handler handler,
                                                              IsolationLimits limits) {
  std::unique_ptr<IsolatedRunner> runner(new IsolatedRunner(std::move(handler), limits));
  DI_RETURN_IF_ERROR(runner->StartHost());
  return runner;
}

Status IsolatedRunner::StartHost() {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) {
    return Unavailable(std::string("no socket for an isolated process: ") + std::strerror(errno));
  }
  const pid_t pid = fork();
  if (pid == 0) {
    close(sockets[0]);
    RunHost(handler_, limits_, sockets[1]);
  }
  close(sockets[1]);
  if (pid < 0) {
    close(sockets[0]);
    return Unavailable(std::string("cannot start an isolated process: ") + std::strerror(errno));
  }
  host_pid_ = pid;
  socket_ = sockets[0];
  return OkStatus();
}

void IsolatedRunner::EndHost() {
  if (host_pid_ < 0) return;
  // The host kills its run when the socket closes; one that hangs itself is killed here.
  close(socket_);
  const int64_t deadline_us = NowUs() + kHostGraceUs;
  pid_t ended = 0;
  while ((ended = waitpid(host_pid_, nullptr, WNOHANG)) == 0 && NowUs() < deadline_us) {
    usleep(1000);
  }
  if (ended == 0) {
    kill(host_pid_, SIGKILL);
    waitpid(host_pid_, nullptr, 0);
  }
  host_pid_ = -1;
  socket_ = -1;
}

Result<std::string> IsolatedRunner::Run(std::string_view request) {
  if (host_pid_ < 0) DI_RETURN_IF_ERROR(StartHost());
  const int64_t deadline_us = NowUs() + limits_.time_us + kHostGraceUs;
  std::optional<std::pair<Outcome, std::string>> reply;
  if (WriteMessage(socket_, Outcome::kAnswer, request)) reply = ReadMessage(socket_, deadline_us);
  if (!reply) {
    EndHost();
    return Unavailable("the isolated process ended unexpectedly");
  }
  switch (reply->first) {
    case Outcome::kAnswer:
      return std::move(reply->second);
    case Outcome::kFailed:
      return Internal(std::move(reply->second));
    case Outcome::kDeadline:
      return DeadlineExceeded("took longer than " + std::to_string(limits_.time_us / 1000) + " ms");
    case Outcome::kMemory:
      return ResourceExhausted("needs more than " + std::to_string(limits_.memory_bytes >> 20) +
                               " MiB of memory");
    case Outcome::kReplySize:
      return ResourceExhausted("the result is larger than " +
                               std::to_string(limits_.max_reply_bytes >> 20) + " MiB");
    case Outcome::kCrashed:
      break;
  }
  return Internal("the isolated process crashed");
}

}  // namespace deepinfer
