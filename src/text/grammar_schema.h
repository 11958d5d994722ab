// JSON Schemas on their way to the grammar compiler. Internal to the grammar code.
// Thread rule: pure functions.
#pragma once

#include <boost/json/fwd.hpp>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace deepinfer {

// JSON from a request. Error: invalid_request that names `what` and the place.
Result<boost::json::value> ParseGrammarJson(std::string_view text, std::string_view what);

// How the strings of a value are written: as JSON, or, for the properties of a tool's parameters,
// as they are. What stands inside such a property is JSON again.
enum class StringForm : unsigned char { kJson, kRawProperties };

// Makes of a legal schema one that the compiler takes, in the three steps below. Returns what is
// not enforced.
std::vector<std::string> PrepareForCompiler(boost::json::value* schema,
                                            StringForm form = StringForm::kJson);

// Says the same, or less where nothing else can be said, in the forms that the compiler knows:
//  * counts and limits of integers are integers, limits that are none become the nearest within;
//  * what nothing fulfils (false and the like) is no choice of a union, no property and the end of
//    a tuple; tuples are no longer than their arrays may be;
//  * given values are of the named types;
//  * names of properties are strings.
// A schema that nothing fulfils stays one; the compiler says where.
void NormalizeSchema(boost::json::value* schema);

// Says in a normalised schema itself what the compiler takes otherwise:
//  * it closes objects and arrays to what the schema names; one that names nothing is opened;
//  * it copies what a pattern matches into JSON strings: patterns match the escapes;
//  * it asks for required names only where they are properties: missing ones become properties;
//  * it lets integers with one limit have any number of digits: they get the other one;
//  * what it would refuse and what is reported as not enforced goes.
void AdaptToCompiler(boost::json::value* schema, StringForm form = StringForm::kJson);

// What the compiler passes over in a normalised schema: keywords it does not know, keywords beside
// one that it takes alone ($ref, const, enum, anyOf, oneOf, allOf), assertions it takes of a named
// type only, formats it does not know, patterns that cannot be written for JSON strings or that it
// does not know, names of properties that two keywords speak of, numbers beyond 64 bits, limits
// that lie closer together than the digits of a number. Each with the JSON pointer of its schema:
// "uniqueItems at '/properties/a'".
std::vector<std::string> FindUnenforced(const boost::json::value& schema,
                                        StringForm form = StringForm::kJson);

// JSON pointer of the innermost subschema that `is_valid` refuses while its parents are refused
// too: the place of a fault. Empty for the schema itself. Each subschema is tried together with
// the definitions of the whole schema.
std::string FindFaultPath(const boost::json::value& schema,
                          const std::function<bool(const boost::json::value&)>& is_valid);

}  // namespace deepinfer
