// Typed access to the fields of a JSON object from outside, with errors that name the place.
// Thread rule: pure functions. Owner: the readers of model files in this folder.
#pragma once

#include <boost/json/fwd.hpp>
#include <string>
#include <string_view>

#include "base/result.h"

namespace deepinfer::json_fields {

// For error messages: the text in quotes, cut to its beginning when long; objects and arrays by
// kind only.
std::string Quote(std::string_view text);
std::string Quote(const boost::json::value& value);

// The field `key` of `object`, which messages call `where`. The result points into `object`.
// Error: data_corruption when the field is missing or of another type.
Result<const boost::json::value*> GetField(const boost::json::object& object, std::string_view key,
                                           std::string_view where);
Result<const boost::json::object*> GetObject(const boost::json::object& object,
                                             std::string_view key, std::string_view where);
Result<const boost::json::array*> GetArray(const boost::json::object& object, std::string_view key,
                                           std::string_view where);
Result<std::string_view> GetString(const boost::json::object& object, std::string_view key,
                                   std::string_view where);

// A missing field means `absent`.
Result<bool> GetBool(const boost::json::object& object, std::string_view key, bool absent,
                     std::string_view where);

}  // namespace deepinfer::json_fields
