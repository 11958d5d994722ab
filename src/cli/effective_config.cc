#include "cli/effective_config.h"

#include <CLI/CLI.hpp>

#include "base/sha256.h"

namespace deepinfer {

namespace {

std::string ValueOf(const CLI::Option& option, const std::string& flag) {
  if (option.count() == 0) {
    const bool is_switch = option.get_items_expected_max() == 0;
    return is_switch ? "false" : option.get_default_str();
  }
  if (flag == "api-key") return "***";
  std::string value;
  for (const std::string& item : option.results()) value += (value.empty() ? "" : " ") + item;
  return value;
}

}  // namespace

std::vector<ConfigEntry> EffectiveConfig(const CLI::App& command, const FlagOrigins& origins) {
  std::vector<ConfigEntry> entries;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_lnames().empty() || option->get_group().empty()) continue;
    const std::string& flag = option->get_lnames().front();
    const auto origin = origins.find(flag);
    if (origin == origins.end()) continue;
    entries.push_back({flag, ValueOf(*option, flag), origin->second});
  }
  return entries;
}

std::string ConfigHash(const std::vector<ConfigEntry>& entries) {
  std::string text;
  for (const ConfigEntry& e : entries) text += e.flag + '=' + e.value + '\n';
  return Sha256Hex(text);
}

}  // namespace deepinfer
