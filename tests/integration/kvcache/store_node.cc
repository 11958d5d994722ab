// One process of those that share a store, driven by lines on standard input; every line is
// answered by one line. For tests that kill, stop and restart such processes.
//
//   usage: kvcache_store_node DIR NODE [KEY=VALUE...]
//     lease_renew_ms lease_dead_ms lease_watch_ms group_commit_ms poll_ms scan_ms io_threads direct
//   publish CHAIN BLOCKS    -> published COMMITTED_BLOCKS MONOTONIC_US
//   queue CHAIN BLOCKS      -> queued
//   wait CHAIN BLOCKS MS    -> found BLOCKS MONOTONIC_US
//   load CHAIN BLOCKS MS    -> loaded RIGHT WRONG ELAPSED_MS REASON
//   erase CHAIN BLOCKS      -> erased BLOCKS
//   stats                   -> one JSON line
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <thread>

#include "base/log.h"
#include "base/process_stats.h"
#include "kvcache/kv_store.h"
#include "support/kv_blocks.h"

namespace deepinfer {
namespace {

constexpr int64_t kDrainUs = 30'000'000;

class StoreNode {
 public:
  explicit StoreNode(KvStore* store) : store_(store) {}

  std::string Answer(const std::string& line) {
    std::istringstream words(line);
    std::string command;
    uint32_t chain = 0;
    uint32_t blocks = 0;
    int64_t wait_ms = 0;
    words >> command >> chain >> blocks >> wait_ms;
    if (command == "publish") return Publish(chain, blocks, true);
    if (command == "queue") return Publish(chain, blocks, false);
    if (command == "wait") return Wait(chain, blocks, wait_ms);
    if (command == "load") return Load(chain, blocks, wait_ms);
    if (command == "erase") {
      const auto erased = store_->EraseKeys(NumberedKeys(chain, blocks));
      return erased.ok() ? fmt::format("erased {}", *erased) : erased.status().ToString();
    }
    if (command == "stats") return Stats();
    return "unknown command";
  }

 private:
  const KvBlockLayout& layout() const { return store_->context().options.layout; }

  std::string Publish(uint32_t chain, uint32_t blocks, bool drain) {
    for (uint32_t block = 0; block < blocks; ++block) {
      PublishRequest request;
      request.key = NumberedKey(chain, block);
      if (block > 0) request.parent = NumberedKey(chain, block - 1);
      request.block_number = block;
      (void)store_->Publish(request, PayloadOfKey(layout(), request.key));
    }
    if (!drain) return "queued";
    (void)store_->Drain(clock_.NowUs() + kDrainUs);
    return fmt::format("published {} {}", Found(chain, blocks), clock_.NowUs());
  }

  size_t Found(uint32_t chain, uint32_t blocks) const {
    return store_->Lookup(NumberedKeys(chain, blocks), 0).blocks.size();
  }

  std::string Wait(uint32_t chain, uint32_t blocks, int64_t wait_ms) {
    const int64_t deadline_us = clock_.NowUs() + wait_ms * 1000;
    while (Found(chain, blocks) < blocks && clock_.NowUs() < deadline_us) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return fmt::format("found {} {}", Found(chain, blocks), clock_.NowUs());
  }

  std::string Load(uint32_t chain, uint32_t blocks, int64_t wait_ms) {
    const int64_t begin_us = clock_.NowUs();
    const auto keys = NumberedKeys(chain, blocks);
    const LookupResult found = store_->Lookup(keys, 0);
    const auto load = store_->BeginLoad(found.blocks, begin_us + wait_ms * 1000);
    int64_t loaded = load->Poll(clock_.NowUs());
    while (!load->done()) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      loaded = load->Poll(clock_.NowUs());
    }
    int64_t wrong = 0;
    for (int64_t block = 0; block < loaded; ++block) {
      wrong += !std::ranges::equal(load->Payload(block),
                                   PayloadOfKey(layout(), keys[static_cast<size_t>(block)]));
    }
    return fmt::format("loaded {} {} {} {}", loaded - wrong, wrong,
                       (clock_.NowUs() - begin_us) / 1000, MissReasonName(found.reason));
  }

  std::string Stats() const {
    const KvStoreStats stats = store_->Stats();
    const StoreCounters& counters = store_->counters();
    return fmt::format(
        "{{\"tier_state\":\"{}\",\"blocks\":{},\"own_segments\":{},\"peers\":{},"
        "\"adopted\":{},\"fenced\":{},\"corrupt\":{},\"late\":{},\"read_errors\":{},"
        "\"reads_in_flight\":{},\"backend\":\"{}\"}}",
        stats.tier_state, stats.blocks, store_->context().segments.num_own(), stats.peers.size(),
        counters.adopted_folders.load(), counters.fenced.load(), counters.corrupt_records.load(),
        counters.late_blocks.load(), counters.read_errors.load(), stats.reads_in_flight,
        stats.read_backend);
  }

  KvStore* store_;
  SteadyClock clock_;
};

int Run(int argc, char** argv) {
  InitLogging(LogLevel::kWarning, LogFormat::kText);
  if (argc < 3) return 2;
  std::map<std::string, int64_t> values = {{"lease_renew_ms", 10'000}, {"lease_dead_ms", 60'000},
                                           {"lease_watch_ms", 30'000}, {"group_commit_ms", 100},
                                           {"poll_ms", 100},           {"scan_ms", 2000},
                                           {"io_threads", 2},          {"direct", 1}};
  for (int i = 3; i < argc; ++i) {
    const std::string word = argv[i];
    const size_t equals = word.find('=');
    if (equals == std::string::npos || !values.contains(word.substr(0, equals))) return 2;
    values[word.substr(0, equals)] = std::stoll(word.substr(equals + 1));
  }
  KvStoreOptions options;
  options.dir = argv[1];
  options.node = argv[2];
  options.shared = true;
  options.namespace_id = Sha256("a namespace");
  options.layout = SmallLayout();
  options.layout.sections = {{2, 32, 200, 50}};  // three pages a record
  options.layout.segment_pages = 256;
  options.space_bytes = int64_t{1} << 40;
  options.lease_renew_us = values["lease_renew_ms"] * 1000;
  options.lease_dead_us = values["lease_dead_ms"] * 1000;
  options.lease_watch_us = values["lease_watch_ms"] * 1000;
  options.group_commit_us = values["group_commit_ms"] * 1000;
  options.peer_poll_us = values["poll_ms"] * 1000;
  options.peer_scan_us = values["scan_ms"] * 1000;
  options.io_threads = static_cast<int32_t>(values["io_threads"]);
  options.direct_io = values["direct"] != 0;
  const auto files = MakePosixFileSystem();
  const SteadyClock clock;
  const SystemWallClock wall_clock;
  auto store = KvStore::Open(options, files.get(), &clock, &wall_clock);
  if (!store.ok()) {
    std::cout << store.status().ToString() << std::endl;
    return 1;
  }
  std::cout << "ready" << std::endl;
  StoreNode node(store->get());
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << node.Answer(line) << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace deepinfer

int main(int argc, char** argv) { return deepinfer::Run(argc, argv); }
