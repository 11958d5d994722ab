// The meta-schemas of JSON Schema as one table: which keywords each draft knows and what it asks of
// their values. Internal to the schema check.
// Thread rule: pure functions.
#pragma once

#include <boost/json/fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace deepinfer {

enum class SchemaDraft : unsigned char { k4, k6, k7, k2019, k2020 };

// What the meta-schema asks of a keyword's value.
enum class SchemaRule : unsigned char {
  kSchema,
  kSchemaMap,
  kSchemaArray,
  kSchemaOrArray,
  kSchemaOrStringsMap,
  kString,
  kIdentifier,  // $id: no fragment
  kAnchor,
  kBool,
  kBoolMap,
  kBoolOrSchema,  // draft 4
  kType,
  kArray,
  kNumber,
  kPositive,
  kCount,
  kStrings,
  kStringsMap,
};

// Since 2019-09 the meta-schema is split into vocabularies, which are checked one after another;
// older drafts check keywords in the order of the document.
enum class SchemaVocabulary : unsigned char {
  kLegacy,
  kCore,
  kApplicator,
  kUnevaluated,
  kValidation,
  kMetaData,
  kFormat,
  kContent,
};
struct SchemaKeyword {
  std::string_view name;
  SchemaVocabulary vocabulary;
  SchemaRule rule;
  SchemaDraft first = SchemaDraft::k4;
  SchemaDraft last = SchemaDraft::k2020;
};

// The keyword of that name in that draft; null for names it does not know.
const SchemaKeyword* FindSchemaKeyword(SchemaDraft draft, std::string_view name);

// The draft a published meta-schema URI names.
std::optional<SchemaDraft> SchemaDraftOf(std::string_view uri);

// One sentence about the first value that breaks the meta-schema of `draft`, if any does.
std::optional<std::string> CheckMetaSchema(SchemaDraft draft, const boost::json::value& schema);

// Wording shared by both halves of the check. Long values are cut.
std::string ShownValue(const boost::json::value& value);
std::string NotOfSchemaType(const boost::json::value& value);

}  // namespace deepinfer
