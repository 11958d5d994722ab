// Where the repository lies, for tests that read its data.
// A function instead of a macro on the command line: object files then do not depend on the place
// of the checkout, so the compiler cache serves every checkout.
// Thread rule: any thread.
#pragma once

#include <string>

namespace deepinfer {

// Absolute path of the root folder, without a slash at the end.
std::string SourceDir();

}  // namespace deepinfer
