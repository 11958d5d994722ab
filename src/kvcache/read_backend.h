// How bytes come off the disk: one interface over io_uring, a few reading threads, or the caller's
// own thread (kv_format.md §17).
// Thread rule: Submit from any thread; `done` runs on a thread of the backend (or the caller's for
// the inline one) and must not block. Owner: the store.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "kvcache/file_system.h"

namespace deepinfer {

// One read. Whoever waits for `done` keeps `into` alive until it ran, however late that is.
struct ReadRequest {
  std::shared_ptr<File> file;
  // Opens the file on the backend's thread when `file` is null: an open may wait for a network.
  std::function<Result<std::shared_ptr<File>>()> open;
  std::span<std::byte> into;
  int64_t offset = 0;
  std::function<void(Result<size_t>)> done;
};

// Opens the file of the request if it is not open yet.
Status OpenFor(ReadRequest* request);
// The whole request on this thread.
void ReadHere(ReadRequest request);

class ReadBackend {
 public:
  // Returns when every submitted read is done.
  virtual ~ReadBackend() = default;
  virtual void Submit(ReadRequest request) = 0;
  virtual const char* name() const = 0;
};

// Reads inside Submit.
std::unique_ptr<ReadBackend> MakeInlineReads();
// pread on num_threads threads.
std::unique_ptr<ReadBackend> MakeThreadReads(int32_t num_threads);
// One thread with one ring of `depth` reads in flight; unsupported where the kernel refuses rings.
Result<std::unique_ptr<ReadBackend>> MakeUringReads(int32_t depth);

}  // namespace deepinfer
