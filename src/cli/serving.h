// The life of a process with an HTTP front: listen, load beside the signal loop, serve, drain.
// Thread rule: main thread. Owner: the commands `serve` and `gateway`.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/load_progress.h"
#include "cli/engine_loading.h"
#include "cli/serve_flags.h"
#include "cluster/gateway.h"
#include "cluster/worker_directory.h"
#include "server/server.h"
#include "text/special_tokens.h"
#include "text/tokenizer.h"

namespace deepinfer {

// What a front needs to serve; destroyed in reverse order of members.
struct Serving {
  SteadyClock clock;
  EngineParts engine;                      // a gateway fills the tokenizer only
  std::array<uint8_t, 32> cache_secret{};  // of scopes and tenant tags
  std::string replay_folder;               // of turns that outlive the process; empty: none do
  std::string model_revision;              // "": that of a snapshot folder
  SpecialTokens special;
  std::string tokenizer_hash;
  std::unique_ptr<Gateway> gateway;
  std::unique_ptr<WorkerDirectory> directory;  // of a gateway whose workers come and go
};

// Fills everything but the hash of the tokenizer; runs on a thread of its own.
using LoadParts = std::function<Status(const std::filesystem::path& dir, LoadProgress* progress,
                                       Serving* serving)>;

// The all-in-one server: engine and workers in this process.
Status LoadAllInOne(const std::filesystem::path& dir, const ServeFlags& flags,
                    LoadProgress* progress, Serving* serving);

// Loads and makes `server` serve what was loaded; a failure is its failure too.
Status LoadAndAttach(const std::filesystem::path& dir, const LoadParts& load_parts,
                     LoadProgress* progress, Serving* serving, Server* server);

// Serves until the first stop signal and drains then; the second stops at once.
Status RunServing(ServeFlags* flags, const LoadParts& load_parts);

}  // namespace deepinfer
