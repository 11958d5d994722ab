#include "text/json_value_check.h"

#include <boost/json/basic_parser_impl.hpp>
#include <cstdint>
#include <limits>

namespace deepinfer {
namespace {

// Accepts everything: only the grammar matters.
struct NullHandler {
  static constexpr std::size_t max_object_size = std::numeric_limits<std::size_t>::max();
  static constexpr std::size_t max_array_size = std::numeric_limits<std::size_t>::max();
  static constexpr std::size_t max_key_size = std::numeric_limits<std::size_t>::max();
  static constexpr std::size_t max_string_size = std::numeric_limits<std::size_t>::max();

  using Error = boost::system::error_code;
  using Text = boost::json::string_view;

  bool on_document_begin(Error&) { return true; }
  bool on_document_end(Error&) { return true; }
  bool on_object_begin(Error&) { return true; }
  bool on_object_end(std::size_t, Error&) { return true; }
  bool on_array_begin(Error&) { return true; }
  bool on_array_end(std::size_t, Error&) { return true; }
  bool on_key_part(Text, std::size_t, Error&) { return true; }
  bool on_key(Text, std::size_t, Error&) { return true; }
  bool on_string_part(Text, std::size_t, Error&) { return true; }
  bool on_string(Text, std::size_t, Error&) { return true; }
  bool on_number_part(Text, Error&) { return true; }
  bool on_int64(int64_t, Text, Error&) { return true; }
  bool on_uint64(uint64_t, Text, Error&) { return true; }
  bool on_double(double, Text, Error&) { return true; }
  bool on_bool(bool, Error&) { return true; }
  bool on_null(Error&) { return true; }
  bool on_comment_part(Text, Error&) { return true; }
  bool on_comment(Text, Error&) { return true; }
};

boost::json::parse_options Options() {
  boost::json::parse_options options;
  options.max_depth = 1000;  // deeper arguments count as bad; nothing else depends on it
  options.allow_invalid_utf8 = true;
  return options;
}

}  // namespace

struct JsonValueCheck::Impl {
  boost::json::basic_parser<NullHandler> parser{Options()};
  bool failed = false;

  void Write(bool more, std::string_view text) {
    if (failed) return;
    boost::system::error_code error;
    const std::size_t read = parser.write_some(more, text.data(), text.size(), error);
    if (error || read != text.size()) failed = true;
  }
};

JsonValueCheck::JsonValueCheck() : impl_(std::make_unique<Impl>()) {}
JsonValueCheck::~JsonValueCheck() = default;

void JsonValueCheck::Push(std::string_view text) { impl_->Write(true, text); }

bool JsonValueCheck::Finish() {
  impl_->Write(false, {});
  return !impl_->failed && impl_->parser.done();
}

}  // namespace deepinfer
