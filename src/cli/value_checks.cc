#include "cli/value_checks.h"

#include <fmt/core.h>

#include <charconv>
#include <cmath>
#include <string_view>

namespace deepinfer {

namespace {

// Without a description, so that the help shows the type alone.
CLI::Validator Finite() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        double value = 0;
        if (!CLI::detail::lexical_cast(text, value) || std::isfinite(value)) return {};
        return text + " is not a number";
      },
      "");
}

CLI::Validator Unsigned() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        return text.starts_with('-') ? text + " is below 0" : std::string();
      },
      "");
}

CLI::Validator AtLeastZero(bool with_zero, const std::string& description) {
  return CLI::Validator(
      [with_zero](const std::string& text) -> std::string {
        double value = 0;
        if (!CLI::detail::lexical_cast(text, value)) return text + " is not a number";
        if (value > 0 || (with_zero && value == 0)) return {};
        return text + (with_zero ? " is below 0" : " is not above 0");
      },
      description);
}

}  // namespace

void CheckNumbers(CLI::App* app) {
  for (CLI::Option* option : app->get_options()) {
    const std::string type = option->get_type_name();
    if (type.starts_with("FLOAT")) option->check(Finite());
    if (type.starts_with("UINT")) option->check(Unsigned());
  }
  for (CLI::App* command : app->get_subcommands({})) CheckNumbers(command);
}

std::optional<std::string> FindMissingValue(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--") break;
    if (word.starts_with("--") && word.find('=') == word.size() - 1) return std::string(word);
  }
  return std::nullopt;
}

CLI::Validator NotNegative() { return AtLeastZero(true, "NONNEGATIVE"); }

CLI::Validator Positive() { return AtLeastZero(false, "POSITIVE"); }

CLI::Validator WholeNumber(int64_t least, int64_t most) {
  return CLI::Validator(
      [least, most](const std::string& text) -> std::string {
        int64_t value = 0;
        const char* const end = text.data() + text.size();
        const auto [at, error] = std::from_chars(text.data(), end, value);
        if (error == std::errc() && at == end && value >= least && value <= most) return {};
        return fmt::format("{} is not a whole number from {} to {}", text, least, most);
      },
      fmt::format("INT >= {}", least));
}

}  // namespace deepinfer
