// Compilation off the step thread: limits, cache, order and errors.
#include "text/grammar_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "unit/text/grammar_test_util.h"

namespace deepinfer {
namespace {

using testing::CompileWith;
using testing::DemoPool;
using testing::DemoTokenizer;
using testing::MakePool;

GrammarSource Schema(std::string text) {
  return {.kind = GrammarKind::kJsonSchema, .text = std::move(text)};
}

Status ErrorOf(GrammarSource source) { return CompileWith(&DemoPool(), source).status(); }

TEST(GrammarPool, ErrorsNameThePlaceInTheSchema) {
  const Status status = ErrorOf(Schema(R"({"type": "object", "properties": {"a": {"type": "object",
    "properties": {"b/c": {"type": "strange"}}}}})"));
  EXPECT_EQ(status.code(), StatusCode::kInvalidRequest);
  EXPECT_NE(status.message().find("/properties/a/properties/b~1c"), std::string::npos)
      << status.message();
}

TEST(GrammarPool, RefusesWhatIsNoGrammar) {
  const GrammarSource cases[] = {
      Schema("{\"type\": "),
      Schema(R"({"type": "object", "properties": {"foo": "bar"}})"),
      Schema(R"({"$ref": "#/$defs/missing"})"),
      Schema("17"),
      {.kind = GrammarKind::kRegex, .text = "(["},
      {.kind = GrammarKind::kEbnf, .text = "root ::= missing"},
      {.kind = GrammarKind::kEbnf, .text = "start ::= \"a\""},
      {.kind = GrammarKind::kChoice, .text = "[]"},
      {.kind = GrammarKind::kChoice, .text = "[1]"},
      {.kind = GrammarKind::kChoice, .text = R"([""])"},
      {.kind = GrammarKind::kToolCalls, .text = "[]"},
      {.kind = GrammarKind::kToolCalls, .text = R"([{"name": "x"}])"},
      {.kind = GrammarKind::kStructuralTag, .text = R"({"type": "structural_tag"})"},
  };
  for (const GrammarSource& source : cases) {
    const Status status = ErrorOf(source);
    EXPECT_EQ(status.code(), StatusCode::kInvalidRequest)
        << GrammarKindName(source.kind) << " " << source.text << ": " << status.ToString();
    EXPECT_FALSE(status.message().empty());
    EXPECT_EQ(status.message().find(".cc:"), std::string::npos) << status.message();
  }
}

TEST(GrammarPool, ReportsEveryPartThatIsNotEnforced) {
  const std::pair<const char*, std::vector<std::string>> cases[] = {
      {R"({"type": "object", "properties": {"a": {"type": "string", "pattern": "x+", "maxLength": 9}}})",
       {"maxLength at '/properties/a'"}},
      {R"({"anyOf": [{"type": "string"}], "type": "string"})", {"type at ''"}},
      {R"({"type": "string", "format": "color"})", {"format at ''"}},
      {R"({"type": "string", "minLength": 1, "maxLength": 3})", {}},
      {R"({"type": "string", "enum": ["a"]})", {}},
      {R"({"type": "array", "items": {"type": "integer"}, "uniqueItems": false})", {}},
      {R"({"if": {"type": "string"}, "type": "integer"})", {"if at ''"}},
  };
  for (const auto& [schema, want] : cases) {
    auto grammar = CompileWith(&DemoPool(), Schema(schema));
    ASSERT_TRUE(grammar.ok()) << schema << grammar.status().ToString();
    // The library may add a warning of its own.
    const auto& got = (*grammar)->unenforced();
    EXPECT_EQ(got.empty(), want.empty()) << schema;
    for (const std::string& part : want) {
      EXPECT_NE(std::find(got.begin(), got.end(), part), got.end()) << schema << " " << part;
    }
  }
}

TEST(GrammarPool, ReportsWhatASchemaAsksInVain) {
  auto grammar = CompileWith(&DemoPool(), Schema(R"({"type": "array", "uniqueItems": true,
                                                     "items": {"type": "integer"}})"));
  ASSERT_TRUE(grammar.ok()) << grammar.status().ToString();
  ASSERT_FALSE((*grammar)->unenforced().empty());
  EXPECT_NE((*grammar)->unenforced()[0].find("uniqueItems"), std::string::npos);
}

TEST(GrammarPool, EqualSourcesShareOneGrammar) {
  auto pool = MakePool(DemoTokenizer());
  const GrammarSource source{.kind = GrammarKind::kRegex, .text = "[a-z]{1,8}"};
  const auto first = pool->Compile(source);
  const auto second = pool->Compile(source);
  ASSERT_TRUE(first->WaitFor(testing::kPatientTimeoutUs));
  ASSERT_TRUE(second->WaitFor(testing::kPatientTimeoutUs));
  ASSERT_TRUE(first->result().ok() && second->result().ok());
  EXPECT_EQ(*first->result(), *second->result());
  const auto third = pool->Compile(source);
  ASSERT_TRUE(third->ready());
  EXPECT_EQ(*third->result(), *first->result());
  EXPECT_EQ(pool->stats().num_compiled, 1);
  EXPECT_EQ(pool->stats().num_cache_hits, 1);
}

TEST(GrammarPool, SourcesThatDifferInOneFieldDoNotShare) {
  const GrammarSource base{.kind = GrammarKind::kToolCalls, .text = "[]"};
  std::vector<GrammarSource> sources(6, base);
  sources[1].kind = GrammarKind::kChoice;
  sources[2].calls_start = CallsStart::kWholeBlock;
  sources[3].parallel_calls = false;
  sources[4].prompt_form = PromptForm::kV4;
  sources[5].text = "[";
  sources[5].answer_schema = "]";
  for (size_t i = 0; i < sources.size(); ++i) {
    const auto copy = ParseGrammarSource(SerializeGrammarSource(sources[i]));
    ASSERT_TRUE(copy.ok());
    EXPECT_EQ(*copy, sources[i]);
    for (size_t j = 0; j < i; ++j) EXPECT_NE(DigestOf(sources[i]), DigestOf(sources[j])) << i << j;
  }
  EXPECT_FALSE(ParseGrammarSource("short").ok());
  EXPECT_FALSE(ParseGrammarSource(std::string(8, '\xFF')).ok());
}

TEST(GrammarPool, TheCacheKeepsItsByteLimit) {
  GrammarPoolOptions options;
  options.timeout_us = testing::kPatientTimeoutUs;
  options.cache_bytes = 200'000;
  auto pool = MakePool(DemoTokenizer(), options);
  for (int i = 0; i < 12; ++i) {
    const std::string name = "name" + std::to_string(i);
    auto grammar = CompileWith(pool.get(), Schema(R"({"type": "object", "properties": {")" + name +
                                                  R"(": {"type": "string"}}})"));
    ASSERT_TRUE(grammar.ok()) << grammar.status().ToString();
    EXPECT_LE(pool->stats().cached_bytes, options.cache_bytes);
  }
  EXPECT_GT(pool->stats().num_evicted, 0);
  EXPECT_EQ(pool->stats().num_waiting, 0);
}

TEST(GrammarPool, AFullPoolAndLargeSourcesAreRefusedAtOnce) {
  GrammarPoolOptions options;
  options.max_waiting = 0;
  options.max_source_bytes = 100;
  auto pool = MakePool(DemoTokenizer(), options);
  const auto full = pool->Compile({.kind = GrammarKind::kJsonObject});
  ASSERT_TRUE(full->ready());
  EXPECT_EQ(full->result().status().code(), StatusCode::kUnavailable);
  const auto large = pool->Compile({.kind = GrammarKind::kRegex, .text = std::string(101, 'a')});
  ASSERT_TRUE(large->ready());
  EXPECT_EQ(large->result().status().code(), StatusCode::kInvalidRequest);
  // Nothing read it.
  EXPECT_EQ(pool->stats().num_failed, 0);
  EXPECT_EQ(pool->stats().compile_us, 0);
}

TEST(GrammarPool, DroppedTicketsAreSkippedAndCanBeAskedForAgain) {
  auto pool =
      MakePool(DemoTokenizer(), {.num_threads = 1, .timeout_us = testing::kPatientTimeoutUs});
  const GrammarSource wanted{.kind = GrammarKind::kRegex, .text = "[ab]+"};
  for (int i = 0; i < 20; ++i) {
    pool->Compile({.kind = GrammarKind::kRegex, .text = "x{" + std::to_string(i + 1) + "}"});
    pool->Compile(wanted);
  }
  EXPECT_TRUE(CompileWith(pool.get(), wanted).ok());
}

TEST(GrammarPool, TicketsOfAPoolThatEndsAreCancelled) {
  std::shared_ptr<const GrammarTicket> last;
  std::vector<std::shared_ptr<const GrammarTicket>> tickets;
  {
    auto pool = MakePool(DemoTokenizer(), {.num_threads = 1});
    for (int i = 0; i < 50; ++i) {
      tickets.push_back(pool->Compile(
          {.kind = GrammarKind::kRegex, .text = "[a-z]{" + std::to_string(i + 1) + "}"}));
    }
  }
  for (const auto& ticket : tickets) {
    ASSERT_TRUE(ticket->ready());
    if (!ticket->result().ok()) {
      EXPECT_EQ(ticket->result().status().code(), StatusCode::kCancelled);
    }
  }
}

// What takes a compiler down: time, memory, size of the result and depth.
std::vector<std::pair<std::string, GrammarSource>> PathologicalSources() {
  std::string nested = R"({"type": "string"})";
  for (int i = 0; i < 60; ++i) nested = R"({"type": "array", "items": )" + nested + "}";
  std::string optional = R"({"type": "object", "properties": {)";
  for (int i = 0; i < 4000; ++i) {
    optional += (i > 0 ? ",\"p" : "\"p") + std::to_string(i) + R"(": {"type": "string"})";
  }
  std::string all_of = R"({"type": "integer"})";
  for (int i = 0; i < 24; ++i) all_of = R"({"anyOf": [)" + all_of + "," + all_of + "]}";
  return {
      {"nested repetition",
       {.kind = GrammarKind::kRegex, .text = "(((a{1,999}){1,999}){1,999}){1,999}"}},
      {"alternatives of repetitions",
       {.kind = GrammarKind::kRegex, .text = "((a|b|ab){1,900}c?){1,900}(d|[a-d]{1,900}){1,900}"}},
      {"thousands of optional properties", Schema(optional + "}}")},
      {"large doubling unions", Schema(all_of.size() < (3 << 20) ? all_of : "{}")},
      {"deep parentheses",
       {.kind = GrammarKind::kEbnf,
        .text = "root ::= " + std::string(200'000, '(') + "\"a\"" + std::string(200'000, ')')}},
      {"deep regular expression",
       {.kind = GrammarKind::kRegex,
        .text = std::string(300'000, '(') + "a" + std::string(300'000, ')')}},
  };
}

TEST(GrammarPool, PathologicalSourcesFailAloneAndInTime) {
  GrammarPoolOptions options;
  options.num_threads = 1;
  options.timeout_us = 700'000;
  options.max_grammar_bytes = 8 << 20;
  options.max_work_bytes = 256 << 20;
  auto pool = MakePool(DemoTokenizer(), options);
  int num_refused = 0;
  for (const auto& [name, source] : PathologicalSources()) {
    auto grammar = CompileWith(pool.get(), source);
    if (!grammar.ok()) {
      ++num_refused;
      EXPECT_FALSE(grammar.status().message().empty());
    } else {
      EXPECT_LE((*grammar)->size_bytes(), options.max_grammar_bytes) << name;
    }
    auto next = CompileWith(pool.get(), {.kind = GrammarKind::kRegex, .text = "after " + name});
    EXPECT_TRUE(next.ok()) << "after " << name << ": " << next.status().ToString();
  }
  // The two that nest deeper than any stack, at least.
  EXPECT_GE(num_refused, 2);
}

TEST(GrammarPool, ManyThreadsMayAsk) {
  auto pool = MakePool(DemoTokenizer());
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&pool] {
      for (int i = 0; i < 10; ++i) {
        EXPECT_TRUE(CompileWith(pool.get(), {.kind = GrammarKind::kRegex,
                                             .text = "[a-c]{" + std::to_string(i + 1) + "}"})
                        .ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(pool->stats().num_compiled, 40);
  EXPECT_GE(pool->stats().num_compiled, 10);
}

}  // namespace
}  // namespace deepinfer
