// The bytes on disk, version 1 (kv_format.md §9-§13): fixed little-endian structures that are
// written and read as they stand in memory, each with its own checksum. A structure read from disk
// means nothing until its IsIntact said yes.
//
// Thread rule: values and pure functions.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>

#include "kvcache/keys.h"
#include "kvcache/layout.h"

namespace deepinfer {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

// "DIKVREC1" as the eight bytes it is on disk.
constexpr uint64_t MagicNumber(const char (&text)[9]) {
  uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = value << 8 | static_cast<uint8_t>(text[i]);
  return value;
}
inline constexpr uint64_t kRecordMagic = MagicNumber("DIKVREC1");
inline constexpr uint64_t kRecordEndMagic = MagicNumber("DIKVEND1");
inline constexpr uint64_t kSegmentMagic = MagicNumber("DIKVSEG1");
inline constexpr uint64_t kFooterMagic = MagicNumber("DIKVFTR1");
inline constexpr uint64_t kTouchMagic = MagicNumber("DIKVTCH1");
inline constexpr uint16_t kFormatVersion = 1;

// How long a block is kept after its last touch; the order in which pressure takes them.
enum class RetentionClass : uint8_t { kBatch = 0, kAgent = 1, kChat = 2, kPinned = 3 };
inline constexpr size_t kNumRetentionClasses = 4;
// As flags, keys and tools write them.
inline constexpr std::array<std::string_view, kNumRetentionClasses> kRetentionClassNames = {
    "batch", "agent", "chat", "pinned"};

// A class that requests may have: any but kPinned, which operators give.
constexpr std::optional<RetentionClass> ParseRequestClass(std::string_view name) {
  for (size_t i = 0; i < static_cast<size_t>(RetentionClass::kPinned); ++i) {
    if (name == kRetentionClassNames[i]) return static_cast<RetentionClass>(i);
  }
  return std::nullopt;
}

// Bits of RecordHeader::flags.
inline constexpr uint32_t kRecordEncrypted = 1;
inline constexpr uint32_t kRecordHasGenerated = 2;
inline constexpr uint32_t kRecordPublicScope = 4;
inline constexpr uint32_t kRecordCopiedForward = 8;
inline constexpr uint32_t kRecordAbsoluteDeadline = 16;  // a touch does not extend its life

struct SectionEntry {
  uint32_t offset = 0;  // from the start of the record
  uint32_t length = 0;
  uint32_t crc = 0;  // of the stored bytes
};

struct RecordHeader {
  uint64_t magic = kRecordMagic;
  uint16_t version = kFormatVersion;
  uint16_t header_bytes = kRecordHeaderBytes;
  uint32_t flags = 0;
  uint32_t format_id = 0;
  uint8_t retention = 0;
  uint8_t num_sections = 0;
  uint16_t zero = 0;
  uint64_t tenant_tag = 0;
  BlockKey key;
  std::array<uint8_t, 16> parent_prefix{};  // zero for block 0
  uint32_t block_number = 0;
  uint16_t block_tokens = 0;
  uint16_t replay_gen = 0;
  uint64_t created_ns = 0;  // Unix; of a copy: the last touch of its source
  uint64_t sequence = 0;    // +1 per record within the epoch
  uint64_t writer_id = 0;   // epoch
  uint64_t payload_bytes = 0;
  std::array<SectionEntry, kMaxSections> sections{};
  std::array<uint8_t, 12> nonce{};
  std::array<uint8_t, 16> tag{};
  std::array<uint8_t, 32> reserved{};
  uint32_t crc = 0;  // of all bytes before it

  void Seal();
  bool IsIntact() const;
};
static_assert(sizeof(RecordHeader) == kRecordHeaderBytes);
static_assert(offsetof(RecordHeader, key) == 32 && offsetof(RecordHeader, sections) == 120 &&
              offsetof(RecordHeader, nonce) == 192 && offsetof(RecordHeader, crc) == 252);

struct RecordTrailer {
  uint64_t sequence = 0;
  uint32_t header_crc = 0;
  uint32_t zero = 0;
  uint64_t writer_id = 0;
  uint64_t magic = kRecordEndMagic;

  bool Belongs(const RecordHeader& header) const;
};
static_assert(sizeof(RecordTrailer) == kRecordTrailerBytes);

// First page of a segment. Only the bucket and the checksum ever change.
struct Superblock {
  uint64_t magic = kSegmentMagic;
  uint16_t version = kFormatVersion;
  uint16_t page_shift = 12;
  uint32_t segment_pages = 0;
  uint32_t format_id = 0;
  uint8_t retention = 0;
  uint8_t num_sections = 0;
  uint16_t record_pages = 0;
  uint32_t capacity = 0;
  uint32_t footer_pages = 0;
  Sha256Digest namespace_id{};
  uint64_t writer_id = 0;
  uint64_t segment_number = 0;
  uint64_t created_ns = 0;
  uint64_t bucket_hour = 0;  // Unix hours: every record's deadline lies before it
  std::array<KvSectionLayout, kMaxSections> sections{};
  uint32_t block_tokens = 0;
  std::array<uint8_t, 3944> reserved{};
  uint32_t crc = 0;

  void Seal();
  bool IsIntact() const;
  // Of what never changes: bytes before the bucket.
  uint32_t IdentityCrc() const;
  // data_corruption when the sizes contradict each other.
  Result<KvBlockLayout> Layout() const;
};
static_assert(sizeof(Superblock) == kPageBytes && sizeof(KvSectionLayout) == 8);
static_assert(offsetof(Superblock, bucket_hour) == 88 && offsetof(Superblock, sections) == 96 &&
              offsetof(Superblock, block_tokens) == 144 && offsetof(Superblock, crc) == 4092);

enum class IndexOp : uint8_t {
  kAdd = 1,
  kSegmentSealed = 2,
  kSegmentRemoved = 3,
  kEraseKey = 4,
  kEraseTenant = 5,
  kRecordDropped = 6,
};

// One line of index.log and of a footer.
struct IndexEntry {
  BlockKey key;
  uint64_t tenant_tag = 0;
  uint32_t segment_number = 0;
  uint32_t page = 0;  // of an erasure: when, Unix seconds
  uint32_t block_number = 0;
  uint32_t parent_hint = 0;  // first 4 bytes of the parent key
  uint16_t replay_gen = 0;
  uint8_t retention = 0;
  uint8_t op = 0;
  uint32_t crc = 0;

  void Seal();
  bool IsIntact() const;
  // False for what only a later version writes.
  bool IsKnown() const;
  bool Is(IndexOp wanted) const { return op == static_cast<uint8_t>(wanted); }
};
static_assert(sizeof(IndexEntry) == 64 && offsetof(IndexEntry, crc) == 60);

// The last 64 bytes of the footer's pages; the entries stand at their begin.
struct FooterTrailer {
  uint64_t magic = kFooterMagic;
  uint32_t record_count = 0;
  uint32_t entries_crc = 0;
  uint64_t sealed_ns = 0;
  uint64_t writer_id = 0;
  uint64_t segment_number = 0;
  uint32_t superblock_crc = 0;  // Superblock::IdentityCrc
  std::array<uint8_t, 16> reserved{};
  uint32_t crc = 0;

  void Seal();
  bool IsIntact() const;
};
static_assert(sizeof(FooterTrailer) == 64 && offsetof(FooterTrailer, crc) == 60);

struct TouchItem {
  uint32_t segment_number = 0;
  uint16_t record_index = 0;
  uint16_t touches = 0;
};

inline constexpr size_t kTouchesPerPage = 509;

// A page of touch.log. The checksum is that of the page with a zero checksum.
struct TouchPage {
  uint64_t magic = kTouchMagic;
  uint32_t hour = 0;  // Unix hours
  uint16_t count = 0;
  uint16_t zero = 0;
  uint32_t crc = 0;
  uint32_t zero2 = 0;
  std::array<TouchItem, kTouchesPerPage> items{};

  void Seal();
  bool IsIntact() const;
};
static_assert(sizeof(TouchPage) == kPageBytes && offsetof(TouchPage, crc) == 16);

// A structure as bytes, and back. bytes holds at least sizeof(T).
template <typename T>
std::span<const std::byte> AsBytes(const T& value) {
  return {reinterpret_cast<const std::byte*>(&value), sizeof(T)};
}
template <typename T>
T FromBytes(std::span<const std::byte> bytes) {
  T value;
  std::memcpy(static_cast<void*>(&value), bytes.data(), sizeof(T));
  return value;
}

}  // namespace deepinfer
