// deepinfer kv pin, export, import and key.

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "cli/io.h"
#include "cli/kv_environment.h"
#include "cli/kv_tools.h"
#include "kvcache/keys.h"
#include "kvcache/pinning.h"
#include "kvcache/store_export.h"
#include "kvcache/store_secret.h"

namespace deepinfer {
namespace {

// A line on a terminal that is rewritten as blocks go by; nothing elsewhere.
class ProgressLine {
 public:
  explicit ProgressLine(const char* what) : what_(what), shown_(isatty(STDERR_FILENO) == 1) {}
  ~ProgressLine() {
    if (drawn_) (void)std::fputs("\r\033[K", stderr);
  }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void Show(int64_t done, int64_t total) {
    if (!shown_) return;
    drawn_ = true;
    const std::string of = total > 0 ? fmt::format(" of {}", total) : std::string();
    Tell("\r{} {}{} blocks\033[K", what_, done, of);
    (void)std::fflush(stderr);
  }

 private:
  const char* what_;
  bool shown_;
  bool drawn_ = false;
};

}  // namespace

Status PinInKvStore(const std::string& dir, const KvPinOptions& options, bool json) {
  KvEnvironment environment;
  DI_ASSIGN_OR_RETURN(const BlockKey key, ParseKey(options.prefix_key));
  DI_ASSIGN_OR_RETURN(const auto views, InspectKvStore(environment, dir));
  int64_t stored = 0;
  int64_t changed = 0;
  for (const NamespaceView& view : views) {
    const auto chain = ChainTo(environment.files.get(), view, key);
    if (chain.empty()) continue;
    stored += static_cast<int64_t>(chain.size());
    DI_ASSIGN_OR_RETURN(const KvBlockLayout layout, LayoutOf(view));
    DI_ASSIGN_OR_RETURN(
        const auto store,
        OpenKvStore(&environment, dir,
                    {.namespace_id = view.id, .layout = layout, .key_file = options.key_file}));
    DI_ASSIGN_OR_RETURN(const int64_t count, options.remove ? UnpinBlocks(store.get(), chain)
                                                            : PinBlocks(store.get(), chain));
    changed += count;
    FinishCopies(store.get());
  }
  if (stored == 0) return NotFound("no block of this key is stored");
  const char* what = options.remove ? "unpinned" : "pinned";
  return PrintLine(
      json ? fmt::format("{{\"chain_blocks\":{},\"{}_blocks\":{}}}", stored, what, changed)
           : fmt::format("{} of {} blocks of the chain {}", changed, stored, what));
}

Status ExportFromKvStore(const std::string& dir, const KvExportOptions& options, bool json,
                         bool* clean) {
  KvEnvironment environment;
  DI_ASSIGN_OR_RETURN(const auto views, InspectKvStore(environment, dir));
  const NamespaceView* view = nullptr;
  std::optional<std::vector<BlockKey>> keys;
  if (options.prefix_key.empty()) {
    DI_ASSIGN_OR_RETURN(view, SelectNamespace(views, options.ns));
  } else {
    DI_ASSIGN_OR_RETURN(const BlockKey key, ParseKey(options.prefix_key));
    keys.emplace();
    for (const NamespaceView& candidate : views) {
      for (const ChainBlock& block : ChainTo(environment.files.get(), candidate, key)) {
        view = &candidate;
        keys->push_back(block.key);
      }
    }
    if (view == nullptr) return NotFound("no block of this key is stored");
  }
  ExportTotals totals;
  {
    ProgressLine line("exported");
    DI_ASSIGN_OR_RETURN(totals,
                        ExportBlocks(environment.files.get(), *view, keys, options.path,
                                     [&](int64_t done, int64_t total) { line.Show(done, total); }));
  }
  *clean = totals.bad == 0;
  return PrintLine(
      json ? fmt::format("{{\"namespace\":\"{}\",\"blocks\":{},\"bad_records\":{},\"bytes\":{},"
                         "\"raw_bytes\":{}}}",
                         BlockKey{view->id}.Hex(), totals.records, totals.bad, totals.bytes,
                         totals.raw_bytes)
           : fmt::format("{} blocks, {} bytes ({} before compression), {} bad records left out",
                         totals.records, totals.bytes, totals.raw_bytes, totals.bad));
}

Status ImportIntoKvStore(const std::string& dir, const KvImportOptions& options, bool json,
                         bool* clean) {
  KvEnvironment environment;
  DI_ASSIGN_OR_RETURN(const auto import, BlockImport::Open(environment.files.get(), options.path));
  DI_ASSIGN_OR_RETURN(const auto store, OpenKvStore(&environment, dir,
                                                    {.namespace_id = import->namespace_id(),
                                                     .layout = import->layout(),
                                                     .key_file = options.key_file}));
  ImportTotals totals;
  {
    ProgressLine line("imported");
    DI_ASSIGN_OR_RETURN(totals, import->Run(store.get(), [&](int64_t done, int64_t total) {
      line.Show(done, total);
    }));
  }
  *clean = totals.bad == 0;
  return PrintLine(
      json ? fmt::format("{{\"namespace\":\"{}\",\"records\":{},\"imported\":{},\"existing\":{},"
                         "\"refused\":{},\"bad_records\":{}}}",
                         BlockKey{import->namespace_id()}.Hex(), totals.records, totals.imported,
                         totals.existing, totals.refused, totals.bad)
           : fmt::format("{} of {} blocks imported ({} were there, {} refused, {} bad)",
                         totals.imported, totals.records, totals.existing, totals.refused,
                         totals.bad));
}

Status CreateTenantKey(const std::string& dir, const KvKeyOptions& options, bool json) {
  KvEnvironment environment;
  DI_ASSIGN_OR_RETURN(const auto secret, LoadOrCreateSecret(environment.files.get(), dir));
  DI_ASSIGN_OR_RETURN(const auto keys, TenantKeys::Open(environment.files.get(), options.key_file));
  const uint64_t tag = TenantTag(secret, options.tenant);
  DI_RETURN_IF_ERROR(keys->Create(tag));
  return PrintLine(json ? fmt::format("{{\"tenant_tag\":\"{:016x}\"}}", tag)
                        : fmt::format("{} has a key for tenant {:016x}", options.key_file, tag));
}

}  // namespace deepinfer
