#include "text/python_json.h"

#include <array>
#include <boost/json.hpp>
#include <charconv>
#include <cmath>
#include <utility>

namespace deepinfer {
namespace {

namespace json = boost::json;

struct JsonStyle {
  std::string_view comma;
  std::string_view colon;
  // Smallest decimal exponent still written without "e", and digits of a padded exponent.
  int min_fixed_exponent;
  size_t exponent_digits;
};

constexpr JsonStyle kPythonStyle = {", ", ": ", -4, 2};
constexpr JsonStyle kV4PromptStyle = {", ", ": ", -5, 1};
constexpr JsonStyle kCompactStyle = {",", ":", -5, 1};

// From this power of ten on numbers are written with an exponent.
constexpr int kMaxFixedExponent = 16;

void WriteFloat(double number, const JsonStyle& style, std::string* out) {
  std::array<char, 40> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number,
                                 std::chars_format::scientific);
  const std::string_view text(buffer.data(), static_cast<size_t>(end.ptr - buffer.data()));
  const size_t e = text.find('e');
  std::string digits;
  for (char c : text.substr(0, e)) {
    if (c == '-') out->push_back('-');
    if (c >= '0' && c <= '9') digits.push_back(c);
  }
  int exponent = 0;
  const size_t exponent_start = text[e + 1] == '+' ? e + 2 : e + 1;
  std::from_chars(text.data() + exponent_start, end.ptr, exponent);

  if (exponent >= kMaxFixedExponent || exponent < style.min_fixed_exponent) {
    out->push_back(digits[0]);
    if (digits.size() > 1) out->append(".").append(digits, 1);
    out->append(exponent < 0 ? "e-" : "e+");
    const std::string magnitude = std::to_string(std::abs(exponent));
    if (magnitude.size() < style.exponent_digits) {
      out->append(style.exponent_digits - magnitude.size(), '0');
    }
    out->append(magnitude);
    return;
  }
  if (exponent < 0) {
    out->append("0.").append(static_cast<size_t>(-exponent - 1), '0').append(digits);
    return;
  }
  const auto num_whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= num_whole) {
    out->append(digits).append(num_whole - digits.size(), '0').append(".0");
  } else {
    out->append(digits, 0, num_whole).append(".").append(digits, num_whole);
  }
}

// Recursion is as deep as the value, which its parser bounded.
void Write(const json::value& value, const JsonStyle& style, std::string* out) {
  switch (value.kind()) {
    case json::kind::null:
      out->append("null");
      return;
    case json::kind::bool_:
      out->append(value.get_bool() ? "true" : "false");
      return;
    case json::kind::int64:
      out->append(std::to_string(value.get_int64()));
      return;
    case json::kind::uint64:
      out->append(std::to_string(value.get_uint64()));
      return;
    case json::kind::double_:
      WriteFloat(value.get_double(), style, out);
      return;
    case json::kind::string:
      WriteJsonString(std::string_view(value.get_string()), out);
      return;
    case json::kind::array: {
      out->push_back('[');
      bool first = true;
      for (const json::value& element : value.get_array()) {
        if (!std::exchange(first, false)) out->append(style.comma);
        Write(element, style, out);
      }
      out->push_back(']');
      return;
    }
    case json::kind::object: {
      out->push_back('{');
      bool first = true;
      for (const auto& member : value.get_object()) {
        if (!std::exchange(first, false)) out->append(style.comma);
        WriteJsonString(std::string_view(member.key()), out);
        out->append(style.colon);
        Write(member.value(), style, out);
      }
      out->push_back('}');
      return;
    }
  }
}

}  // namespace

void WritePythonJson(const json::value& value, std::string* out) {
  Write(value, kPythonStyle, out);
}

std::string PythonJson(const json::value& value) {
  std::string out;
  Write(value, kPythonStyle, &out);
  return out;
}

std::string JsonForPrompt(PromptForm form, const json::value& value) {
  std::string out;
  Write(value, form == PromptForm::kV4 ? kV4PromptStyle : kPythonStyle, &out);
  return out;
}

std::string CompactJson(const json::value& value) {
  std::string out;
  Write(value, kCompactStyle, &out);
  return out;
}

void WriteJsonString(std::string_view text, std::string* out) {
  constexpr std::string_view kHex = "0123456789abcdef";
  out->push_back('"');
  size_t written = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte >= 0x20 && byte != '"' && byte != '\\') continue;
    out->append(text, written, i - written);
    written = i + 1;
    out->push_back('\\');
    switch (byte) {
      case '"':
      case '\\':
        out->push_back(text[i]);
        break;
      case '\n':
        out->push_back('n');
        break;
      case '\r':
        out->push_back('r');
        break;
      case '\t':
        out->push_back('t');
        break;
      case '\b':
        out->push_back('b');
        break;
      case '\f':
        out->push_back('f');
        break;
      default:
        out->append("u00");
        out->push_back(kHex[byte >> 4]);
        out->push_back(kHex[byte & 15]);
    }
  }
  out->append(text, written);
  out->push_back('"');
}

std::string PythonFloat(double number) {
  std::string out;
  WriteFloat(number, kPythonStyle, &out);
  return out;
}

}  // namespace deepinfer
