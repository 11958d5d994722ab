// Is a JSON value a valid JSON Schema? Checked against the meta-schema it names (2020-12 if none),
// then what only a compiler notices: references that lead nowhere and patterns that are no regular
// expressions.
// Thread rule: pure function.
#pragma once

#include <boost/json/fwd.hpp>
#include <optional>
#include <string>

namespace deepinfer {

// Nothing if the schema is at most kMaxGrammarSourceBytes long in compact JSON, else one sentence.
// To be asked before anything reads the schema: it looks no further than the limit.
std::optional<std::string> CheckSchemaSize(const boost::json::value& schema);

// Nothing if valid, else one sentence about the first fault. Nothing is fetched: references must
// stay inside the document or name a published meta-schema.
// Precondition: nesting is bounded by the parser that made the value.
std::optional<std::string> CheckJsonSchema(const boost::json::value& schema);

}  // namespace deepinfer
