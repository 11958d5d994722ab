#include "server/image_url.h"

#include <algorithm>
#include <array>
#include <cstdint>

namespace deepinfer {
namespace {

constexpr std::string_view kDataScheme = "data:";
constexpr std::string_view kHttpScheme = "http";
constexpr std::string_view kBase64Mark = ";base64,";
constexpr std::array<std::string_view, 5> kImageTypes = {"image/png", "image/jpeg", "image/jpg",
                                                         "image/webp", "image/gif"};

char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool EqualsIgnoringCase(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return Lower(x) == Lower(y); });
}

bool StartsWithIgnoringCase(std::string_view text, std::string_view prefix) {
  return text.size() >= prefix.size() && EqualsIgnoringCase(text.substr(0, prefix.size()), prefix);
}

int HexDigit(char c) {
  const char lower = Lower(c);
  if (c >= '0' && c <= '9') return c - '0';
  if (lower >= 'a' && lower <= 'f') return lower - 'a' + 10;
  return -1;
}

int Base64Value(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '+') return 62;
  if (c == '/') return 63;
  return -1;
}

std::string ResolvePercentEscapes(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const int high = text[i] == '%' && i + 2 < text.size() ? HexDigit(text[i + 1]) : -1;
    const int low = high >= 0 ? HexDigit(text[i + 2]) : -1;
    if (low >= 0) {
      out.push_back(static_cast<char>(high * 16 + low));
      i += 2;
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

// The text without ASCII space and without the padding it may have, or nothing if it is not
// base64.
std::optional<std::string> StripBase64(std::string_view text) {
  std::string stripped;
  stripped.reserve(text.size());
  for (char c : text) {
    if (c != ' ' && c != '\t' && c != '\n' && c != '\f' && c != '\r') stripped.push_back(c);
  }
  if (stripped.size() % 4 == 0) {
    for (int i = 0; i < 2 && !stripped.empty() && stripped.back() == '='; ++i) {
      stripped.pop_back();
    }
  }
  if (stripped.size() % 4 == 1) return std::nullopt;
  for (char c : stripped) {
    if (Base64Value(c) < 0) return std::nullopt;
  }
  return stripped;
}

}  // namespace

bool IsForgivingBase64(std::string_view text) { return StripBase64(text).has_value(); }

bool IsPaddedBase64(std::string_view text) {
  const std::string_view symbols = text.substr(0, text.find_last_not_of('=') + 1);
  for (const char c : symbols) {
    if (Base64Value(c) < 0) return false;
  }
  const size_t rest = symbols.size() % 4;
  if (rest == 0) return true;
  if (rest == 1 || symbols.size() == text.size()) return false;
  const int loose_bits = rest == 2 ? 0xF : 0x3;
  return (Base64Value(symbols.back()) & loose_bits) == 0;
}

CheckedImageUrl CheckImageUrl(std::string_view url, ImageField field) {
  const bool is_file = field == ImageField::kFileData;
  const std::string wrong_form =
      is_file ? "file_data is not a valid base64 data url" : "Unsupported image_url format";
  if (!StartsWithIgnoringCase(url, kDataScheme)) {
    const bool is_remote = !is_file && StartsWithIgnoringCase(url, kHttpScheme);
    return {false, is_remote ? std::string() : wrong_form};
  }
  const size_t mark = url.find(kBase64Mark);
  if (mark == std::string_view::npos) return {true, wrong_form};

  const std::string_view header = url.substr(kDataScheme.size(), mark - kDataScheme.size());
  const std::string_view media_type = header.substr(0, header.find(';'));
  const bool is_known = std::any_of(kImageTypes.begin(), kImageTypes.end(), [&](auto known) {
    return EqualsIgnoringCase(known, media_type);
  });
  if (!is_known) {
    const std::string what = is_file ? "file" : "image";
    return {true, "You have uploaded an unsupported " + what + ". Please make sure your " + what +
                      " is valid and has one of the following formats: webp, png, jpeg, and gif."};
  }
  const std::string data = ResolvePercentEscapes(url.substr(mark + kBase64Mark.size()));
  return {true, IsForgivingBase64(data) ? std::string() : "Invalid base64 data"};
}

std::optional<std::string> DecodeDataUrl(std::string_view url) {
  const size_t mark = url.find(kBase64Mark);
  if (!StartsWithIgnoringCase(url, kDataScheme) || mark == std::string_view::npos) {
    return std::nullopt;
  }
  const auto symbols = StripBase64(ResolvePercentEscapes(url.substr(mark + kBase64Mark.size())));
  if (!symbols) return std::nullopt;
  std::string bytes;
  bytes.reserve(symbols->size() * 3 / 4);
  uint32_t bits = 0;
  int num_bits = 0;
  for (char c : *symbols) {
    bits = (bits << 6) | static_cast<uint32_t>(Base64Value(c));
    num_bits += 6;
    if (num_bits >= 8) {
      num_bits -= 8;
      bytes.push_back(static_cast<char>((bits >> num_bits) & 0xFF));
    }
  }
  return bytes;
}

}  // namespace deepinfer
