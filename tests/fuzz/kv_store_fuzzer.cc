// A cache store in which a file was changed, with checksums that are right again: whatever index
// log, touch log, superblock, footer, secret, ns.toml or key file say, opening the store, using it
// and letting it age serve no wrong byte.
//
// Input: number of the file, flags, then changes of three bytes and more: offset (u16), length
// (u8), new bytes; a length of 0 cuts the file there. With the flag kReplace: the file's new bytes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "base/log.h"
#include "kvcache/kv_store.h"
#include "kvcache/ram_file_system.h"
#include "kvcache/store_folders.h"
#include "kvcache/store_inspector.h"
#include "kvcache/store_secret.h"
#include "support/fake_clock.h"
#include "support/fake_wall_clock.h"
#include "support/kv_blocks.h"

namespace deepinfer {
namespace {

constexpr uint8_t kSealAgain = 1;
constexpr uint8_t kShared = 2;
constexpr uint8_t kReplace = 4;
constexpr uint32_t kNumChains = 4;  // of these the first is encrypted and sealed, the second sealed
constexpr uint32_t kErasedChain = 2;
constexpr uint32_t kChainLength = 9;
constexpr uint64_t kTenants[] = {7, 8};
constexpr char kRoot[] = "/kv";
constexpr char kKeyFile[] = "/kv/keys";

using Files = std::map<std::string, std::vector<std::byte>>;

void Expect(bool holds) {
  if (!holds) std::abort();
}

KvStoreOptions Options() {
  KvStoreOptions options;
  options.dir = kRoot;
  options.namespace_id = Sha256("a namespace");
  options.layout = SmallLayout();
  options.io_threads = 0;
  options.background_threads = false;
  options.space_bytes = 6 * options.layout.segment_bytes();
  options.key_file = kKeyFile;
  options.boot_id = "a boot";
  options.quotas.each.all_bytes = 20 * options.layout.record_bytes();
  return options;
}

struct Life {
  explicit Life(const KvStoreOptions& o) : options(o) {}

  Status Open() {
    store.reset();
    DI_ASSIGN_OR_RETURN(store, KvStore::Open(options, files.get(), &clock, &wall_clock));
    return OkStatus();
  }
  void Publish(uint32_t chain) {
    for (uint32_t block = 0; block < kChainLength; ++block) {
      PublishRequest request;
      request.key = NumberedKey(chain, block);
      if (block > 0) request.parent = NumberedKey(chain, block - 1);
      request.block_number = block;
      request.tenant_tag = kTenants[chain % 2];
      (void)store->Publish(request, PayloadOfKey(options.layout, request.key));
    }
    store->Flush(chain < kErasedChain);
  }
  // How many blocks of the chain were loaded, each of them with its own bytes.
  int64_t Load(uint32_t chain) {
    const auto keys = NumberedKeys(chain, kChainLength);
    const auto load = store->BeginLoad(store->Lookup(keys, 65535).blocks, clock.NowUs() + 1000);
    const int64_t loaded = load->Poll(clock.NowUs());
    for (int64_t block = 0; block < loaded; ++block) {
      Expect(std::ranges::equal(load->Payload(block),
                                PayloadOfKey(options.layout, keys[static_cast<size_t>(block)])));
    }
    return loaded;
  }
  void Age(int64_t hours) {
    clock.Advance(hours * 3600 * 1'000'000);
    wall_clock.AdvanceHours(hours);
    (void)store->RunJanitor();
    store->RunWriter();
    if (options.shared) store->RunPeers();
    store->Flush(false);
  }

  KvStoreOptions options;
  FakeClock clock;
  FakeWallClock wall_clock;
  std::unique_ptr<FileSystem> files = MakeRamFileSystem();
  std::unique_ptr<KvStore> store;
};

// Every file below the folder.
void Collect(FileSystem* files, const std::string& folder, Files* found) {
  const auto names = files->List(folder);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    const std::string path = folder + "/" + name;
    auto content = ReadWholeFile(files, path, int64_t{1} << 30);
    if (content.ok()) (*found)[path] = *std::move(content);
    Collect(files, path, found);
  }
}

void Put(FileSystem* files, const std::string& path, std::span<const std::byte> bytes) {
  for (size_t at = 1; at != std::string::npos && at < path.size();) {
    at = path.find('/', at);
    if (at == std::string::npos) break;
    (void)files->MakeDirectory(path.substr(0, at));
    ++at;
  }
  const auto file = files->Open(path, OpenMode::kCreatePrivate, false);
  Expect(file.ok() && (*file)->WriteAt(bytes, 0).ok());
}

// The files of a store with sealed and open segments, an erasure, touches and an encrypted tenant.
Files MakeTemplate() {
  Life life(Options());
  (void)LoadOrCreateSecret(life.files.get(), kRoot);
  Expect((*TenantKeys::Open(life.files.get(), kKeyFile))->Create(kTenants[0]).ok());
  Expect(life.Open().ok());
  for (uint32_t chain = 0; chain < kNumChains; ++chain) life.Publish(chain);
  life.store->Touch(NumberedKeys(1, kChainLength), RetentionClass::kChat);
  Expect(life.store->EraseKeys(NumberedKeys(kErasedChain, 1)).ok());
  life.store->janitor()->ExchangeTouches();
  // As if killed here: segments stay open.
  Files files;
  Collect(life.files.get(), kRoot, &files);
  return files;
}

// Without a change everything is served but what was erased: the store that is changed is a whole
// one.
void ExpectWhole(const Files& files) {
  Life life(Options());
  for (const auto& [path, content] : files) Put(life.files.get(), path, content);
  Expect(life.Open().ok());
  for (uint32_t chain = 0; chain < kNumChains; ++chain) {
    Expect(life.Load(chain) == (chain == kErasedChain ? 0 : kChainLength));
  }
}

void SealEach(std::vector<std::byte>* bytes, auto structure) {
  using Structure = decltype(structure);
  for (size_t at = 0; at + sizeof(Structure) <= bytes->size(); at += sizeof(Structure)) {
    structure = FromBytes<Structure>(std::span(*bytes).subspan(at));
    structure.Seal();
    std::ranges::copy(AsBytes(structure), bytes->begin() + static_cast<std::ptrdiff_t>(at));
  }
}

// Makes the checksums of a file agree with its content, those of records aside.
void SealAgain(const std::string& path, const KvBlockLayout& layout,
               std::vector<std::byte>* bytes) {
  if (path.ends_with("index.log")) return SealEach(bytes, IndexEntry());
  if (path.ends_with("touch.log")) return SealEach(bytes, TouchPage());
  if (path.find("/seg-") == std::string::npos ||
      static_cast<int64_t>(bytes->size()) < layout.segment_bytes()) {
    return;
  }
  auto superblock = FromBytes<Superblock>(*bytes);
  superblock.Seal();
  std::ranges::copy(AsBytes(superblock), bytes->begin());
  const auto footer =
      std::span(*bytes).subspan(static_cast<size_t>(layout.footer_offset()),
                                static_cast<size_t>(layout.footer_pages() * kPageBytes));
  const auto end = footer.last(sizeof(FooterTrailer));
  auto trailer = FromBytes<FooterTrailer>(end);
  const size_t entry_bytes = trailer.record_count * sizeof(IndexEntry);
  if (entry_bytes <= footer.size()) trailer.entries_crc = Crc32c(footer.first(entry_bytes));
  trailer.superblock_crc = superblock.IdentityCrc();
  trailer.Seal();
  std::ranges::copy(AsBytes(trailer), end.begin());
}

uint8_t Byte(std::span<const uint8_t>* input) {
  if (input->empty()) return 0;
  const uint8_t byte = input->front();
  *input = input->subspan(1);
  return byte;
}

void Change(std::vector<std::byte>* bytes, std::span<const uint8_t> changes) {
  while (changes.size() >= 3) {
    const size_t low = Byte(&changes);
    const size_t offset = low | size_t{Byte(&changes)} << 8;
    const size_t length = Byte(&changes);
    if (length == 0) {
      bytes->resize(std::min(bytes->size(), offset));
      continue;
    }
    for (size_t i = 0; i < length && !changes.empty(); ++i) {
      const auto value = static_cast<std::byte>(Byte(&changes));
      if (offset + i < bytes->size()) (*bytes)[offset + i] = value;
    }
  }
}

// What `kv ls`, `kv verify` and the tools for prefixes do.
void Inspect(FileSystem* files) {
  const auto views = InspectStore(files, kRoot);
  if (!views.ok()) return;
  for (const NamespaceView& view : *views) {
    (void)VerifyNamespace(files, view, 1, [](const std::string&) {});
    (void)DescendantsOf(files, view, NumberedKey(0, 0));
    (void)ChainTo(files, view, NumberedKey(1, kChainLength - 1));
  }
}

void Use(Life* life) {
  Inspect(life->files.get());
  if (!LoadOrCreateSecret(life->files.get(), kRoot).ok()) return;
  if (!life->Open().ok()) return;
  const auto load_all = [&] {
    for (uint32_t chain = 0; chain < kNumChains; ++chain) life->Load(chain);
  };
  load_all();
  life->store->Touch(NumberedKeys(0, kChainLength), RetentionClass::kAgent);
  life->Age(0);
  life->Publish(1);
  load_all();
  (void)life->store->janitor()->Plan();
  (void)life->store->janitor()->FreeSpace(0.5, /*dry_run=*/false);  // as `kv gc`
  load_all();
  for (int round = 0; round < 2; ++round) life->Age(100);
  load_all();
  (void)life->store->EraseTenant(kTenants[1]);
  if (!life->Open().ok()) return;
  load_all();
  life->Age(400);
  life->store.reset();
  Inspect(life->files.get());
}

}  // namespace
}  // namespace deepinfer

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace deepinfer;  // NOLINT: the whole program is about it
  static const Files pristine = [] {
    InitLogging(LogLevel::kOff, LogFormat::kText);
    Files files = MakeTemplate();
    ExpectWhole(files);
    return files;
  }();
  std::span input(data, size);
  const size_t which = Byte(&input) % pristine.size();
  const uint8_t flags = Byte(&input);
  KvStoreOptions options = Options();
  options.shared = (flags & kShared) != 0;
  Life life(options);
  size_t number = 0;
  for (const auto& [path, content] : pristine) {
    std::vector<std::byte> bytes = content;
    if (number++ == which) {
      if ((flags & kReplace) != 0) {
        const auto replacement = std::as_bytes(input);
        bytes.assign(replacement.begin(), replacement.end());
      } else {
        Change(&bytes, input);
      }
      if ((flags & kSealAgain) != 0) SealAgain(path, options.layout, &bytes);
    }
    Put(life.files.get(), path, bytes);
  }
  Use(&life);
  return 0;
}
