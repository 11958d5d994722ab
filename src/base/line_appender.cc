#include "base/line_appender.h"

#include <unistd.h>

#include <cerrno>
#include <string>

namespace deepinfer {

bool LineAppender::Append(int fd, std::string_view line) {
  std::string bytes(has_torn_line_ ? "\n" : "");
  bytes.append(line).append("\n");
  const off_t begin = lseek(fd, 0, SEEK_END);
  const ssize_t written = write(fd, bytes.data(), bytes.size());
  if (written == static_cast<ssize_t>(bytes.size())) {
    has_torn_line_ = false;
    return true;
  }
  const int reason = written < 0 ? errno : ENOSPC;
  // No part of a line stays; where that fails too the next one starts on a line of its own.
  if (written > 0 && ftruncate(fd, begin) != 0) has_torn_line_ = true;
  errno = reason;
  return false;
}

}  // namespace deepinfer
