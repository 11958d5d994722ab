// Request ids of api.md §14.
// Thread rule: any thread.
#pragma once

#include <string>
#include <string_view>

namespace deepinfer {

// 1 to 128 characters of [A-Za-z0-9._:-].
bool IsValidRequestId(std::string_view id);

// prefix followed by 24 random letters and digits; unguessable.
std::string MakeRandomId(std::string_view prefix);

// 128 random bits, 32 hexadecimal digits.
std::string MakeRandomHex128();

}  // namespace deepinfer
