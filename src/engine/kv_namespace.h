// What the cached blocks of a model are: their identity for keys and their layout for the store
// (kv_format.md §5, §9).
// Thread rule: pure functions.
#pragma once

#include <string>

#include "base/sha256.h"
#include "kvcache/keys.h"
#include "kvcache/layout.h"
#include "model/model.h"

namespace deepinfer {

// Digests of the files that decide what a model computes.
struct ModelFiles {
  Sha256Digest weights{};    // WeightsFingerprint (model/weights_fingerprint.h)
  Sha256Digest tokenizer{};  // of tokenizer.json
  Sha256Digest config{};     // of config.json: positions, windows, routing, top-k
};

// Equal namespaces: equal tokens give equal blocks, in any process and on any machine.
KvNamespace MakeKvNamespace(const Model& model, const ModelFiles& files);

// Format 1 for the rows of the released model, else a test format with the rows of this one.
KvBlockLayout MakeBlockLayout(const KvLayout& layout);

// The fields of a namespace as TOML lines, for people.
std::string DescribeNamespace(const KvNamespace& space);

}  // namespace deepinfer
