#include "server/api_keys.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <boost/json.hpp>
#include <fstream>
#include <iterator>
#include <utility>

#include "base/sha256.h"
#include "economics/utc_time.h"
#include "text/json_text.h"

namespace deepinfer {
namespace {

namespace json = boost::json;
using Digest = Sha256Digest;

constexpr std::streamoff kMaxFileBytes = 16 << 20;

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool ParseHex(std::string_view hex, Digest* digest) {
  if (hex.size() != 2 * digest->size()) return false;
  for (size_t i = 0; i < digest->size(); ++i) {
    const int high = HexValue(hex[2 * i]);
    const int low = HexValue(hex[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    (*digest)[i] = static_cast<unsigned char>(high * 16 + low);
  }
  return true;
}

std::string_view Trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

bool ReadRate(const json::value& value, RateLimit* rate) {
  // Far above any machine, far below what a double counts exactly.
  constexpr int64_t kMostPerMinute = int64_t{1} << 40;
  if (!value.is_int64() || value.get_int64() < 0 || value.get_int64() > kMostPerMinute) {
    return false;
  }
  rate->Set(value.get_int64());
  return true;
}

// Fields of one entry; a member of another type or an unknown one is an error that names it.
Status ReadEntry(const json::object& entry, ApiKey* key) {
  bool has_secret = false;
  for (const auto& member : entry) {
    const std::string name(member.key());
    const json::value& value = member.value();
    const auto* text = value.if_string();
    bool ok = false;
    if (name == "name" && text != nullptr) {
      key->name = std::string(*text);
      ok = !key->name.empty();
    } else if (name == "sha256" && text != nullptr) {
      ok = ParseHex({text->data(), text->size()}, &key->digest);
      has_secret = true;
    } else if (name == "key" && text != nullptr) {
      key->digest = Sha256(std::string_view(text->data(), text->size()));
      ok = !text->empty();
      has_secret = true;
    } else if (name == "namespace" && text != nullptr) {
      key->cache_namespace = std::string(*text);
      ok = true;
    } else if (name == "cache_class" && text != nullptr) {
      key->cache_class = ParseRequestClass({text->data(), text->size()});
      ok = key->cache_class.has_value();
    } else if (name == "admin" && value.is_bool()) {
      key->admin = value.get_bool();
      ok = true;
    } else if (name == "max_concurrent_requests" && value.is_int64()) {
      const int64_t limit = value.get_int64();
      ok = limit >= 0 && limit <= INT32_MAX;
      key->max_concurrent_requests = static_cast<int32_t>(limit);
    } else if (name == "max_requests_per_minute") {
      ok = ReadRate(value, &key->request_rate);
    } else if (name == "max_tokens_per_minute") {
      ok = ReadRate(value, &key->token_rate);
    } else if (name == "budget" && text != nullptr) {
      const Result<Pico> amount = ParseAmount({text->data(), text->size()});
      if (amount.ok()) key->budget = *amount;
      ok = amount.ok();
    } else if (name == "budget_from" && text != nullptr) {
      const std::optional<int64_t> from = ParseUtc({text->data(), text->size()});
      key->budget_from_us = from.value_or(0);
      ok = from.has_value();
    } else if (name == "models" && value.is_array()) {
      ok = true;
      for (const json::value& model : value.get_array()) {
        ok = ok && model.is_string();
        if (ok) key->allowed_models.emplace_back(model.get_string());
      }
    }
    if (!ok) return InvalidRequest("field \"" + name + "\" is unknown or has a bad value");
  }
  if (key->name.empty() || !has_secret) return InvalidRequest("needs name and sha256 (or key)");
  return OkStatus();
}

}  // namespace

bool ApiKey::AllowsModel(std::string_view model) const {
  return allowed_models.empty() ||
         std::find(allowed_models.begin(), allowed_models.end(), model) != allowed_models.end();
}

Status ApiKeys::Add(std::unique_ptr<ApiKey> key) {
  for (const auto& other : keys_) {
    if (other->name == key->name) return InvalidRequest("two API keys named " + key->name);
  }
  keys_.push_back(std::move(key));
  return OkStatus();
}

Status ApiKeys::AddSecret(std::string name, std::string_view secret) {
  if (secret.empty()) return InvalidRequest("API key " + name + " is empty");
  auto key = std::make_unique<ApiKey>();
  key->name = std::move(name);
  key->digest = Sha256(secret);
  // The name is a place in a list: another key may have it after the next start.
  key->cache_namespace = "sha256:" + Sha256Hex(secret);
  return Add(std::move(key));
}

Status ApiKeys::ParseJsonFile(std::string_view text) {
  JsonDocument document;
  JsonFailure failure;
  if (!ParseJson(text, &document, &failure)) return InvalidRequest(failure.ToString());
  const json::object* root = document.root().if_object();
  const json::value* list = root == nullptr ? nullptr : root->if_contains("keys");
  if (list == nullptr || !list->is_array() || root->size() != 1) {
    return InvalidRequest("expected {\"keys\": [...]}");
  }
  for (const json::value& entry : list->get_array()) {
    const std::string where = "keys[" + std::to_string(keys_.size()) + "]";
    if (!entry.is_object()) return InvalidRequest(where + " is not an object");
    auto key = std::make_unique<ApiKey>();
    DI_RETURN_IF_ERROR(ReadEntry(entry.get_object(), key.get()).Annotate(where));
    DI_RETURN_IF_ERROR(Add(std::move(key)));
  }
  return OkStatus();
}

Status ApiKeys::ParseLines(std::string_view text) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = Trim(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.front() == '#') continue;
    DI_RETURN_IF_ERROR(AddSecret("key-" + std::to_string(keys_.size() + 1), line));
  }
  return OkStatus();
}

Result<ApiKeys> ApiKeys::Load(const std::string& file, const std::vector<std::string>& secrets) {
  ApiKeys keys;
  if (!file.empty()) {
    std::ifstream stream(file, std::ios::binary | std::ios::ate);
    if (!stream) return NotFound("cannot read API key file " + file);
    if (stream.tellg() > kMaxFileBytes) return InvalidRequest("API key file is too large");
    stream.seekg(0);
    const std::string text((std::istreambuf_iterator<char>(stream)),
                           std::istreambuf_iterator<char>());
    const bool is_json = Trim(text).substr(0, 1) == "{";
    DI_RETURN_IF_ERROR(
        (is_json ? keys.ParseJsonFile(text) : keys.ParseLines(text)).Annotate("API key file"));
    if (keys.empty()) return InvalidRequest("API key file " + file + " holds no key");
  }
  for (const std::string& secret : secrets) {
    DI_RETURN_IF_ERROR(keys.AddSecret("flag-" + std::to_string(keys.keys_.size() + 1), secret));
  }
  return keys;
}

const ApiKey* ApiKeys::Find(std::string_view secret) const {
  const Digest digest = Sha256(secret);
  const ApiKey* found = nullptr;
  for (const auto& key : keys_) {
    // No early exit: the time tells nothing about which key, or how much of one, matched.
    if (CRYPTO_memcmp(key->digest.data(), digest.data(), digest.size()) == 0) found = key.get();
  }
  return found;
}

}  // namespace deepinfer
