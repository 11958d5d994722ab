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

Result<const NamespaceView*> SelectNamespace(const std::vector<NamespaceView>& views,
                                             const std::string& ns) {
  const NamespaceView* selected = nullptr;
  for (const NamespaceView& view : views) {
    if (!BlockKey{view.id}.Hex().starts_with(ns)) continue;
    if (selected != nullptr) return InvalidRequest("several namespaces: name one with --ns");
    selected = &view;
  }
  if (selected == nullptr) return NotFound("no such namespace");
  return selected;
}

Result<int64_t> RemoveNamespace(KvEnvironment* environment, const NamespaceView& view) {
  FileSystem* files = environment->files.get();
  if (IsShared(files, view.folder)) {
    return InvalidRequest("servers share this namespace: stop them and delete " + view.folder);
  }
  const std::string lock_path = view.folder + "/" + KvStoreOptions().node + ".lock";
  DI_ASSIGN_OR_RETURN(const auto lock, files->Lock(lock_path));
  int64_t blocks = 0;
  for (const SegmentView& segment : view.segments) {
    if (segment.content) blocks += static_cast<int64_t>(segment.content->entries.size());
  }
  DI_ASSIGN_OR_RETURN(const auto epochs, ListEpochFolders(files, view.folder));
  for (const EpochFolder& epoch : epochs) {
    const std::string folder = view.folder + "/" + epoch.name;
    DI_ASSIGN_OR_RETURN(const auto names, files->List(folder));
    for (const std::string& name : names) DI_RETURN_IF_ERROR(files->Remove(folder + "/" + name));
    DI_RETURN_IF_ERROR(files->RemoveDirectory(folder));
  }
  DI_ASSIGN_OR_RETURN(const auto rest, files->List(view.folder));
  for (const std::string& name : rest) DI_RETURN_IF_ERROR(files->Remove(view.folder + "/" + name));
  DI_RETURN_IF_ERROR(files->RemoveDirectory(view.folder));
  return blocks;
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
