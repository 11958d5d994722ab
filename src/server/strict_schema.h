// Strict mode of tools and response schemas: the supported part of JSON Schema is read, everything
// else is dropped, objects are closed and all their properties required (api.md §22).
// Thread rule: pure functions.
#pragma once

#include <boost/json/fwd.hpp>
#include <string>
#include <tl/expected.hpp>

namespace deepinfer {

// What a strict schema is for; the messages and the rule for empty objects differ.
enum class StrictUse : unsigned char { kToolParameters, kResponse };

// The transformed schema, or the sentence that says why it is refused. The top level must be an
// object; only the top level of tool parameters may have no properties.
tl::expected<boost::json::value, std::string> TransformStrictSchema(
    const boost::json::value& schema, StrictUse use);

}  // namespace deepinfer
