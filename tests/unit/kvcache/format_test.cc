// The bytes on disk against those that an independent script wrote, and their checks against
// damage.
#include "kvcache/format.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include "kvcache/record.h"
#include "kvcache/record_cipher.h"
#include "support/memory_file_system.h"
#include "support/source_dir.h"

namespace deepinfer {
namespace {

constexpr uint64_t kEpoch = 0x1122334455667788;
constexpr uint64_t kTenant = 0xA0B0C0D0E0F00010;
constexpr uint64_t kCreatedNs = 1'767'225'600'000'000'000;

std::vector<std::byte> Vector(const std::string& name) {
  std::ifstream file(SourceDir() + "/tests/data/kvcache/" + name, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const auto* first = reinterpret_cast<const std::byte*>(text.data());
  return {first, first + text.size()};
}

KvBlockLayout Layout() {
  KvBlockLayout layout;
  layout.format_id = kFirstTestFormat;
  layout.block_tokens = 8;
  layout.segment_pages = 5;
  layout.sections = {{2, 4, 36, 9}, {20, 8, 36, 9}};
  return layout;
}

BlockKey Key(uint32_t number) {
  BlockKey key;
  for (size_t i = 0; i < 32; ++i) key.bytes[i] = static_cast<uint8_t>(number * 16 + i);
  return key;
}

std::vector<std::byte> Record(uint32_t number) {
  const KvBlockLayout layout = Layout();
  std::vector<std::byte> record(static_cast<size_t>(layout.record_bytes()), std::byte{0xEE});
  for (size_t i = 0; i < static_cast<size_t>(layout.payload_bytes()); ++i) {
    record[kRecordHeaderBytes + i] = std::byte{static_cast<uint8_t>(number + 3 * i)};
  }
  RecordHeader header;
  header.flags = kRecordHasGenerated;
  header.retention = static_cast<uint8_t>(RetentionClass::kAgent);
  header.tenant_tag = kTenant;
  header.key = Key(number);
  if (number > 0) std::copy_n(Key(number - 1).bytes.begin(), 16, header.parent_prefix.begin());
  header.block_number = number;
  header.replay_gen = 5;
  header.created_ns = kCreatedNs + number;
  header.sequence = 40 + number;
  header.writer_id = kEpoch;
  SealRecord(layout, header, record);
  return record;
}

Superblock SegmentSuperblock() {
  const KvBlockLayout layout = Layout();
  Superblock superblock;
  superblock.segment_pages = layout.segment_pages;
  superblock.format_id = layout.format_id;
  superblock.retention = static_cast<uint8_t>(RetentionClass::kAgent);
  superblock.num_sections = 2;
  superblock.record_pages = static_cast<uint16_t>(layout.record_pages());
  superblock.capacity = static_cast<uint32_t>(layout.segment_capacity());
  superblock.footer_pages = static_cast<uint32_t>(layout.footer_pages());
  for (size_t i = 0; i < 32; ++i) superblock.namespace_id[i] = static_cast<uint8_t>(100 + i);
  superblock.writer_id = kEpoch;
  superblock.segment_number = 7;
  superblock.created_ns = kCreatedNs;
  superblock.bucket_hour = 490968;
  std::ranges::copy(layout.sections, superblock.sections.begin());
  superblock.block_tokens = 8;
  superblock.Seal();
  return superblock;
}

std::vector<std::byte> Segment() {
  const KvBlockLayout layout = Layout();
  std::vector<std::byte> segment(static_cast<size_t>(layout.footer_offset()));
  const Superblock superblock = SegmentSuperblock();
  std::ranges::copy(AsBytes(superblock), segment.begin());
  std::vector<IndexEntry> entries;
  for (uint32_t number = 0; number < 2; ++number) {
    const auto record = Record(number);
    std::ranges::copy(record, segment.begin() + layout.RecordOffset(number));
    entries.push_back(EntryOf(HeaderOf(record), 7,
                              static_cast<uint32_t>(layout.RecordOffset(number) / kPageBytes)));
  }
  const auto footer = BuildFooter(layout, superblock, entries, kCreatedNs + 60'000'000'000);
  segment.insert(segment.end(), footer.begin(), footer.end());
  return segment;
}

TEST(KvLayout, SizesOfTheReleasedFormats) {
  KvBlockLayout fp4;
  fp4.format_id = kFormatFp4;
  fp4.block_tokens = 128;
  fp4.sections = {{2, 64, 288, 68}, {8, 64, 288, 68}, {14, 64, 288, 68}, {20, 128, 288, 68}};
  ASSERT_TRUE(fp4.Validate().ok());
  EXPECT_EQ(fp4.payload_bytes(), 113'920);
  EXPECT_EQ(fp4.record_pages(), 28);
  EXPECT_EQ(fp4.segment_capacity(), 2'339);
  EXPECT_EQ(fp4.footer_pages(), 37);
  KvBlockLayout fp8 = fp4;
  fp8.format_id = kFormatFp8;
  for (KvSectionLayout& section : fp8.sections) section.main_row_bytes = 528;
  EXPECT_EQ(fp8.payload_bytes(), 190'720);
  EXPECT_EQ(fp8.record_pages(), 47);
  EXPECT_EQ(fp8.segment_capacity(), 1'393);
  EXPECT_EQ(fp8.footer_pages(), 22);
  // Bytes a token with the overhead of segments.
  EXPECT_LE(static_cast<double>(fp4.segment_bytes()) / (2'339 * 128), 900);
  EXPECT_LE(static_cast<double>(fp8.segment_bytes()) / (1'393 * 128), 1'510);
}

TEST(KvLayout, RefusesSizesThatCannotBe) {
  KvBlockLayout layout = Layout();
  layout.sections.clear();
  EXPECT_FALSE(layout.Validate().ok());
  layout = Layout();
  layout.sections.resize(7, layout.sections[0]);
  EXPECT_FALSE(layout.Validate().ok());
  layout = Layout();
  layout.segment_pages = 2;
  EXPECT_FALSE(layout.Validate().ok());
  layout = Layout();
  layout.block_tokens = 0;
  EXPECT_FALSE(layout.Validate().ok());
}

TEST(KvFormat, SegmentsMatchTheVector) {
  const auto expected = Vector("segment.bin");
  const auto actual = Segment();
  ASSERT_EQ(actual.size(), expected.size());
  const auto [at, _] = std::ranges::mismatch(actual, expected);
  EXPECT_EQ(at, actual.end()) << "first difference at byte " << at - actual.begin();
}

TEST(KvFormat, IndexLogsMatchTheVector) {
  const auto entries = ParseIndexLog(Vector("index.bin")).entries;
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(entries[1].key, Key(1));
  EXPECT_EQ(entries[1].tenant_tag, kTenant);
  EXPECT_EQ(entries[1].page, 2u);
  EXPECT_EQ(entries[1].replay_gen, 5);
  EXPECT_EQ(entries[2].op, static_cast<uint8_t>(IndexOp::kSegmentSealed));
  EXPECT_EQ(entries[2].segment_number, 7u);
}

TEST(KvFormat, TouchPagesMatchTheVector) {
  TouchPage page;
  page.hour = 490'900;
  page.count = 2;
  page.items[0] = {7, 0, 3};
  page.items[1] = {9, 2338, 65535};
  page.Seal();
  EXPECT_TRUE(std::ranges::equal(AsBytes(page), Vector("touch.bin")));
  EXPECT_TRUE(page.IsIntact());
}

TEST(KvFormat, FootersListWhatWasWritten) {
  const KvBlockLayout layout = Layout();
  const auto segment = Segment();
  const auto superblock = FromBytes<Superblock>(segment);
  ASSERT_TRUE(superblock.IsIntact());
  EXPECT_EQ(*superblock.Layout(), layout);
  const auto entries = ParseFooter(
      layout, superblock, std::span(segment).subspan(static_cast<size_t>(layout.footer_offset())));
  ASSERT_TRUE(entries.ok()) << entries.status().ToString();
  ASSERT_EQ(entries->size(), 2u);
  EXPECT_EQ((*entries)[1].key, Key(1));
}

TEST(KvFormat, ARecordIsOnlyItself) {
  const KvBlockLayout layout = Layout();
  const auto record = Record(1);
  EXPECT_EQ(VerifyRecord(layout, record, Key(1), 1), RecordFault::kNone);
  EXPECT_EQ(VerifyRecord(layout, record, Key(2), 1), RecordFault::kKey);
  EXPECT_EQ(VerifyRecord(layout, record, Key(1), 2), RecordFault::kKey);
  // 16 equal bytes are not enough.
  BlockKey almost = Key(1);
  almost.bytes[31] ^= 1;
  EXPECT_EQ(VerifyRecord(layout, record, almost, 1), RecordFault::kKey);
  KvBlockLayout other = layout;
  other.format_id += 1;
  EXPECT_EQ(VerifyRecord(other, record, Key(1), 1), RecordFault::kForeign);
}

TEST(KvFormat, EveryFlippedBitOfARecordThatMattersIsFound) {
  const KvBlockLayout layout = Layout();
  const auto record = Record(1);
  const auto trailer = static_cast<size_t>(kRecordHeaderBytes + layout.payload_bytes());
  int64_t harmless = 0;
  for (size_t byte = 0; byte < trailer + kRecordTrailerBytes; ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      auto damaged = record;
      damaged[byte] ^= std::byte{static_cast<uint8_t>(1 << bit)};
      if (VerifyRecord(layout, damaged, Key(1), 1) != RecordFault::kNone) continue;
      ++harmless;
      // Padding between sections, or the trailer's zero word.
      const size_t payload_byte = byte - kRecordHeaderBytes;
      const bool padding = byte < trailer && ((payload_byte >= 180 && payload_byte < 192) ||
                                              payload_byte >= 192 + 360);
      EXPECT_TRUE(padding || (byte >= trailer + 12 && byte < trailer + 16)) << "byte " << byte;
    }
  }
  EXPECT_EQ(harmless, (12 + 24 + 4) * 8);
}

TEST(KvFormat, EveryFlippedBitOfTheOtherStructuresIsFound) {
  const KvBlockLayout layout = Layout();
  const Superblock superblock = SegmentSuperblock();
  const auto footer_at = static_cast<size_t>(layout.footer_offset());
  const auto segment = Segment();
  const std::vector<std::byte> footer(segment.begin() + static_cast<int64_t>(footer_at),
                                      segment.end());
  const auto log = Vector("index.bin");
  const auto touch = Vector("touch.bin");
  for (size_t bit = 0; bit < 8 * sizeof(Superblock); ++bit) {
    Superblock damaged = superblock;
    reinterpret_cast<uint8_t*>(&damaged)[bit / 8] ^= static_cast<uint8_t>(1 << (bit % 8));
    ASSERT_FALSE(damaged.IsIntact()) << bit;
  }
  for (size_t byte = 0; byte < footer.size(); ++byte) {
    const bool zero_fill = byte >= 128 && byte < footer.size() - 64;
    auto damaged = footer;
    damaged[byte] ^= std::byte{0x40};
    ASSERT_EQ(ParseFooter(layout, superblock, damaged).ok(), zero_fill) << byte;
  }
  for (size_t byte = 0; byte < log.size(); ++byte) {
    auto damaged = log;
    damaged[byte] ^= std::byte{4};
    const ParsedLog parsed = ParseIndexLog(damaged);
    ASSERT_EQ(parsed.num_leading, byte / sizeof(IndexEntry)) << byte;
    ASSERT_EQ(parsed.entries.size(), log.size() / sizeof(IndexEntry) - 1) << byte;
  }
  for (size_t byte = 0; byte < touch.size(); ++byte) {
    auto damaged = touch;
    damaged[byte] ^= std::byte{4};
    ASSERT_FALSE(FromBytes<TouchPage>(damaged).IsIntact()) << byte;
  }
}

constexpr RecordNonce kNonce = {50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61};

TenantKey Secret() {
  TenantKey key;
  for (size_t i = 0; i < key.size(); ++i) key[i] = static_cast<uint8_t>(200 + i);
  return key;
}

// Record(1) as its tenant's key encrypts it.
std::vector<std::byte> EncryptedRecord() {
  std::vector<std::byte> record = Record(1);
  const RecordHeader plain = HeaderOf(record);
  RecordHeader header = plain;
  header.crc = 0;
  EXPECT_TRUE(SealEncryptedRecord(Layout(), header, Secret(), kNonce, record).ok());
  return record;
}

TEST(RecordCipher, EncryptsLikeAnIndependentImplementation) {
  EXPECT_EQ(EncryptedRecord(), Vector("encrypted.bin"));
}

TEST(RecordCipher, DecryptsWhatItEncrypted) {
  std::vector<std::byte> record = EncryptedRecord();
  EXPECT_EQ(VerifyRecord(Layout(), record, Key(1), 1), RecordFault::kNone);
  EXPECT_FALSE(std::ranges::equal(PayloadOf(Layout(), record), PayloadOf(Layout(), Record(1))));
  ASSERT_TRUE(DecryptRecord(Layout(), Secret(), record));
  EXPECT_TRUE(std::ranges::equal(PayloadOf(Layout(), record), PayloadOf(Layout(), Record(1))));
}

TEST(RecordCipher, RefusesAnotherKeyAnotherHeaderAndChangedBytes) {
  TenantKey other = Secret();
  other[31] ^= 1;
  std::vector<std::byte> record = EncryptedRecord();
  EXPECT_FALSE(DecryptRecord(Layout(), other, record));
  // Every authenticated byte of the header, every byte of nonce and tag, some of the payload.
  std::vector<size_t> offsets;
  for (size_t i = 0; i < 120; ++i) offsets.push_back(i);
  for (size_t i = 192; i < 220; ++i) offsets.push_back(i);
  for (size_t i = kRecordHeaderBytes; i < kRecordHeaderBytes + 576; i += 64) offsets.push_back(i);
  for (const size_t offset : offsets) {
    record = EncryptedRecord();
    record[offset] ^= std::byte{1};
    EXPECT_FALSE(DecryptRecord(Layout(), Secret(), record)) << offset;
  }
}

TEST(TenantKeys, CreatedKeysAreFoundAgainAndDestroyedOnesAreGone) {
  MemoryFileSystem files;
  ASSERT_TRUE(files.MakeDirectory("/keys").ok());
  auto keys = TenantKeys::Open(&files, "/keys/file");
  ASSERT_TRUE(keys.ok());
  EXPECT_EQ((*keys)->SecrecyOf(7), TenantSecrecy::kPlain);
  ASSERT_TRUE((*keys)->Create(7).ok());
  ASSERT_TRUE((*keys)->Create(8).ok());
  EXPECT_EQ((*keys)->Create(7).code(), StatusCode::kInvalidRequest);
  const auto seven = (*keys)->Find(7);
  auto again = TenantKeys::Open(&files, "/keys/file");
  ASSERT_TRUE(again.ok());
  EXPECT_EQ((*again)->Find(7), seven);
  EXPECT_NE((*again)->Find(7), (*again)->Find(8));
  EXPECT_TRUE(*(*again)->Destroy(7));
  EXPECT_FALSE(*(*again)->Destroy(7));
  EXPECT_EQ((*again)->SecrecyOf(7), TenantSecrecy::kDestroyed);
  const auto bytes = ReadWholeFile(&files, "/keys/file", 10'000);
  const std::string text(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  EXPECT_EQ(text.find(BlockKey{*seven}.Hex()), std::string::npos);
  EXPECT_NE(text.find("0000000000000007 destroyed"), std::string::npos);
}

TEST(TenantKeys, RefusesFilesThatOthersReadAndLinesItDoesNotKnow) {
  MemoryFileSystem files;
  const auto write = [&](const std::string& text, OpenMode mode) {
    (void)files.Remove("/file");
    const auto file = files.Open("/file", mode, false);
    (void)(*file)->WriteAt(std::as_bytes(std::span(text)), 0);
    return TenantKeys::Open(&files, "/file").status().code();
  };
  ASSERT_TRUE(files.MakeDirectory("").ok());
  const std::string key(64, 'a');
  const std::string line = "00000000000000ff " + key + "\n";
  EXPECT_EQ(write("# comment\n\n" + line, OpenMode::kCreatePrivate), StatusCode::kOk);
  EXPECT_EQ(write(line, OpenMode::kCreate), StatusCode::kInvalidRequest);
  const std::vector<std::string> bad_lines = {line + line, "ff " + key + "\n",
                                              "00000000000000ff aa\n",
                                              "00000000000000ff " + key + " more\n", "x\n"};
  for (const std::string& bad : bad_lines) {
    EXPECT_EQ(write(bad, OpenMode::kCreatePrivate), StatusCode::kDataCorruption) << bad;
  }
}

RC_GTEST_PROP(KvFormatProperty, RecordsOfAnyLayoutSurviveARoundTrip, ()) {
  KvBlockLayout layout;
  layout.format_id = kFirstTestFormat + *rc::gen::inRange<uint32_t>(0, 100);
  layout.block_tokens = *rc::gen::inRange<uint32_t>(1, 500);
  const auto num_sections = *rc::gen::inRange(1, 7);
  for (int i = 0; i < num_sections; ++i) {
    layout.sections.push_back({static_cast<uint16_t>(i), *rc::gen::inRange<uint16_t>(1, 130),
                               *rc::gen::inRange<uint16_t>(1, 300),
                               *rc::gen::inRange<uint16_t>(0, 70)});
  }
  RC_ASSERT(layout.Validate().ok());
  // Superblock, records and footer fit, and one record more would not.
  const int64_t used =
      1 + layout.segment_capacity() * layout.record_pages() + layout.footer_pages();
  RC_ASSERT(used <= layout.segment_pages);
  RC_ASSERT(used + layout.record_pages() + 1 > layout.segment_pages);
  std::mt19937 random(*rc::gen::arbitrary<uint32_t>());
  std::vector<std::byte> record(static_cast<size_t>(layout.record_bytes()));
  for (std::byte& byte : record) byte = static_cast<std::byte>(random());
  const auto payload = std::vector(record.begin() + kRecordHeaderBytes,
                                   record.begin() + kRecordHeaderBytes + layout.payload_bytes());
  RecordHeader header;
  header.key = Key(3);
  header.block_number = 9;
  SealRecord(layout, header, record);
  RC_ASSERT(VerifyRecord(layout, record, Key(3), 9) == RecordFault::kNone);
  RC_ASSERT(std::ranges::equal(PayloadOf(layout, record), payload));
}

}  // namespace
}  // namespace deepinfer
