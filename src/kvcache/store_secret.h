// The secret of a store, from which scopes and tags of tenants are derived (kv_format.md §15).
// Thread rule: pure functions on the file system.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "kvcache/file_system.h"

namespace deepinfer {

using StoreSecret = std::array<uint8_t, 32>;

// A new one, for keys that need not outlive the process.
Result<StoreSecret> RandomSecret();

// The 32 bytes of <root>/v1/secret, made on first use. Whoever has it can compute keys. One that a
// crash left empty or torn is made anew while no segment depends on it; data_corruption otherwise.
Result<StoreSecret> LoadOrCreateSecret(FileSystem* files, const std::string& root);

}  // namespace deepinfer
