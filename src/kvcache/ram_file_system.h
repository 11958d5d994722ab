// Files that live in memory for as long as the object: what a replay of a trace gives to a real
// store. Pages are kept without the zeros at their ends, so a small record costs what it holds.
// Nothing is durable and nothing fails.
// Thread rule: one thread.
#pragma once

#include <memory>

#include "kvcache/file_system.h"

namespace deepinfer {

std::unique_ptr<FileSystem> MakeRamFileSystem();

}  // namespace deepinfer
