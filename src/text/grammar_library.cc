#include "text/grammar_library.h"

#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <bit>
#include <boost/json.hpp>
#include <exception>
#include <iostream>
#include <sstream>
#include <utility>

#include "text/grammar_schema.h"
#include "text/grammar_text.h"
#include "text/special_tokens.h"
#include "text/tokenizer.h"

namespace deepinfer {

namespace {

// One object does all work: a compilation runs on the thread that asked for it.
constexpr int kNumCompilerThreads = 1;

// The library's exceptions prefix their what() with time and source line; the base class keeps the
// bare message.
std::string ReasonOf(const std::exception& error) {
  const auto* runtime = dynamic_cast<const std::runtime_error*>(&error);
  std::string reason =
      runtime != nullptr ? runtime->std::runtime_error::what() : std::string(error.what());
  // "Check failed: (condition) is false: reason"
  const size_t condition = reason.find(") is false: ");
  if (reason.starts_with("Check failed: ") && condition != std::string::npos) {
    reason.erase(0, condition + 12);
  }
  while (!reason.empty() && (reason.back() == '\n' || reason.back() == ' ')) reason.pop_back();
  return reason;
}

// The library reports what it ignores on standard error; here these lines are collected instead.
// The stream belongs to the process: only for isolated processes.
class WarningCapture {
 public:
  WarningCapture() : before_(std::cerr.rdbuf(text_.rdbuf())) {}
  ~WarningCapture() { std::cerr.rdbuf(before_); }
  WarningCapture(const WarningCapture&) = delete;
  WarningCapture& operator=(const WarningCapture&) = delete;

  std::vector<std::string> Take() {
    std::vector<std::string> warnings;
    std::istringstream lines(text_.str());
    constexpr std::string_view kLabel = ": Warning: ";
    for (std::string line; std::getline(lines, line);) {
      const size_t label = line.find(kLabel);
      if (label != std::string::npos) warnings.push_back(line.substr(label + kLabel.size()));
    }
    return warnings;
  }

 private:
  std::ostringstream text_;
  std::streambuf* const before_;
};

xgrammar::Grammar GrammarOfSchema(const std::string& schema) {
  return xgrammar::Grammar::FromJSONSchema(schema, /*any_whitespace=*/true, std::nullopt,
                                           std::nullopt, /*strict_mode=*/true,
                                           kMaxGrammarWhitespace);
}

bool IsSchemaAccepted(const boost::json::value& schema) {
  try {
    GrammarOfSchema(boost::json::serialize(schema));
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

// The words as the library wants them.
DLTensor MaskTensor(std::span<uint32_t> mask, int64_t* num_words) {
  *num_words = static_cast<int64_t>(mask.size());
  DLTensor tensor{};
  tensor.data = mask.data();
  tensor.device = {kDLCPU, 0};
  tensor.ndim = 1;
  tensor.dtype = xgrammar::GetBitmaskDLType();
  tensor.shape = num_words;
  return tensor;
}

}  // namespace

struct CompiledGrammar::Impl {
  xgrammar::CompiledGrammar grammar;
  std::vector<std::string> unenforced;
  // Of the library that made it, which it may outlive.
  std::shared_ptr<const std::vector<uint32_t>> existing_ids;
};

CompiledGrammar::CompiledGrammar(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
CompiledGrammar::~CompiledGrammar() = default;

int64_t CompiledGrammar::size_bytes() const {
  return static_cast<int64_t>(impl_->grammar.MemorySizeBytes());
}

int32_t CompiledGrammar::vocab_size() const {
  return impl_->grammar.GetTokenizerInfo().GetVocabSize();
}

const std::vector<std::string>& CompiledGrammar::unenforced() const { return impl_->unenforced; }

std::span<const uint32_t> CompiledGrammar::existing_ids() const { return *impl_->existing_ids; }

struct GrammarLibrary::Impl {
  xgrammar::TokenizerInfo vocabulary;
  std::shared_ptr<const std::vector<uint32_t>> existing_ids;
};

GrammarLibrary::GrammarLibrary(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
GrammarLibrary::~GrammarLibrary() = default;

Result<std::unique_ptr<const GrammarLibrary>> GrammarLibrary::Create(const Tokenizer& tokenizer) {
  DI_ASSIGN_OR_RETURN(const SpecialTokens specials, SpecialTokens::Resolve(tokenizer));
  // A token without bytes is legal in no grammar: ids that do not exist, added tokens, and bytes
  // that occur in no text.
  std::vector<std::string> tokens(static_cast<size_t>(tokenizer.vocab_size()));
  std::vector<uint32_t> existing_ids(GrammarMaskWords(tokenizer.vocab_size()));
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.IsValidId(id)) {
      existing_ids[static_cast<size_t>(id) / 32] |= uint32_t{1} << (id % 32);
    }
    std::string_view bytes = tokenizer.TokenBytes(id);
    if (tokenizer.IsAdded(id)) bytes = id == specials.dsml ? kMarkerBytes : std::string_view();
    const bool is_text = std::none_of(bytes.begin(), bytes.end(), [](char c) {
      return static_cast<unsigned char>(c) >= kFirstMarkerByte;
    });
    if (is_text || id == specials.dsml) tokens[static_cast<size_t>(id)] = bytes;
  }
  try {
    xgrammar::TokenizerInfo vocabulary(tokens, xgrammar::VocabType::RAW, std::nullopt,
                                       std::vector<int32_t>());
    return std::unique_ptr<const GrammarLibrary>(new GrammarLibrary(std::make_unique<Impl>(
        Impl{std::move(vocabulary),
             std::make_shared<const std::vector<uint32_t>>(std::move(existing_ids))})));
  } catch (const std::exception& error) {
    return Internal("cannot prepare the vocabulary for grammars: " + ReasonOf(error));
  }
}

namespace {

Result<std::string> TranslateSchema(const std::string& text, std::vector<std::string>* unenforced) {
  DI_ASSIGN_OR_RETURN(boost::json::value schema, ParseGrammarJson(text, "the schema"));
  *unenforced = PrepareForCompiler(&schema);
  try {
    return CorrectEbnf(GrammarOfSchema(boost::json::serialize(schema)).ToString());
  } catch (const std::exception& error) {
    const std::string path = FindFaultPath(schema, IsSchemaAccepted);
    return InvalidRequest(ReasonOf(error) + " (at '" + path + "')");
  }
}

Result<std::string> TranslateTag(const std::string& tag,
                                 const xgrammar::TokenizerInfo& vocabulary) {
  auto grammar = xgrammar::Grammar::FromStructuralTag(tag, vocabulary);
  if (const auto* error = std::get_if<xgrammar::StructuralTagError>(&grammar)) {
    return InvalidRequest(std::visit([](const auto& e) { return ReasonOf(e); }, *error));
  }
  return CorrectEbnf(std::get<xgrammar::Grammar>(grammar).ToString());
}

Result<std::string> TranslateByKind(const GrammarSource& source,
                                    const xgrammar::TokenizerInfo& vocabulary,
                                    std::vector<std::string>* unenforced) {
  switch (source.kind) {
    case GrammarKind::kJsonObject:
      return TranslateSchema(R"({"type": "object"})", unenforced);
    case GrammarKind::kJsonSchema:
      return TranslateSchema(source.text, unenforced);
    case GrammarKind::kRegex:
      return MakeEscapesUnambiguous(xgrammar::Grammar::FromRegex(source.text).ToString());
    case GrammarKind::kEbnf:
      return MakeEscapesUnambiguous(xgrammar::Grammar::FromEBNF(source.text).ToString());
    case GrammarKind::kChoice:
      return ChoiceToEbnf(source.text);
    case GrammarKind::kToolCalls: {
      DI_ASSIGN_OR_RETURN(const std::string tag, ToolCallsToStructuralTag(source, unenforced));
      return TranslateTag(tag, vocabulary);
    }
    case GrammarKind::kStructuralTag:
      return TranslateTag(source.text, vocabulary);
  }
  return Internal("unknown kind of grammar");
}

}  // namespace

Result<GrammarText> GrammarLibrary::Translate(const GrammarSource& source) const {
  try {
    GrammarText text;
    WarningCapture warnings;
    DI_ASSIGN_OR_RETURN(text.ebnf, TranslateByKind(source, impl_->vocabulary, &text.unenforced));
    for (std::string& warning : warnings.Take()) text.unenforced.push_back(std::move(warning));
    return text;
  } catch (const std::bad_alloc&) {
    throw;  // the isolated process reports it as its limit
  } catch (const std::exception& error) {
    return InvalidRequest(ReasonOf(error));
  }
}

Result<std::shared_ptr<const CompiledGrammar>> GrammarLibrary::Compile(GrammarText text) const {
  try {
    xgrammar::GrammarCompiler compiler(impl_->vocabulary, kNumCompilerThreads,
                                       /*cache_enabled=*/false);
    auto impl = std::make_unique<CompiledGrammar::Impl>(
        CompiledGrammar::Impl{compiler.CompileGrammar(xgrammar::Grammar::FromEBNF(text.ebnf)),
                              std::move(text.unenforced), impl_->existing_ids});
    return std::shared_ptr<const CompiledGrammar>(
        std::make_shared<CompiledGrammar>(std::move(impl)));
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    return InvalidRequest(ReasonOf(error));
  }
}

Status GrammarLibrary::TryMasks(std::shared_ptr<const CompiledGrammar> grammar) {
  // Of the legal tokens the last one: it is long, so that the fixed text of a call is soon passed.
  constexpr int kNumTokens = 32;
  std::vector<uint32_t> mask(GrammarMaskWords(grammar->vocab_size()));
  // The library wants an end; where nothing but it is legal the output is over.
  constexpr int32_t kAnyEnd = 0;
  GrammarCursor cursor(std::move(grammar), {kAnyEnd});
  for (int i = 0; i < kNumTokens && !cursor.IsTerminated(); ++i) {
    DI_RETURN_IF_ERROR(cursor.FillMask(mask));
    const auto word = std::find_if(mask.rbegin(), mask.rend(), [](uint32_t w) { return w != 0; });
    if (word == mask.rend()) break;
    const auto num_before = static_cast<int32_t>(mask.rend() - word - 1) * 32;
    DI_RETURN_IF_ERROR(cursor.Accept(num_before + 31 - std::countl_zero(*word)));
  }
  return OkStatus();
}

struct GrammarCursor::Impl {
  std::shared_ptr<const CompiledGrammar> grammar;
  xgrammar::GrammarMatcher matcher;
};

GrammarCursor::GrammarCursor(std::shared_ptr<const CompiledGrammar> grammar,
                             std::vector<int32_t> stop_ids) {
  xgrammar::GrammarMatcher matcher(grammar->impl().grammar, std::move(stop_ids));
  impl_ = std::make_unique<Impl>(Impl{std::move(grammar), std::move(matcher)});
}

GrammarCursor::GrammarCursor(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GrammarCursor::GrammarCursor(GrammarCursor&&) noexcept = default;
GrammarCursor::~GrammarCursor() = default;

GrammarCursor GrammarCursor::Clone() const {
  return GrammarCursor(std::make_unique<Impl>(Impl{impl_->grammar, impl_->matcher.Fork()}));
}

Status GrammarCursor::FillMask(std::span<uint32_t> mask) {
  try {
    int64_t num_words = 0;
    DLTensor tensor = MaskTensor(mask, &num_words);
    impl_->matcher.FillNextTokenBitmask(&tensor);
    return OkStatus();
  } catch (const std::exception& error) {
    return Internal("the grammar matcher failed: " + ReasonOf(error));
  }
}

Status GrammarCursor::Accept(int32_t token_id) {
  try {
    // The library would log these two on standard error.
    const auto& vocabulary = impl_->grammar->impl().grammar.GetTokenizerInfo();
    const bool exists = token_id >= 0 && token_id < vocabulary.GetVocabSize();
    if (exists && !impl_->matcher.IsTerminated()) {
      const auto& stop_ids = impl_->matcher.GetStopTokenIds();
      const bool stops = std::find(stop_ids.begin(), stop_ids.end(), token_id) != stop_ids.end();
      const bool is_text = !vocabulary.GetDecodedVocab()[static_cast<size_t>(token_id)].empty();
      if ((stops || is_text) && impl_->matcher.AcceptToken(token_id)) return OkStatus();
    }
    return InvalidRequest("the grammar does not allow token " + std::to_string(token_id));
  } catch (const std::exception& error) {
    return Internal("the grammar matcher failed: " + ReasonOf(error));
  }
}

Status GrammarCursor::Rollback(int64_t num_tokens) {
  try {
    if (num_tokens > 0) impl_->matcher.Rollback(static_cast<int>(num_tokens));
    return OkStatus();
  } catch (const std::exception& error) {
    return Internal("the grammar matcher failed: " + ReasonOf(error));
  }
}

bool GrammarCursor::IsTerminated() const { return impl_->matcher.IsTerminated(); }
bool GrammarCursor::IsComplete() const { return impl_->matcher.IsCompleted(); }

Result<bool> GrammarCursor::ForcesByte() {
  try {
    // One byte of it: cmake/Xgrammar.cmake.
    return !impl_->matcher.FindJumpForwardString().empty();
  } catch (const std::exception& error) {
    return Internal("the grammar matcher failed: " + ReasonOf(error));
  }
}

}  // namespace deepinfer
