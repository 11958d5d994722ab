// Identity of a checkpoint: one digest over every tensor and the bytes of every file
// (kv_format.md §5).
// Thread rule: pure functions on files; slow for large checkpoints.
#pragma once

#include <string>

#include "base/result.h"
#include "base/sha256.h"
#include "tensor/checkpoint.h"

namespace deepinfer {

// SHA-256 over the sorted list of (tensor name, dtype, shape, SHA-256 of its file). Digests of
// files are noted in cache_file with size, inode and times, so that a start reads only files that
// have changed since; "" keeps no note, and a note that cannot be written only costs time. Errors
// of reading the files.
Result<Sha256Digest> WeightsFingerprint(const Checkpoint& checkpoint,
                                        const std::string& cache_file);

}  // namespace deepinfer
