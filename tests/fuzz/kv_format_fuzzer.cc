// Any bytes as each structure of a cache store. What is accepted must keep its promises.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "kvcache/lease.h"
#include "kvcache/record.h"
#include "kvcache/record_cipher.h"

namespace {

using deepinfer::FromBytes;

void Expect(bool holds) {
  if (!holds) std::abort();
}

deepinfer::KvBlockLayout SmallLayout() {
  deepinfer::KvBlockLayout layout;
  layout.format_id = deepinfer::kFirstTestFormat;
  layout.block_tokens = 8;
  layout.segment_pages = 5;
  layout.sections = {{2, 4, 36, 9}, {20, 8, 36, 9}};
  return layout;
}

void CheckRecord(std::span<const std::byte> bytes) {
  const deepinfer::KvBlockLayout layout = SmallLayout();
  if (deepinfer::CheckRecordFrame(layout, bytes) != deepinfer::RecordFault::kNone) return;
  const deepinfer::RecordHeader header = deepinfer::HeaderOf(bytes);
  const auto fault = deepinfer::VerifyRecord(layout, bytes, header.key, header.block_number);
  Expect(fault == deepinfer::RecordFault::kNone || fault == deepinfer::RecordFault::kSection);
  deepinfer::BlockKey other = header.key;
  other.bytes[31] ^= 1;
  Expect(deepinfer::VerifyRecord(layout, bytes, other, header.block_number) ==
         deepinfer::RecordFault::kKey);
}

// Any bytes as an encrypted record, and as the payload and header of one that we encrypt.
void CheckCipher(std::span<const std::byte> bytes) {
  const deepinfer::KvBlockLayout layout = SmallLayout();
  if (static_cast<int64_t>(bytes.size()) < layout.record_bytes()) return;
  constexpr deepinfer::TenantKey kKey = {1, 2, 3};
  std::vector<std::byte> record(bytes.begin(), bytes.begin() + layout.record_bytes());
  // Nobody has made this tag.
  Expect(!deepinfer::DecryptRecord(layout, kKey, record));
  record.assign(bytes.begin(), bytes.begin() + layout.record_bytes());
  deepinfer::RecordHeader header = deepinfer::HeaderOf(record);
  header.retention %= deepinfer::kNumRetentionClasses;
  header.magic = deepinfer::kRecordMagic;
  header.version = deepinfer::kFormatVersion;
  header.header_bytes = deepinfer::kRecordHeaderBytes;
  Expect(deepinfer::SealEncryptedRecord(layout, header, kKey, {9}, record).ok());
  Expect(deepinfer::VerifyRecord(layout, record, header.key, header.block_number) ==
         deepinfer::RecordFault::kNone);
  Expect(deepinfer::DecryptRecord(layout, kKey, record));
  Expect(std::ranges::equal(deepinfer::PayloadOf(layout, record),
                            deepinfer::PayloadOf(layout, bytes)));
}

void CheckSegment(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(deepinfer::Superblock)) return;
  auto superblock = FromBytes<deepinfer::Superblock>(bytes);
  // With a right checksum the fields themselves are put to the test.
  superblock.Seal();
  const auto layout = superblock.Layout();
  if (!layout.ok()) return;
  Expect(layout->segment_capacity() >= 1 && layout->record_bytes() > layout->payload_bytes());
  Expect(layout->footer_offset() + layout->footer_pages() * deepinfer::kPageBytes <=
         layout->segment_bytes());
  const auto rest = bytes.subspan(sizeof(deepinfer::Superblock));
  const auto entries = deepinfer::ParseFooter(*layout, superblock, rest);
  if (!entries.ok()) return;
  for (const deepinfer::IndexEntry& entry : *entries) Expect(entry.IsIntact());
}

void CheckLease(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(deepinfer::LeaseRecord)) return;
  auto lease = FromBytes<deepinfer::LeaseRecord>(bytes);
  lease.Seal();
  Expect(lease.Boot().size() <= lease.boot_id.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  CheckRecord(bytes);
  CheckCipher(bytes);
  CheckLease(bytes);
  CheckSegment(bytes);
  const auto log = deepinfer::ParseIndexLog(bytes);
  Expect(log.num_leading <= log.entries.size());
  const auto num_entries = static_cast<int64_t>(log.entries.size());
  Expect(num_entries + log.num_damaged + log.num_trailing ==
         static_cast<int64_t>((size + sizeof(deepinfer::IndexEntry) - 1) /
                              sizeof(deepinfer::IndexEntry)));
  if (size >= sizeof(deepinfer::TouchPage)) {
    const auto page = FromBytes<deepinfer::TouchPage>(bytes);
    Expect(!page.IsIntact() || page.count <= deepinfer::kTouchesPerPage);
  }
  return 0;
}
