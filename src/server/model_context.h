// What the HTTP side needs of a loaded model.
// Thread rule: immutable once attached. The pointers are borrowed and must stay valid until
// Server::Stop has returned.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "cluster/gateway.h"
#include "text/conversation.h"
#include "text/special_tokens.h"

namespace deepinfer {

class Tokenizer;

struct ModelCard {
  std::string revision;
  std::string weights_hash;
  std::string tokenizer_hash;
  int64_t created_s = 0;
  PromptForm prompt_form = PromptForm::kV41;
  bool vision = false;
};

struct ModelContext {
  const Tokenizer* tokenizer = nullptr;
  Gateway* gateway = nullptr;
  SpecialTokens special;
  std::array<uint8_t, 32> cache_secret{};  // of scopes and tenant tags (server/cache_controls.h)
  ModelCard card;
  std::string replay_folder;  // of turns that outlive the process; empty: none do
  bool owns_devices = false;  // the engines of the gateway's workers are in this process
};

}  // namespace deepinfer
