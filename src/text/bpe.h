// Byte-pair merges by rank inside one piece (encoding.md §2, step 4).
// Thread rule: immutable after construction. Owner: Tokenizer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace deepinfer {

struct BpeMerge {
  int32_t left;
  int32_t right;
  int32_t result;
};

// Flat hash map (left id, right id) -> (rank, result id). Open addressing, at most half full.
class BpeMergeTable {
 public:
  static constexpr uint32_t kNoRank = UINT32_MAX;

  struct Found {
    uint32_t rank;  // kNoRank: the pair does not merge
    int32_t result;
  };

  explicit BpeMergeTable(const std::vector<BpeMerge>& merges_by_rank);

  Found Find(int32_t left, int32_t right) const;

 private:
  struct Slot {
    uint64_t key = kEmptyKey;
    Found found = {kNoRank, -1};
  };
  // Ids are not negative, so no pair packs to this.
  static constexpr uint64_t kEmptyKey = UINT64_MAX;

  static uint64_t Key(int32_t left, int32_t right);
  size_t FirstSlot(uint64_t key) const;

  unsigned shift_;
  std::vector<Slot> slots_;
};

class BpeModel {
 public:
  // merges_by_rank: pairs are distinct. byte_ids: the id of each single byte.
  BpeModel(const std::vector<BpeMerge>& merges_by_rank, const std::array<int32_t, 256>& byte_ids)
      : merges_(merges_by_rank), byte_ids_(byte_ids) {}

  // Appends the ids of one piece: the lowest rank merges first, among equals the leftmost.
  // Linear-logarithmic in the size. Precondition: piece.size() < 2^32.
  void Encode(std::string_view piece, std::vector<int32_t>* ids) const;

 private:
  void EncodeShort(std::string_view piece, std::vector<int32_t>* ids) const;
  void EncodeLong(std::string_view piece, std::vector<int32_t>* ids) const;

  BpeMergeTable merges_;
  std::array<int32_t, 256> byte_ids_;
};

// Pieces that merge into exactly one token, so that most words cost one look-up. A token spelled
// like the piece is not enough: merging by rank may get stuck before it.
class SingleTokenPieces {
 public:
  // Longer pieces are rare in text and hash slowly.
  static constexpr size_t kMaxPieceBytes = 32;

  explicit SingleTokenPieces(size_t max_num_pieces);

  // Precondition: 0 < piece.size() <= kMaxPieceBytes, fewer than max_num_pieces added so far, and
  // the storage of `piece` outlives this object.
  void Add(std::string_view piece, int32_t id);

  // -1 when the piece is not known.
  int32_t Find(std::string_view piece) const;

 private:
  struct Slot {
    std::string_view piece;
    uint32_t hash = 0;
    int32_t id = -1;
  };

  size_t mask_;
  std::vector<Slot> slots_;
};

}  // namespace deepinfer
