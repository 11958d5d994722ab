// Names below the root of a store, the checks when one is opened (kv_format.md §15).
// Thread rule: pure functions on the file system.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"
#include "kvcache/file_system.h"

namespace deepinfer {

// <root>/v1/<first 16 hex digits of the namespace>.
std::string NamespaceFolder(const std::string& root, const Sha256Digest& namespace_id);
bool IsNamespaceFolderName(std::string_view name);

// Makes root, v1 and the namespace's folder with its ns.toml, or checks that the ns.toml there is
// of the same namespace. text: further lines for people.
Status PrepareNamespace(FileSystem* files, const std::string& root,
                        const Sha256Digest& namespace_id, const std::string& text);

// "<node>-<epoch, 16 hex>", and behind it ".adopted-by-<the same of the adopter>" when the owner
// died.
std::string EpochFolderName(const std::string& node, uint64_t epoch);
struct EpochFolder {
  std::string name;
  std::string node;
  uint64_t epoch = 0;
  std::string owner;  // name of the folder of whoever owns this one: itself, or the adopter's
};
std::string AdoptedFolderName(const EpochFolder& folder, const std::string& adopter);
std::optional<EpochFolder> ParseEpochFolderName(std::string_view name);
// Every epoch folder of a namespace.
Result<std::vector<EpochFolder>> ListEpochFolders(FileSystem* files,
                                                  const std::string& namespace_folder);

// Files of an epoch folder besides its segments.
bool IsStoreFile(std::string_view name);

// Random bytes from the system.
Status FillRandom(std::span<uint8_t> bytes);

// A new random number from the system, for epochs.
Result<uint64_t> RandomEpoch();

}  // namespace deepinfer
