// What the tools of `deepinfer kv` share: files and clocks of a run, and a store opened as its
// owner.
// Thread rule: main thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "kvcache/kv_store.h"
#include "kvcache/store_inspector.h"

namespace deepinfer {

struct KvEnvironment {
  std::unique_ptr<FileSystem> files = MakePosixFileSystem();
  SteadyClock clock;
  SystemWallClock wall_clock;
};

// Every namespace of the store. not_found when there is none.
Result<std::vector<NamespaceView>> InspectKvStore(const KvEnvironment& environment,
                                                  const std::string& dir);

// Of a store that a tool opens.
struct KvOwnerOptions {
  Sha256Digest namespace_id{};
  KvBlockLayout layout;
  int64_t space_bytes = INT64_MAX / 2;
  std::string key_file;
};
// Opens the store as its owner, in shared mode when others use it that way: then as one more
// process, which has read what the others stored. resource_exhausted while a server that does not
// share has it open.
Result<std::unique_ptr<KvStore>> OpenKvStore(KvEnvironment* environment, const std::string& dir,
                                             const KvOwnerOptions& options);
// The layout of the first readable segment. not_found when there is none.
Result<KvBlockLayout> LayoutOf(const NamespaceView& view);

// The namespace whose id begins with the given hex digits; without any, the only one there is.
// invalid_request when several begin so.
Result<const NamespaceView*> SelectNamespace(const std::vector<NamespaceView>& views,
                                             const std::string& ns);
// Deletes all blocks of a namespace with its folder; the number of blocks. resource_exhausted while
// a server has it open, invalid_request when servers share it.
Result<int64_t> RemoveNamespace(KvEnvironment* environment, const NamespaceView& view);

// Rounds of the janitor until copies are committed and their sources are gone.
void FinishCopies(KvStore* store);

// "[a,b]" of JSON values.
std::string JoinJson(const std::vector<std::string>& items);

}  // namespace deepinfer
