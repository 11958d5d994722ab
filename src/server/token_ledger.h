// Log-probabilities of committed tokens that wait until their text is shown: alternatives belong
// to their own token, however the text was grouped or held.
// Thread rule: one object, one thread. Owner: one choice of an answer.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>

#include "base/check.h"
#include "engine/request.h"

namespace deepinfer {

struct TokenRecord {
  int32_t id = 0;
  TokenLogprobs logprobs;
};

class TokenLedger {
 public:
  // Tokens are numbered from 0 in the order of the calls.
  void Add(int32_t id, TokenLogprobs logprobs) { records_.push_back({id, std::move(logprobs)}); }

  // Precondition: token `index` was added and not dropped.
  const TokenRecord& At(int64_t index) const {
    DI_CHECK(index >= first_ && index - first_ < static_cast<int64_t>(records_.size()));
    return records_[static_cast<size_t>(index - first_)];
  }

  // Forgets every token before `index`.
  void DropBefore(int64_t index) {
    while (first_ < index && !records_.empty()) {
      records_.pop_front();
      ++first_;
    }
  }

 private:
  std::deque<TokenRecord> records_;
  int64_t first_ = 0;
};

}  // namespace deepinfer
