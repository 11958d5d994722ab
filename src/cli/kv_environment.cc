#include "cli/kv_environment.h"

#include <algorithm>

#include "kvcache/store_folders.h"

namespace deepinfer {
namespace {

// A lease anywhere says that processes share this namespace.
bool IsShared(FileSystem* files, const std::string& namespace_folder) {
  const auto folders = ListEpochFolders(files, namespace_folder);
  return folders.ok() && std::ranges::any_of(*folders, [&](const EpochFolder& folder) {
           return files->Stat(namespace_folder + "/" + folder.name + "/lease").ok();
         });
}

}  // namespace

Result<std::vector<NamespaceView>> InspectKvStore(const KvEnvironment& environment,
                                                  const std::string& dir) {
  auto views = InspectStore(environment.files.get(), dir);
  if (views.status().code() == StatusCode::kNotFound) return NotFound("no store in " + dir);
  return views;
}

Result<KvBlockLayout> LayoutOf(const NamespaceView& view) {
  const auto known = std::ranges::find_if(
      view.segments, [](const SegmentView& segment) { return segment.content.has_value(); });
  if (known == view.segments.end()) return NotFound("no readable segment in " + view.folder);
  return known->content->layout;
}

Result<std::unique_ptr<KvStore>> OpenKvStore(KvEnvironment* environment, const std::string& dir,
                                             const KvOwnerOptions& options) {
  KvStoreOptions store_options;
  store_options.dir = dir;
  store_options.namespace_id = options.namespace_id;
  store_options.layout = options.layout;
  store_options.space_bytes = options.space_bytes;
  store_options.key_file = options.key_file;
  store_options.background_threads = false;
  store_options.io_threads = 0;
  if (IsShared(environment->files.get(), NamespaceFolder(dir, options.namespace_id))) {
    store_options.shared = true;
    store_options.node = "tool";
  }
  DI_ASSIGN_OR_RETURN(auto store, KvStore::Open(store_options, environment->files.get(),
                                                &environment->clock, &environment->wall_clock));
  if (store_options.shared) store->RunPeers();
  return store;
}

void FinishCopies(KvStore* store) {
  for (int round = 0; round < 3; ++round) {
    store->Flush(false);
    (void)store->RunJanitor();
  }
  store->Flush(true);
}

std::string JoinJson(const std::vector<std::string>& items) {
  std::string text = "[";
  for (const std::string& item : items) text += (text.size() > 1 ? "," : "") + item;
  return text + "]";
}

}  // namespace deepinfer
