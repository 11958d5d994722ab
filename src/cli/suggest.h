// "Did you mean": the nearest known word for a mistyped command, flag or key.
// Thread rule: pure functions but for stderr.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace deepinfer {

// The candidate with the smallest edit distance, if it is close enough to be a typing error;
// else "".
std::string Nearest(std::string_view word, const std::vector<std::string>& candidates);

// After a parse failure: prints the nearest command or flag for each unknown word to stderr.
void SuggestNearest(const CLI::App& app, int argc, char** argv);

}  // namespace deepinfer
