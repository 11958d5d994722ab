// Reads JSON Schemas, one a line, and writes random outputs under their grammars, one line each:
//   {"unenforced": [...], "outputs": ["..."]} or {"error": "..."}
// usage: grammar_walker TOKENIZER SEED OUTPUTS < schemas
#include <boost/json.hpp>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "support/grammar_walk.h"
#include "text/grammar_pool.h"
#include "text/special_tokens.h"
#include "text/tokenizer.h"

namespace json = boost::json;

namespace deepinfer {
namespace {

json::object Walk(const std::shared_ptr<const CompiledGrammar>& grammar, const Tokenizer& tokenizer,
                  int num_outputs, std::mt19937* random) {
  const int32_t stop_id = SpecialTokens::Resolve(tokenizer)->eos;
  json::array outputs;
  for (int i = 0; i < num_outputs; ++i) {
    GrammarMatcher matcher(grammar, tokenizer, {stop_id});
    const testing::GrammarWalk walk = testing::WalkGrammar(&matcher, tokenizer, stop_id, random);
    if (!walk.ended) return {{"error", walk.error + " after: " + walk.text}};
    outputs.emplace_back(walk.text);
  }
  const auto& unenforced = grammar->unenforced();
  return {{"unenforced", json::array(unenforced.begin(), unenforced.end())},
          {"outputs", std::move(outputs)}};
}

int Main(char** argv) {
  const auto tokenizer = Tokenizer::Load(argv[1]);
  if (!tokenizer.ok()) {
    std::cerr << tokenizer.status().ToString() << "\n";
    return 1;
  }
  // Sanitizers and a busy machine are slow; the limit has tests of its own.
  GrammarPoolOptions options;
  options.timeout_us = 60'000'000;
  auto pool = GrammarPool::Create(**tokenizer, options);
  if (!pool.ok()) {
    std::cerr << pool.status().ToString() << "\n";
    return 1;
  }
  std::mt19937 random(static_cast<unsigned>(std::atoi(argv[2])));
  std::vector<std::shared_ptr<const GrammarTicket>> tickets;
  for (std::string line; std::getline(std::cin, line);) {
    tickets.push_back((*pool)->Compile({.kind = GrammarKind::kJsonSchema, .text = line}));
  }
  for (const auto& ticket : tickets) {
    json::object line;
    if (!ticket->WaitFor(600'000'000)) {
      line["error"] = "not compiled in time";
    } else if (!ticket->result().ok()) {
      line["error"] = ticket->result().status().ToString();
    } else {
      line = Walk(*ticket->result(), **tokenizer, std::atoi(argv[3]), &random);
    }
    std::cout << json::serialize(line) << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace deepinfer

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: grammar_walker TOKENIZER SEED OUTPUTS < schemas\n";
    return 2;
  }
  return deepinfer::Main(argv);
}
