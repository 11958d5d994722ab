// deepinfer logits: logits of every row of a token sequence.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>

#include "cli/commands.h"
#include "cli/io.h"
#include "cli/model_flags.h"

namespace deepinfer {
namespace {

struct FileCloser {
  void operator()(std::FILE* f) const { std::fclose(f); }
};
using File = std::unique_ptr<std::FILE, FileCloser>;

class LogitsCommand final : public Command {
 public:
  CLI::App* Register(CLI::App* app) override {
    CLI::App* sub = app->add_subcommand("logits", "Logits of every row of a token sequence");
    flags_.Register(sub, true, "ref");
    sub->add_option("--tokens", tokens_file_, "File with a JSON array of token ids")->required();
    sub->add_option("--out", out_file_, "Output: [num_tokens, vocab] little-endian float32")
        ->required();
    sub->add_option("--chunk", chunk_, "Rows per step; the bits do not depend on it")
        ->check(CLI::Range(1, 1 << 20))
        ->capture_default_str();
    sub->add_option("--cache-quant", cache_quant_,
                    "on, or off: keep caches in float32 (a test form, not the model)")
        ->check(CLI::IsMember({"on", "off"}))
        ->capture_default_str();
    sub->footer(
        "Example:\n"
        "  deepinfer logits MODEL --tokens ids.json --numerics ref --out logits.f32");
    return sub;
  }

  int Run(const FlagOrigins&) override {
    const Status status = Compute();
    return status.ok() ? kExitOk : ReportFailure(status);
  }

 private:
  Status Compute() {
    DI_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(tokens_file_));
    Result<std::vector<int32_t>> parsed = ParseIdArray(text);
    if (!parsed.ok()) return parsed.status().Annotate(tokens_file_);
    const std::vector<int32_t>& ids = *parsed;
    DI_ASSIGN_OR_RETURN(const std::filesystem::path dir, flags_.ModelDir());
    DI_ASSIGN_OR_RETURN(BundleOptions options, flags_.Bundle());
    options.model.kv_format = cache_quant_ == "off" ? KvFormat::kFloat32 : KvFormat::kQuantized;
    options.model.max_positions = std::max<int32_t>(1, static_cast<int32_t>(ids.size()));
    DI_ASSIGN_OR_RETURN(const ModelBundle bundle, ModelBundle::Load(dir, options, nullptr));
    DI_RETURN_IF_ERROR(CheckIds(ids, *bundle.model));
    return Write(ids, bundle.model.get());
  }

  static Status CheckIds(const std::vector<int32_t>& ids, const Model& model) {
    const int32_t vocab = model.config().vocab_size;
    for (int32_t id : ids) {
      if (id >= vocab) {
        return InvalidRequest("token id " + std::to_string(id) + " is outside 0.." +
                              std::to_string(vocab - 1));
      }
    }
    if (ids.empty()) return InvalidRequest("the token file holds no ids");
    if (static_cast<int64_t>(ids.size()) > model.max_positions()) {
      return InvalidRequest(std::to_string(ids.size()) + " tokens exceed the model's " +
                            std::to_string(model.max_positions()) + " positions");
    }
    return OkStatus();
  }

  Status Write(const std::vector<int32_t>& ids, Model* model) {
    const File file(std::fopen(out_file_.c_str(), "wb"));
    if (file == nullptr) return Unavailable("'" + out_file_ + "' cannot be written");
    const KvLayout& layout = model->layout();
    const int64_t blocks = KvLayout::NumBlocks(static_cast<int64_t>(ids.size()));
    std::vector<int32_t> table(static_cast<size_t>(blocks));
    std::iota(table.begin(), table.end(), 0);
    std::vector<std::byte> pool(static_cast<size_t>(blocks * layout.block_bytes));
    std::vector<std::byte> slot(static_cast<size_t>(layout.slot_bytes));
    for (size_t start = 0; start < ids.size();) {
      SequenceStep step;
      step.tokens = ids.data();
      step.start = static_cast<int32_t>(start);
      step.num_rows = static_cast<int32_t>(std::min(ids.size() - start, size_t{chunk_}));
      step.block_table = table.data();
      step.pool = pool.data();
      step.slot = slot.data();
      StepOutput out;
      DI_RETURN_IF_ERROR(model->Step({&step, 1}, false, &out));
      DI_RETURN_IF_ERROR(out.status[0]);
      if (std::fwrite(out.logits.data(), sizeof(float), out.logits.size(), file.get()) !=
          out.logits.size()) {
        return Unavailable("'" + out_file_ + "' cannot be written: is the disk full?");
      }
      start += static_cast<size_t>(step.num_rows);
    }
    return std::fflush(file.get()) == 0 ? OkStatus()
                                        : Unavailable("'" + out_file_ + "' cannot be written");
  }

  ModelFlags flags_;
  std::string tokens_file_;
  std::string out_file_;
  std::string cache_quant_ = "on";
  uint32_t chunk_ = 256;
};

}  // namespace

std::unique_ptr<Command> MakeLogitsCommand() { return std::make_unique<LogitsCommand>(); }

}  // namespace deepinfer
