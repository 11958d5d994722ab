// Grammar text: sources written as structural tags and EBNF, and corrections to the EBNF that the
// library prints. Internal to the grammar code.
// Thread rule: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/grammar_source.h"

namespace deepinfer {

// The marker token ｜DSML｜ in the bytes of the vocabulary and in EBNF. It is no code point, so no
// character class matches it; and no other token of the vocabulary may hold its first byte, which
// occurs in no text. A grammar that spells it can only be followed by the marker token itself.
inline constexpr std::string_view kMarkerBytes = "\xF5\x80\x80\x80";
inline constexpr unsigned char kFirstMarkerByte = 0xF5;

// The longest run of white space between the parts of a JSON text (structured_outputs.md §1).
inline constexpr int kMaxGrammarWhitespace = 16;

// Rules for one of the strings of a JSON array.
Result<std::string> ChoiceToEbnf(std::string_view choices_json);

// The structural tag of a kToolCalls source (encoding.md §7, §18). ｜DSML｜ in it is the marker.
// Length limits of raw string parameters are dropped, into *unenforced.
Result<std::string> ToolCallsToStructuralTag(const GrammarSource& source,
                                             std::vector<std::string>* unenforced);

// The library prints U+0080 to U+00FF as \xHH and reads as many hexadecimal digits behind \x as
// there are: "ße" would come back as U+0DFE. The same text with \u00HH in their place.
std::string MakeEscapesUnambiguous(std::string_view printed);

// Corrects EBNF that came from a JSON Schema or a structural tag:
//  * numbers have at most 64 characters (structured_outputs.md §1);
//  * JSON strings hold neither control characters nor surrogates;
//  * ｜DSML｜ becomes the marker, which raw string parameters cannot hold.
std::string CorrectEbnf(std::string ebnf);

}  // namespace deepinfer
