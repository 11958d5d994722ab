// Looks at a store without owning it: what is there, and whether it is whole. Works beside a
// running owner, whose newest records may be missing from the picture.
// Thread rule: pure functions on the file system.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kvcache/segment_file.h"

namespace deepinfer {

struct SegmentView {
  std::string path;
  std::string folder;     // name of the epoch folder
  std::string extension;  // "open", "seg", "bad"
  int64_t size_bytes = 0;
  Status status;  // why content is empty
  std::optional<SegmentContent> content;
};

struct NamespaceView {
  std::string folder;
  Sha256Digest id{};
  std::vector<SegmentView> segments;  // by folder, then number
};

// Every namespace below the root. not_found when there is no store.
Result<std::vector<NamespaceView>> InspectStore(FileSystem* files, const std::string& root);

struct VerifyProblem {
  std::string path;
  int64_t record = -1;  // -1: the segment as a whole
  std::string what;
};

struct VerifyReport {
  int64_t segments = 0;
  int64_t records = 0;  // read and checked
  std::vector<VerifyProblem> problems;
};

// Reads every sample-th record of a namespace completely (1: all) and compares it with the entry
// that lists it; checks footers and names files that belong to nothing.
// on_segment is called before each segment, with its path.
Result<VerifyReport> VerifyNamespace(FileSystem* files, const NamespaceView& view, int64_t sample,
                                     const std::function<void(const std::string&)>& on_segment);

// Keys of the blocks whose chain contains `key`, itself first, as far as they are stored.
std::vector<BlockKey> DescendantsOf(FileSystem* files, const NamespaceView& view,
                                    const BlockKey& key);

// A block of a prefix.
struct ChainBlock {
  BlockKey key;
  uint32_t number = 0;
};
// The stored blocks from block 0, or from as far back as they are stored, to `key`. Empty when it
// is not stored.
std::vector<ChainBlock> ChainTo(FileSystem* files, const NamespaceView& view, const BlockKey& key);

// 64 hex digits.
Result<BlockKey> ParseKey(const std::string& hex);

}  // namespace deepinfer
