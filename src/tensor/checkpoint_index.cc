#include "tensor/checkpoint_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "tensor/json_events.h"

namespace deepinfer {
namespace {

constexpr size_t kIndexDepth = 32;  // "metadata" may hold anything of reasonable nesting

bool IsPlainShardName(std::string_view name) {
  constexpr std::string_view kSuffix = ".safetensors";
  return name.size() > kSuffix.size() && name.ends_with(kSuffix) &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

class IndexSink final : public JsonEventSink {
 public:
  Result<CheckpointIndex> Take() {
    if (!has_weight_map_) return DataCorruption("\"weight_map\" is missing");
    // Number the shards by name: the result does not depend on the order of the tensors.
    std::vector<size_t> position(shards_.size());
    CheckpointIndex index;
    for (const auto& [name, order] : shards_) {
      position[order] = index.shards.size();
      index.shards.push_back(name);
    }
    for (CheckpointIndexEntry& entry : entries_) entry.shard = position[entry.shard];
    index.entries = std::move(entries_);
    return index;
  }

  Status OnObjectBegin() override {
    if (in_weight_map()) return ShardMustBeString("an object");
    if (depth_ == 1 && key_ == "weight_map") {
      if (std::exchange(has_weight_map_, true)) {
        return DataCorruption("\"weight_map\" is given twice");
      }
      weight_map_open_ = true;
    }
    ++depth_;
    return OkStatus();
  }

  Status OnObjectEnd() override {
    --depth_;
    if (depth_ == 1) weight_map_open_ = false;
    return OkStatus();
  }

  Status OnArrayBegin() override {
    DI_RETURN_IF_ERROR(CheckPlace("an array"));
    ++depth_;
    return OkStatus();
  }

  Status OnArrayEnd() override {
    --depth_;
    return OkStatus();
  }

  Status OnKey(std::string_view key) override {
    if (depth_ == 1 || in_weight_map()) key_ = key;
    return OkStatus();
  }

  Status OnString(std::string_view value) override {
    if (!in_weight_map()) return CheckPlace("a string");
    if (!IsPlainShardName(value)) {
      return DataCorruption(
          fmt::format("tensor {}: shard {} is not the plain name of a .safetensors file",
                      QuoteForMessage(key_), QuoteForMessage(value)));
    }
    const size_t shard = shards_.emplace(value, shards_.size()).first->second;
    entries_.push_back({key_, shard});
    return OkStatus();
  }

  Status OnUnsigned(uint64_t) override { return CheckPlace("a number"); }
  Status OnOtherScalar(std::string_view kind) override { return CheckPlace(kind); }

 private:
  bool in_weight_map() const { return weight_map_open_ && depth_ == 2; }

  Status ShardMustBeString(std::string_view found) const {
    return DataCorruption(fmt::format("tensor {}: its shard must be a string, found {}",
                                      QuoteForMessage(key_), found));
  }

  // Everything but an object is refused as the document and as the weight map, and everything but
  // a string as a shard.
  Status CheckPlace(std::string_view found) const {
    if (in_weight_map()) return ShardMustBeString(found);
    if (depth_ == 0) return DataCorruption(fmt::format("must be a JSON object, found {}", found));
    if (depth_ == 1 && key_ == "weight_map") {
      return DataCorruption(fmt::format("\"weight_map\" must be an object, found {}", found));
    }
    return OkStatus();
  }

  int depth_ = 0;
  std::string key_;  // last key of the document or of the weight map
  bool weight_map_open_ = false;
  bool has_weight_map_ = false;
  std::map<std::string, size_t, std::less<>> shards_;  // name -> order of first appearance
  std::vector<CheckpointIndexEntry> entries_;
};

}  // namespace

Result<CheckpointIndex> ParseCheckpointIndex(std::string_view json) {
  IndexSink sink;
  DI_RETURN_IF_ERROR(ReadJsonEvents(json, kIndexDepth, sink));
  return sink.Take();
}

}  // namespace deepinfer
