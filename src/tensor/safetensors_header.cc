#include "tensor/safetensors_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "tensor/json_events.h"

namespace deepinfer {
namespace {

constexpr std::string_view kMetadataName = "__metadata__";
constexpr size_t kHeaderDepth = 3;  // the header, a tensor, its shape

// Builds entries from the event stream. The place says which container is open; field_ is the key
// last read in it.
class HeaderSink final : public JsonEventSink {
 public:
  SafetensorsHeader Take() { return std::move(header_); }

  Status OnObjectBegin() override {
    switch (place_) {
      case Place::kStart:
        place_ = Place::kHeader;
        return OkStatus();
      case Place::kHeader:
        return BeginMember();
      default:
        return Unexpected("an object");
    }
  }

  Status OnObjectEnd() override {
    if (place_ == Place::kTensor) {
      place_ = Place::kHeader;
      return FinishTensor();
    }
    place_ = place_ == Place::kMetadata ? Place::kHeader : Place::kEnd;
    return OkStatus();
  }

  Status OnArrayBegin() override {
    if (place_ == Place::kTensor && field_ == "shape") {
      place_ = Place::kShape;
    } else if (place_ == Place::kTensor && field_ == "data_offsets") {
      place_ = Place::kOffsets;
    } else {
      return Unexpected("an array");
    }
    return OkStatus();
  }

  Status OnArrayEnd() override {
    place_ = Place::kTensor;
    return OkStatus();
  }

  Status OnKey(std::string_view key) override {
    if (place_ == Place::kHeader) {
      name_ = key;
      return OkStatus();
    }
    field_ = key;
    if (place_ == Place::kMetadata) {
      if (header_.metadata.contains(field_))
        return Corrupt(QuoteForMessage(field_) + " is given twice");
      return OkStatus();
    }
    return NoteField();
  }

  Status OnString(std::string_view value) override {
    if (place_ == Place::kMetadata) {
      header_.metadata.emplace(field_, value);
      return OkStatus();
    }
    if (place_ != Place::kTensor || field_ != "dtype") return Unexpected("a string");
    const std::optional<DType> dtype = DTypeFromName(value);
    if (!dtype) {
      return Unsupported(fmt::format("{}: unknown dtype {}", Where(), QuoteForMessage(value)));
    }
    dtype_ = *dtype;
    return OkStatus();
  }

  Status OnUnsigned(uint64_t value) override {
    if (place_ == Place::kShape) return AddDimension(value);
    if (place_ == Place::kOffsets && num_offsets_ < offsets_.size()) {
      offsets_[num_offsets_++] = value;
      return OkStatus();
    }
    return place_ == Place::kOffsets ? WrongOffsetCount() : Unexpected("a number");
  }

  Status OnOtherScalar(std::string_view kind) override { return Unexpected(kind); }

 private:
  enum class Place { kStart, kHeader, kTensor, kMetadata, kShape, kOffsets, kEnd };

  std::string Where() const {
    if (place_ == Place::kStart || place_ == Place::kEnd) return "header";
    if (name_ == kMetadataName) return std::string(kMetadataName);
    return "tensor " + QuoteForMessage(name_);
  }

  Status Corrupt(const std::string& what) const { return DataCorruption(Where() + ": " + what); }

  // A value of the wrong kind, with what belongs there.
  Status Unexpected(std::string_view found) const {
    std::string_view expected = "a JSON object";
    switch (place_) {
      case Place::kStart:
      case Place::kHeader:
      case Place::kEnd:
        break;
      case Place::kTensor:
        expected = field_ == "dtype" ? "a string" : "an array";
        break;
      case Place::kMetadata:
        expected = "a string";
        break;
      case Place::kShape:
      case Place::kOffsets:
        expected = "a non-negative integer";
        break;
    }
    const bool has_field = place_ != Place::kStart && place_ != Place::kHeader;
    return DataCorruption(fmt::format("{}: {}must be {}, found {}", Where(),
                                      has_field ? QuoteForMessage(field_) + " " : std::string(),
                                      expected, found));
  }

  Status BeginMember() {
    if (name_ == kMetadataName) {
      if (std::exchange(has_metadata_, true)) {
        return DataCorruption("header: __metadata__ is given twice");
      }
      place_ = Place::kMetadata;
      return OkStatus();
    }
    place_ = Place::kTensor;
    dtype_.reset();
    has_shape_ = false;
    has_offsets_ = false;
    rank_ = 0;
    num_offsets_ = 0;
    return OkStatus();
  }

  Status NoteField() {
    bool seen = false;
    if (field_ == "dtype") {
      seen = dtype_.has_value();
    } else if (field_ == "shape") {
      seen = std::exchange(has_shape_, true);
    } else if (field_ == "data_offsets") {
      seen = std::exchange(has_offsets_, true);
    } else {
      return Corrupt("unknown field " + QuoteForMessage(field_));
    }
    return seen ? Corrupt("field \"" + field_ + "\" is given twice") : OkStatus();
  }

  Status AddDimension(uint64_t value) {
    if (rank_ == shape_.size()) {
      return Unsupported(fmt::format("{}: more than {} dimensions", Where(), Shape::kMaxRank));
    }
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Corrupt(fmt::format("dimension {} is too large", value));
    }
    shape_[rank_++] = static_cast<int64_t>(value);
    return OkStatus();
  }

  Status WrongOffsetCount() const { return Corrupt("data_offsets must hold exactly two numbers"); }

  Status FinishTensor() {
    if (!dtype_) return Corrupt("field \"dtype\" is missing");
    if (!has_shape_) return Corrupt("field \"shape\" is missing");
    if (!has_offsets_) return Corrupt("field \"data_offsets\" is missing");
    if (num_offsets_ != offsets_.size()) return WrongOffsetCount();
    const auto [begin, end] = offsets_;
    SafetensorsEntry entry{name_, *dtype_, Shape(std::span(shape_).first(rank_)), begin, end};
    if (begin > end) {
      return Corrupt(fmt::format("byte range [{}, {}) ends before it begins", begin, end));
    }
    const Result<uint64_t> size_bytes = TensorSizeBytes(entry.dtype, entry.shape);
    if (!size_bytes.ok()) return size_bytes.status().Annotate(Where());
    if (*size_bytes != end - begin) {
      return Corrupt(fmt::format("{} {} needs {} bytes, but its byte range [{}, {}) has {}",
                                 DTypeName(entry.dtype), entry.shape.ToString(), *size_bytes, begin,
                                 end, end - begin));
    }
    header_.entries.push_back(std::move(entry));
    return OkStatus();
  }

  SafetensorsHeader header_;
  Place place_ = Place::kStart;
  std::string name_;   // current member of the header
  std::string field_;  // current key inside it
  bool has_metadata_ = false;

  // The tensor being read.
  std::optional<DType> dtype_;
  bool has_shape_ = false;
  bool has_offsets_ = false;
  std::array<int64_t, Shape::kMaxRank> shape_{};
  size_t rank_ = 0;
  std::array<uint64_t, 2> offsets_{};
  size_t num_offsets_ = 0;
};

Status CheckUniqueNames(const std::vector<SafetensorsEntry>& entries) {
  std::vector<std::string_view> names;
  names.reserve(entries.size());
  for (const SafetensorsEntry& entry : entries) names.push_back(entry.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return OkStatus();
  return DataCorruption(fmt::format("tensor {}: the name is given twice", QuoteForMessage(*twice)));
}

// Entries must be sorted.
Status CheckContiguous(const std::vector<SafetensorsEntry>& entries) {
  uint64_t next = 0;
  const SafetensorsEntry* previous = nullptr;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin < next) {
      return DataCorruption(fmt::format("tensor {}: byte range [{}, {}) overlaps tensor {}",
                                        QuoteForMessage(entry.name), entry.begin, entry.end,
                                        QuoteForMessage(previous->name)));
    }
    if (entry.begin > next) {
      return DataCorruption(
          fmt::format("tensor {}: {} bytes before its byte range [{}, {}) belong to no tensor",
                      QuoteForMessage(entry.name), entry.begin - next, entry.begin, entry.end));
    }
    next = entry.end;
    previous = &entry;
  }
  return OkStatus();
}

}  // namespace

Result<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json) {
  HeaderSink sink;
  DI_RETURN_IF_ERROR(ReadJsonEvents(json, kHeaderDepth, sink));
  SafetensorsHeader header = sink.Take();
  std::sort(header.entries.begin(), header.entries.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
            });
  DI_RETURN_IF_ERROR(CheckUniqueNames(header.entries));
  DI_RETURN_IF_ERROR(CheckContiguous(header.entries));
  return header;
}

}  // namespace deepinfer
