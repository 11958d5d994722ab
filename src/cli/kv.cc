// deepinfer kv: look at, check and clean a cache store, and replay traces against a cache.

#include <CLI/CLI.hpp>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/kv_flags.h"
#include "cli/kv_tools.h"

namespace deepinfer {
namespace {

class KvCommand final : public Command {
 public:
  CLI::App* Register(CLI::App* app) override {
    app_ = app->add_subcommand("kv", "Look at, check and clean a cache store");
    app_->require_subcommand(1);
    // Before the subcommands, which take it over.
    app_->footer(
        "Examples:\n"
        "  deepinfer kv stats\n"
        "  deepinfer kv verify --dir /var/cache/deepinfer/kv --json\n"
        "  deepinfer kv replay trace.jsonl --svg curve.svg");
    stats_ = AddTool("stats", "Bytes, blocks and segments");
    ls_ = AddTool("ls", "Segments, or with --blocks every block");
    ls_->add_flag("--blocks", ls_options_.blocks, "One line per block");
    ls_->add_option("--prefix-key", ls_options_.prefix_key,
                    "Only blocks whose chain contains this key (64 hex digits)");
    ls_->add_option("--class", ls_options_.retention, "Only this class")
        ->check(CLI::IsMember({"batch", "agent", "chat", "pinned"}));
    ls_->add_option("--ns", ls_options_.ns, "Only this namespace (its first hex digits)");
    ls_->add_option("--owner", ls_options_.owner, "Only folders of this node");
    verify_ =
        AddTool("verify", "Check every checksum and key; exit status 1 when something is bad");
    verify_->add_option("--sample", verify_options_.sample, "Check every n-th record")
        ->capture_default_str();
    verify_->add_flag("--repair", verify_options_.repair,
                      "Seal open segments, drop bad records; needs a store that is not in use");
    AddKeyFile(verify_, &verify_options_.key_file);
    gc_ = AddTool("gc", "Run expiry now; needs a store that is not in use");
    gc_->add_flag("--dry-run", gc_options_.dry_run, "Only say what would happen");
    gc_->add_option("--space-mb", gc_options_.space_mb, "Space of the store, for --target-free");
    gc_->add_option("--target-free", gc_options_.target_free_percent,
                    "Evict by value until this share of the space is free, percent");
    AddKeyFile(gc_, &gc_options_.key_file);
    erase_ = AddTool("erase", "Erase for good; needs a store that is not in use");
    auto* what = erase_->add_option_group("what", "What to erase");
    what->add_option("--tenant", erase_options_.tenant, "All blocks of this tenant id");
    what->add_option("--prefix-key", erase_options_.prefix_key,
                     "All blocks whose chain contains this key (64 hex digits)");
    what->add_option("--ns", erase_options_.ns, "This namespace as a whole (its first hex digits)");
    what->require_option(1);
    erase_->add_flag("--yes", erase_options_.yes, "Really")->required();
    AddKeyFile(erase_, &erase_options_.key_file);
    RegisterTransfers();
    replay_ = app_->add_subcommand("replay", "Hit rates of a trace against cache sizes");
    replay_->add_option("TRACE", replay_options_.path, "JSON lines with hash_ids")->required();
    replay_->add_option("--id-tokens", replay_options_.id_tokens, "Tokens of one id")
        ->capture_default_str();
    replay_->add_option("--block-tokens", replay_options_.block_tokens, "Tokens of one block")
        ->capture_default_str();
    replay_->add_option("--svg", replay_options_.svg_path, "Also draw the curve to this file");
    replay_->add_flag("--json", replay_options_.json, "One JSON line instead of text");
    return app_;
  }

  int Run(const FlagOrigins&) override {
    // Standard output is for results.
    InitLogging(LogLevel::kWarning, LogFormat::kText);
    bool clean = true;
    const Status status = Dispatch(&clean);
    if (!status.ok()) return ReportFailure(status);
    return clean ? kExitOk : kExitFailure;
  }

 private:
  CLI::App* AddTool(const char* name, const char* description) {
    CLI::App* tool = app_->add_subcommand(name, description);
    tool->add_option("--dir", dir_,
                     "Root of the store; default: deepinfer/kv in the user's cache folder");
    tool->add_flag("--json", json_, "One JSON line instead of text");
    return tool;
  }

  static void AddKeyFile(CLI::App* tool, std::string* path) {
    tool->add_option("--key-file", *path, "Keys of tenants whose blocks are encrypted");
  }

  void RegisterTransfers() {
    pin_ = AddTool("pin", "Keep the chain up to a block until further notice");
    pin_->add_option("--prefix-key", pin_options_.prefix_key, "Last block (64 hex digits)")
        ->required();
    pin_->add_flag("--remove", pin_options_.remove, "Let it expire like a chat from now on");
    AddKeyFile(pin_, &pin_options_.key_file);
    export_ = AddTool("export", "Write blocks to a file");
    auto* of = export_->add_option_group("of", "What to export");
    of->add_option("--ns", export_options_.ns, "This namespace (its first hex digits)");
    of->add_option("--prefix-key", export_options_.prefix_key,
                   "The chain up to this block (64 hex digits)");
    of->require_option(1);
    export_->add_option("FILE", export_options_.path, "Where to")->required();
    import_ = AddTool("import", "Read blocks from an exported file; checks each");
    import_->add_option("FILE", import_options_.path, "Where from")->required();
    AddKeyFile(import_, &import_options_.key_file);
    key_ = AddTool("key", "Give a tenant a key: its blocks are stored encrypted from then on");
    key_->add_option("--tenant", key_options_.tenant, "Tenant id")->required();
    key_->add_option("--key-file", key_options_.key_file, "File to add the key to")->required();
  }

  Status Dispatch(bool* clean) {
    if (dir_.empty()) dir_ = UserKvDir();
    if (stats_->parsed()) return PrintKvStats(dir_, json_);
    if (ls_->parsed()) return PrintKvList(dir_, ls_options_, json_);
    if (verify_->parsed()) return VerifyKvStore(dir_, verify_options_, json_, clean);
    if (gc_->parsed()) return CollectKvGarbage(dir_, gc_options_, json_);
    if (erase_->parsed()) return EraseFromKvStore(dir_, erase_options_, json_);
    if (pin_->parsed()) return PinInKvStore(dir_, pin_options_, json_);
    if (export_->parsed()) return ExportFromKvStore(dir_, export_options_, json_, clean);
    if (import_->parsed()) return ImportIntoKvStore(dir_, import_options_, json_, clean);
    if (key_->parsed()) return CreateTenantKey(dir_, key_options_, json_);
    return ReplayKvTrace(replay_options_);
  }

  CLI::App* app_ = nullptr;
  CLI::App* stats_ = nullptr;
  CLI::App* ls_ = nullptr;
  CLI::App* verify_ = nullptr;
  CLI::App* gc_ = nullptr;
  CLI::App* erase_ = nullptr;
  CLI::App* replay_ = nullptr;
  CLI::App* pin_ = nullptr;
  CLI::App* export_ = nullptr;
  CLI::App* import_ = nullptr;
  CLI::App* key_ = nullptr;
  std::string dir_;
  bool json_ = false;
  KvVerifyOptions verify_options_;
  KvListOptions ls_options_;
  KvGcOptions gc_options_;
  KvEraseOptions erase_options_;
  KvPinOptions pin_options_;
  KvExportOptions export_options_;
  KvImportOptions import_options_;
  KvKeyOptions key_options_;
  KvReplayOptions replay_options_;
};

}  // namespace

std::unique_ptr<Command> MakeKvCommand() { return std::make_unique<KvCommand>(); }

}  // namespace deepinfer
