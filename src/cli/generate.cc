// deepinfer generate: token ids in, token ids out.

#include <CLI/CLI.hpp>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/generation.h"
#include "cli/io.h"
#include "cli/model_flags.h"
#include "cli/speculation_flags.h"
#include "cli/value_checks.h"

namespace deepinfer {
namespace {

class GenerateCommand final : public Command {
 public:
  CLI::App* Register(CLI::App* app) override {
    CLI::App* sub = app->add_subcommand("generate", "Token ids to generated token ids");
    flags_.Register(sub, true, kServingNumerics);
    sub->add_option("--tokens", tokens_file_, "File with a JSON array of token ids")->required();
    sub->add_option("--max-tokens", sampling_.max_tokens, "Tokens to generate at most")
        ->required()
        ->check(Positive());
    sub->add_option("--temperature", sampling_.temperature, "0 = greedy")->capture_default_str();
    sub->add_option("--top-p", sampling_.top_p, "Nucleus mass")->capture_default_str();
    sub->add_option("--top-k", sampling_.top_k, "0 = off")->capture_default_str();
    sub->add_option("--min-p", sampling_.min_p, "0 = off")->capture_default_str();
    seed_ = sub->add_option("--seed", sampling_.seed, "Seed of the random draws");
    sub->add_flag("--ignore-eos", sampling_.ignore_eos, "Go on after the end token");
    sub->add_option("--chunk", chunk_, "Prompt rows per step; the bits do not depend on it")
        ->check(CLI::Range(1, 1 << 20))
        ->capture_default_str();
    sub->add_option("--decoder-tail", tail_,
                    "compact: the decoder runs the last prompt rows only; full: every row")
        ->check(CLI::IsMember({"compact", "full"}))
        ->capture_default_str();
    kv_.Register(sub, "none");
    speculation_.Register(sub);
    sub->add_option("--json-schema", schema_file_,
                    "File with a JSON Schema that the output follows");
    sub->add_option("--regex", regex_, "Regular expression that the output matches");
    sub->add_option("--grammar", grammar_file_,
                    "File with an EBNF grammar that the output follows; its first rule is root");
    sub->footer("Example:\n  deepinfer generate MODEL --tokens ids.json --max-tokens 32");
    sampling_.temperature = 0.0f;
    return sub;
  }

  int Run(const FlagOrigins&) override {
    // Standard output is for results.
    InitLogging(LogLevel::kWarning, LogFormat::kText);
    const Status status = Generate();
    return status.ok() ? kExitOk : ReportFailure(status);
  }

 private:
  // What the flags say about the output; null: nothing.
  Result<std::shared_ptr<const OutputGrammar>> Grammar() const {
    const int given = !schema_file_.empty() + !regex_.empty() + !grammar_file_.empty();
    if (given == 0) return std::shared_ptr<const OutputGrammar>();
    if (given > 1) {
      return InvalidRequest("only one of --json-schema, --regex and --grammar may be given");
    }
    OutputGrammar grammar;
    if (!regex_.empty()) {
      grammar.source.kind = GrammarKind::kRegex;
      grammar.source.text = regex_;
    } else {
      const bool is_schema = !schema_file_.empty();
      grammar.source.kind = is_schema ? GrammarKind::kJsonSchema : GrammarKind::kEbnf;
      DI_ASSIGN_OR_RETURN(grammar.source.text,
                          ReadTextFile(is_schema ? schema_file_ : grammar_file_));
    }
    return std::shared_ptr<const OutputGrammar>(std::make_shared<OutputGrammar>(grammar));
  }

  Status Generate() {
    DI_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(tokens_file_));
    Result<std::vector<int32_t>> parsed = ParseIdArray(text);
    if (!parsed.ok()) return parsed.status().Annotate(tokens_file_);
    DI_ASSIGN_OR_RETURN(const std::filesystem::path dir, flags_.ModelDir());
    DI_ASSIGN_OR_RETURN(BundleOptions bundle, flags_.Bundle());
    const int64_t length = static_cast<int64_t>(parsed->size()) + sampling_.max_tokens + 1;
    bundle.model.max_positions = static_cast<int32_t>(std::min<int64_t>(length, 1 << 24));
    EngineOptions engine;
    engine.max_model_len = bundle.model.max_positions;
    engine.max_num_batched_tokens = chunk_;
    DI_ASSIGN_OR_RETURN(engine.speculation, speculation_.Options());
    engine.decoder_tail = tail_ == "full" ? DecoderTail::kFull : DecoderTail::kCompact;
    EngineRequest request;
    DI_ASSIGN_OR_RETURN(request.grammar, Grammar());
    if (request.grammar != nullptr) bundle.grammars.emplace();
    DI_ASSIGN_OR_RETURN(const auto local, LocalEngine::Open(dir, bundle, engine, &kv_));

    request.request_id = "generate";
    request.prompt_ids = std::move(*parsed);
    request.cache_scope = local->cache_scope().digest;
    request.cache_retention.retention = kv_.default_class();
    request.sampling = sampling_;
    request.sampling.has_seed = seed_->count() > 0;
    std::vector<int32_t> ids;
    DI_ASSIGN_OR_RETURN(const TokenEvent last,
                        local->Run(std::move(request), [&ids](const TokenEvent& event) {
                          ids.insert(ids.end(), event.ids.begin(), event.ids.end());
                        }));
    DI_RETURN_IF_ERROR(last.status);
    return PrintLine("{\"ids\":" + IdArrayJson(ids) + ",\"finish_reason\":\"" +
                     std::string(FinishReasonName(last.finish)) + "\"}");
  }

  ModelFlags flags_;
  KvFlags kv_;
  SpeculationFlags speculation_;
  SamplingParams sampling_;
  std::string tokens_file_, schema_file_, regex_, grammar_file_;
  std::string tail_ = "compact";
  int32_t chunk_ = 512;
  CLI::Option* seed_ = nullptr;
};

}  // namespace

std::unique_ptr<Command> MakeGenerateCommand() { return std::make_unique<GenerateCommand>(); }

}  // namespace deepinfer
