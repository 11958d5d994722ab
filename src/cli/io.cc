#include "cli/io.h"

#include <boost/json.hpp>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>

namespace deepinfer {

namespace json = boost::json;

namespace {

Result<json::value> ParseJson(const std::string& text) {
  boost::system::error_code ec;
  json::parse_options options;
  options.max_depth = 8;
  json::value value = json::parse(text, ec, {}, options);
  if (ec) return InvalidRequest("not valid JSON: " + ec.message());
  return value;
}

Result<std::vector<int32_t>> ToIds(const json::value& value) {
  if (!value.is_array()) return InvalidRequest("expected a JSON array of token ids");
  std::vector<int32_t> ids;
  for (const json::value& item : value.get_array()) {
    if (!item.is_int64() || item.get_int64() < 0 || item.get_int64() > INT32_MAX) {
      return InvalidRequest("token id " + std::to_string(ids.size()) +
                            " is not a non-negative integer");
    }
    ids.push_back(static_cast<int32_t>(item.get_int64()));
  }
  return ids;
}

}  // namespace

Result<std::string> ReadStdin() {
  std::string text(std::istreambuf_iterator<char>(std::cin), {});
  if (std::cin.bad()) return Unavailable("standard input cannot be read");
  return text;
}

Result<std::string> ReadTextFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return NotFound("'" + path + "' cannot be opened");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

Status WriteTextFile(const std::string& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  return file ? OkStatus() : Unavailable("'" + path + "' cannot be written");
}

Result<std::vector<int32_t>> ParseIdArray(const std::string& text) {
  DI_ASSIGN_OR_RETURN(const json::value value, ParseJson(text));
  return ToIds(value);
}

Result<std::vector<int32_t>> ParseIdObject(const std::string& text, std::string_view field) {
  DI_ASSIGN_OR_RETURN(const json::value value, ParseJson(text));
  const json::value* ids = value.is_object() ? value.get_object().if_contains(field) : nullptr;
  if (ids == nullptr) {
    return InvalidRequest("expected an object {\"" + std::string(field) + "\": [...]}");
  }
  return ToIds(*ids);
}

std::string IdArrayJson(std::span<const int32_t> ids) {
  std::string out = "[";
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) out += ',';
    out += std::to_string(ids[i]);
  }
  return out + "]";
}

std::string JsonString(std::string_view text) { return json::serialize(json::value(text)); }

void TellText(std::string_view text) { (void)std::fwrite(text.data(), 1, text.size(), stderr); }

Status PrintLine(std::string_view line) {
  if (std::fwrite(line.data(), 1, line.size(), stdout) != line.size() ||
      std::fputc('\n', stdout) == EOF || std::fflush(stdout) != 0) {
    return Unavailable("standard output cannot be written");
  }
  return OkStatus();
}

}  // namespace deepinfer
