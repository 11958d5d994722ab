// Appends lines to a file, each whole or not at all.
// Thread rule: one object, one thread. Owner: the writer of the file.
#pragma once

#include <string_view>

namespace deepinfer {

class LineAppender {
 public:
  // line: without a newline. fd: opened with O_APPEND, nobody else writes there. False, with errno
  // set, when no part of the line is left in the file or what is left will not be taken for a line.
  bool Append(int fd, std::string_view line);

  // For another file.
  void Reset() { has_torn_line_ = false; }

 private:
  bool has_torn_line_ = false;
};

}  // namespace deepinfer
