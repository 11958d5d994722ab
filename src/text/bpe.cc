#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <queue>

namespace deepinfer {
namespace {

// Up to here the quadratic scan over a stack array beats the heap.
constexpr size_t kMaxShortSymbols = 32;

// 2^64 divided by the golden ratio: multiplicative hashing takes the high bits.
constexpr uint64_t kHashMultiplier = 0x9E3779B97F4A7C15u;

constexpr uint32_t kNone = UINT32_MAX;

size_t TableSize(size_t num_entries) { return std::bit_ceil(std::max<size_t>(num_entries * 2, 2)); }

uint64_t LoadBytes(const char* p, size_t size_bytes) {
  uint64_t word = 0;
  std::memcpy(&word, p, size_bytes);
  return word;
}

uint32_t HashPiece(std::string_view piece) {
  uint64_t hash = piece.size();
  const char* p = piece.data();
  size_t left = piece.size();
  for (; left > 8; p += 8, left -= 8) {
    hash = (std::rotl(hash, 23) ^ LoadBytes(p, 8)) * kHashMultiplier;
  }
  hash = (std::rotl(hash, 23) ^ LoadBytes(p, left)) * kHashMultiplier;
  return static_cast<uint32_t>(hash >> 32);
}

}  // namespace

BpeMergeTable::BpeMergeTable(const std::vector<BpeMerge>& merges_by_rank) {
  const size_t num_slots = TableSize(merges_by_rank.size());
  shift_ = 64 - static_cast<unsigned>(std::countr_zero(num_slots));
  slots_.resize(num_slots);
  for (size_t rank = 0; rank < merges_by_rank.size(); ++rank) {
    const BpeMerge& merge = merges_by_rank[rank];
    const uint64_t key = Key(merge.left, merge.right);
    size_t i = FirstSlot(key);
    while (slots_[i].key != kEmptyKey) i = (i + 1) & (slots_.size() - 1);
    slots_[i] = {key, {static_cast<uint32_t>(rank), merge.result}};
  }
}

uint64_t BpeMergeTable::Key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

size_t BpeMergeTable::FirstSlot(uint64_t key) const { return (key * kHashMultiplier) >> shift_; }

inline BpeMergeTable::Found BpeMergeTable::Find(int32_t left, int32_t right) const {
  const uint64_t key = Key(left, right);
  size_t i = FirstSlot(key);
  while (slots_[i].key != key) {
    if (slots_[i].key == kEmptyKey) return {kNoRank, -1};
    i = (i + 1) & (slots_.size() - 1);
  }
  return slots_[i].found;
}

void BpeModel::Encode(std::string_view piece, std::vector<int32_t>* ids) const {
  if (piece.size() <= kMaxShortSymbols) {
    EncodeShort(piece, ids);
  } else {
    EncodeLong(piece, ids);
  }
}

void BpeModel::EncodeShort(std::string_view piece, std::vector<int32_t>* ids) const {
  std::array<int32_t, kMaxShortSymbols> symbols;
  // merges[i] is what the pair (i, i + 1) gives; the last entry stays unmergeable.
  std::array<BpeMergeTable::Found, kMaxShortSymbols> merges;
  size_t count = piece.size();
  for (size_t i = 0; i < count; ++i) symbols[i] = byte_ids_[static_cast<unsigned char>(piece[i])];
  for (size_t i = 0; i + 1 < count; ++i) merges[i] = merges_.Find(symbols[i], symbols[i + 1]);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (merges[i].rank < merges[best].rank) best = i;
    }
    if (merges[best].rank == BpeMergeTable::kNoRank) break;
    symbols[best] = merges[best].result;
    std::copy(symbols.begin() + best + 2, symbols.begin() + count, symbols.begin() + best + 1);
    if (best + 2 < count) {
      std::copy(merges.begin() + best + 2, merges.begin() + count - 1, merges.begin() + best + 1);
    }
    --count;
    if (best > 0) merges[best - 1] = merges_.Find(symbols[best - 1], symbols[best]);
    if (best + 1 < count) merges[best] = merges_.Find(symbols[best], symbols[best + 1]);
  }
  ids->insert(ids->end(), symbols.begin(), symbols.begin() + count);
}

void BpeModel::EncodeLong(std::string_view piece, std::vector<int32_t>* ids) const {
  struct Symbol {
    int32_t id;  // -1 once merged into its left neighbour
    uint32_t previous;
    uint32_t next;
  };
  const auto size = static_cast<uint32_t>(piece.size());
  std::vector<Symbol> symbols(size);
  for (uint32_t i = 0; i < size; ++i) {
    symbols[i] = {byte_ids_[static_cast<unsigned char>(piece[i])], i == 0 ? kNone : i - 1,
                  i + 1 == size ? kNone : i + 1};
  }
  const auto find = [&](uint32_t left) -> BpeMergeTable::Found {
    const Symbol& symbol = symbols[left];
    if (symbol.id < 0 || symbol.next == kNone) return {BpeMergeTable::kNoRank, -1};
    return merges_.Find(symbol.id, symbols[symbol.next].id);
  };

  // Rank in the high half, position of the left symbol in the low half: the order of merging.
  std::vector<uint64_t> initial;
  initial.reserve(size);
  const auto entry = [](uint32_t rank, uint32_t left) {
    return static_cast<uint64_t>(rank) << 32 | left;
  };
  for (uint32_t i = 0; i + 1 < size; ++i) {
    const uint32_t rank = find(i).rank;
    if (rank != BpeMergeTable::kNoRank) initial.push_back(entry(rank, i));
  }
  std::priority_queue queue(std::greater<uint64_t>(), std::move(initial));
  const auto push = [&](uint32_t left) {
    const uint32_t rank = find(left).rank;
    if (rank != BpeMergeTable::kNoRank) queue.push(entry(rank, left));
  };

  while (!queue.empty()) {
    const uint64_t top = queue.top();
    queue.pop();
    const auto left = static_cast<uint32_t>(top);
    const BpeMergeTable::Found found = find(left);
    // An older entry whose pair has changed since; the present pair has its own entry.
    if (found.rank != top >> 32) continue;
    Symbol& symbol = symbols[left];
    Symbol& absorbed = symbols[symbol.next];
    symbol.id = found.result;
    symbol.next = absorbed.next;
    absorbed.id = -1;
    if (symbol.next != kNone) symbols[symbol.next].previous = left;
    push(left);
    if (symbol.previous != kNone) push(symbol.previous);
  }
  for (uint32_t i = 0; i != kNone; i = symbols[i].next) ids->push_back(symbols[i].id);
}

SingleTokenPieces::SingleTokenPieces(size_t max_num_pieces)
    : mask_(TableSize(max_num_pieces) - 1), slots_(mask_ + 1) {}

void SingleTokenPieces::Add(std::string_view piece, int32_t id) {
  const uint32_t hash = HashPiece(piece);
  size_t i = hash & mask_;
  while (slots_[i].id >= 0) i = (i + 1) & mask_;
  slots_[i] = {piece, hash, id};
}

int32_t SingleTokenPieces::Find(std::string_view piece) const {
  const uint32_t hash = HashPiece(piece);
  size_t i = hash & mask_;
  while (slots_[i].id >= 0 && (slots_[i].hash != hash || slots_[i].piece != piece)) {
    i = (i + 1) & mask_;
  }
  return slots_[i].id;
}

}  // namespace deepinfer
