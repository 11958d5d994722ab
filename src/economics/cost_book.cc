#include "economics/cost_book.h"

#include <algorithm>
#include <boost/json.hpp>
#include <fstream>
#include <optional>
#include <sstream>

namespace deepinfer {
namespace json = boost::json;

namespace {

constexpr PicoSum kOne = 1'000'000'000'000;  // of a currency, in pico-units
constexpr PicoSum kNsPerHour = PicoSum{3600} * 1'000'000'000;
constexpr PicoSum kBytesPerGb = 1'000'000'000;

Status Bad(std::string_view field, std::string_view what) {
  return InvalidRequest("cost book: " + std::string(field) + " " + std::string(what));
}

}  // namespace

// Reads one book; the first fault stops it.
class CostBookReader {
 public:
  Result<CostBook> Read(std::string_view text, const std::string& device) {
    boost::system::error_code error;
    const json::value document = json::parse(text, error);
    if (error || !document.is_object()) return InvalidRequest("cost book: not a JSON object");
    const Node root{"", &document.get_object()};
    DI_RETURN_IF_ERROR(CheckKeys(
        root, {"id", "currency", "device_hour", "cpu_core_hour", "storage", "network_per_gb",
               "operations_hour", "capex_per_device", "opex_cash_per_device_hour"}));
    DI_RETURN_IF_ERROR(Text(root, "id", &book_.id_));
    DI_RETURN_IF_ERROR(Text(root, "currency", &book_.currency_));
    // These belong to the fleet, not to a request.
    Pico of_fleet = 0;
    for (const char* key : {"capex_per_device", "opex_cash_per_device_hour"}) {
      DI_RETURN_IF_ERROR(Amount(root, key, false, &of_fleet));
    }
    DI_RETURN_IF_ERROR(Amount(root, "cpu_core_hour", false, &book_.core_hour_));
    bool is_bare = false;
    DI_RETURN_IF_ERROR(ReadDevice(root, device, &is_bare));
    DI_RETURN_IF_ERROR(ReadOperations(root, is_bare));
    DI_RETURN_IF_ERROR(ReadNetwork(root));
    DI_RETURN_IF_ERROR(ReadStorage(root));
    return std::move(book_);
  }

 private:
  struct Node {
    std::string path;  // with its last point
    const json::object* members = nullptr;
  };

  static Status CheckKeys(const Node& node, std::initializer_list<std::string_view> known) {
    for (const auto& member : *node.members) {
      const std::string_view key(member.key().data(), member.key().size());
      if (std::find(known.begin(), known.end(), key) == known.end()) {
        return Bad(node.path + std::string(key), "is not a known field");
      }
    }
    return OkStatus();
  }

  static Status Text(const Node& node, std::string_view key, std::string* out) {
    const json::value* value = node.members->if_contains({key.data(), key.size()});
    if (value == nullptr || !value->is_string()) {
      return Bad(node.path + std::string(key), "must be a string");
    }
    *out = std::string(value->get_string());
    return OkStatus();
  }

  static Status Amount(const Node& node, std::string_view key, bool is_required, Pico* out) {
    if (!is_required && !node.members->contains({key.data(), key.size()})) return OkStatus();
    std::string text;
    DI_RETURN_IF_ERROR(Text(node, key, &text));
    const Result<Pico> amount = ParseAmount(text);
    if (!amount.ok()) return Bad(node.path + std::string(key), amount.status().message());
    *out = *amount;
    return OkStatus();
  }

  // Nothing where it is absent.
  static Result<std::optional<Node>> Group(const Node& node, const std::string& key) {
    const json::value* value = node.members->if_contains(key);
    if (value == nullptr) return std::optional<Node>();
    if (!value->is_object()) return Bad(node.path + key, "must be an object");
    return std::optional<Node>(Node{node.path + key + ".", &value->get_object()});
  }

  Status ReadDevice(const Node& root, const std::string& wanted, bool* is_bare) {
    DI_ASSIGN_OR_RETURN(const std::optional<Node> devices, Group(root, "device_hour"));
    if (!devices || devices->members->empty()) return Bad("device_hour", "names no device");
    if (wanted.empty() && devices->members->size() > 1) {
      return Bad("device_hour", "has several devices: say which one is meant");
    }
    const std::string name =
        wanted.empty() ? std::string(devices->members->begin()->key()) : wanted;
    DI_ASSIGN_OR_RETURN(const std::optional<Node> device, Group(*devices, name));
    if (!device) return Bad("device_hour." + name, "is missing");
    DI_RETURN_IF_ERROR(CheckKeys(*device, {"price", "kind", "source"}));
    DI_RETURN_IF_ERROR(Amount(*device, "price", true, &book_.device_hour_));
    std::string kind, source;
    DI_RETURN_IF_ERROR(Text(*device, "kind", &kind));
    if (kind != "all_in" && kind != "bare")
      return Bad(device->path + "kind", "must be all_in or bare");
    *is_bare = kind == "bare";
    return Text(*device, "source", &source);
  }

  // Power is part of an all-in rate and is not counted twice.
  Status ReadOperations(const Node& root, bool is_bare) {
    DI_ASSIGN_OR_RETURN(const std::optional<Node> hour, Group(root, "operations_hour"));
    if (!hour) return OkStatus();
    DI_RETURN_IF_ERROR(CheckKeys(*hour, {"power_kw_per_device", "pue_included", "usd_per_kwh",
                                         "staff", "software", "spares"}));
    Pico kilowatts = 0, per_kwh = 0;
    DI_RETURN_IF_ERROR(Amount(*hour, "power_kw_per_device", false, &kilowatts));
    DI_RETURN_IF_ERROR(Amount(*hour, "usd_per_kwh", false, &per_kwh));
    if (is_bare) book_.operations_hour_ = static_cast<Pico>(PicoSum{kilowatts} * per_kwh / kOne);
    for (const char* key : {"staff", "software", "spares"}) {
      Pico part = 0;
      DI_RETURN_IF_ERROR(Amount(*hour, key, false, &part));
      book_.operations_hour_ += part;
    }
    return OkStatus();
  }

  Status ReadNetwork(const Node& root) {
    DI_ASSIGN_OR_RETURN(const std::optional<Node> network, Group(root, "network_per_gb"));
    if (!network) return OkStatus();
    DI_RETURN_IF_ERROR(CheckKeys(*network, {"client", "handoff", "store", "control"}));
    DI_RETURN_IF_ERROR(Amount(*network, "client", false, &book_.client_gb_));
    DI_RETURN_IF_ERROR(Amount(*network, "handoff", false, &book_.handoff_gb_));
    DI_RETURN_IF_ERROR(Amount(*network, "store", false, &book_.store_gb_));
    return Amount(*network, "control", false, &book_.control_gb_);
  }

  Status ReadStorage(const Node& root) {
    DI_ASSIGN_OR_RETURN(const std::optional<Node> storage, Group(root, "storage"));
    if (!storage) return OkStatus();
    DI_RETURN_IF_ERROR(CheckKeys(*storage, {"nvme", "weights_gb"}));
    Pico of_fleet = 0;
    DI_RETURN_IF_ERROR(Amount(*storage, "weights_gb", false, &of_fleet));
    DI_ASSIGN_OR_RETURN(const std::optional<Node> disk, Group(*storage, "nvme"));
    if (!disk) return OkStatus();
    DI_RETURN_IF_ERROR(CheckKeys(*disk, {"usd_per_gb_month", "rated_tb_written", "device_price"}));
    DI_RETURN_IF_ERROR(Amount(*disk, "usd_per_gb_month", false, &of_fleet));
    // Terabytes with twelve digits behind the point are bytes.
    DI_RETURN_IF_ERROR(Amount(*disk, "rated_tb_written", true, &book_.disk_rated_bytes_));
    if (book_.disk_rated_bytes_ == 0) return Bad(disk->path + "rated_tb_written", "must not be 0");
    return Amount(*disk, "device_price", true, &book_.disk_price_);
  }

  CostBook book_;
};

Result<CostBook> CostBook::Parse(std::string_view text, const std::string& device) {
  return CostBookReader().Read(text, device);
}

Result<CostBook> CostBook::Load(const std::string& path, const std::string& device) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;  // refuses a folder by its state, where iterators would throw
  bytes << file.rdbuf();
  if (!file || !bytes) return NotFound("cost book " + path + ": not a readable file");
  Result<CostBook> book = Parse(bytes.str(), device);
  return book.ok() ? std::move(book) : Result<CostBook>(book.status().Annotate(path));
}

Cost CostBook::Price(const UsedResources& used) const {
  const auto part = [](PicoSum product, PicoSum unit) { return static_cast<Pico>(product / unit); };
  Cost cost;
  cost.compute =
      part(PicoSum{used.device_ns} * device_hour_ + PicoSum{used.cpu_ns} * core_hour_, kNsPerHour);
  cost.operations = part(PicoSum{used.device_ns} * operations_hour_, kNsPerHour);
  cost.network =
      part(PicoSum{used.client_bytes} * client_gb_ + PicoSum{used.handoff_bytes} * handoff_gb_ +
               PicoSum{used.store_bytes} * store_gb_ + PicoSum{used.control_bytes} * control_gb_,
           kBytesPerGb);
  if (disk_rated_bytes_ > 0) {
    cost.storage = part(PicoSum{used.disk_write_bytes} * disk_price_, disk_rated_bytes_);
  }
  return cost;
}

}  // namespace deepinfer
