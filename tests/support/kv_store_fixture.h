// A store on a file system in memory with a small layout and clocks that the test moves.
// Thread rule: one thread, the test's.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "kvcache/kv_store.h"
#include "support/fake_clock.h"
#include "support/fake_wall_clock.h"
#include "support/kv_blocks.h"
#include "support/memory_file_system.h"

namespace deepinfer {

class KvStoreFixture {
 public:
  KvStoreFixture() {
    options.dir = "/kv";
    options.namespace_id = Sha256("a namespace");
    options.layout = SmallLayout();
    options.io_threads = 0;
    options.background_threads = false;
    options.space_bytes = 1000 * options.layout.segment_bytes();
  }

  void Open() {
    store.reset();
    auto opened = KvStore::Open(options, files.get(), &clock, &wall_clock);
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    store = *std::move(opened);
  }

  PublishResult Publish(uint32_t chain, uint32_t block, PublishRequest request = {}) {
    request.key = NumberedKey(chain, block);
    if (block > 0) request.parent = NumberedKey(chain, block - 1);
    request.block_number = block;
    return store->Publish(request, PayloadOfKey(options.layout, request.key));
  }
  void PublishChain(uint32_t chain, uint32_t count, const PublishRequest& request = {}) {
    for (uint32_t block = 0; block < count; ++block) Publish(chain, block, request);
  }

  // Blocks of the chain that load with the right bytes; a wrong byte fails the test.
  int64_t LoadChain(uint32_t chain, uint32_t count) {
    const auto keys = NumberedKeys(chain, count);
    const auto load = store->BeginLoad(store->Lookup(keys, 65535).blocks, clock.NowUs() + 1000);
    const int64_t loaded = load->Poll(clock.NowUs());
    for (int64_t block = 0; block < loaded; ++block) {
      EXPECT_TRUE(std::ranges::equal(
          load->Payload(block), PayloadOfKey(options.layout, keys[static_cast<size_t>(block)])))
          << "wrong bytes for chain " << chain << " block " << block;
    }
    return loaded;
  }

  void PassHours(int64_t hours) {
    clock.Advance(hours * 3600 * 1'000'000);
    wall_clock.AdvanceHours(hours);
  }
  // Rounds until copies made by the janitor are committed and their sources removed.
  void RunJanitorToTheEnd() { RunJanitorToTheEnd(store.get()); }
  static void RunJanitorToTheEnd(KvStore* of) {
    for (int round = 0; round < 4; ++round) {
      of->RunJanitor();
      of->Flush(false);
    }
  }
  std::vector<std::string> SegmentPaths() const {
    std::vector<std::string> paths;
    for (const SegmentInfo& info : store->context().segments.List()) paths.push_back(info.path);
    return paths;
  }

  KvStoreOptions options;
  FakeClock clock;
  FakeWallClock wall_clock;
  std::unique_ptr<MemoryFileSystem> files = std::make_unique<MemoryFileSystem>();
  std::unique_ptr<KvStore> store;
};

}  // namespace deepinfer
