// Verification of drafts: which are accepted and which token follows them (dspark.md §4). It never
// changes the distribution of the output; by equality it changes no token.
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "base/result.h"
#include "engine/distribution.h"

namespace deepinfer {

// Drafts 1..num_accepted stay, `token` follows them.
struct Verification {
  int32_t num_accepted = 0;
  int32_t token = 0;
};

// Greedy and strict requests: draft k is accepted if it is the token of the target, target(k), for
// k = 1..drafts.size() + 1: the argmax, or the race draw of its position. Targets behind the first
// difference are not asked for. Errors: those of `target`.
Result<Verification> VerifyByEquality(std::span<const int32_t> drafts,
                                      const std::function<Result<int32_t>(int32_t k)>& target);

// Requests in rejection mode. q[k - 1] is the distribution that draft k was drawn from, target(k)
// the processed distribution of the target for k = 1..drafts.size() + 1; neither is empty. Draft k
// stands at position first_position + k - 1. The random numbers are those of (seed, position).
Result<Verification> VerifyByRejection(std::span<const int32_t> drafts,
                                       std::span<const Survivors> q,
                                       const std::function<Result<Survivors>(int32_t k)>& target,
                                       uint64_t seed, uint64_t first_position);

// Draft k (from 1) of a request in rejection mode. k keeps apart the numbers of a position that is
// drafted again from another anchor.
int32_t DrawDraft(const Survivors& q, uint64_t seed, uint64_t position, int32_t k);

// Whether a draft drawn from q stands in for a draw from p: u · q(draft) < p(draft), with u from
// the 64 random bits.
bool AcceptsDraft(const Survivors& p, const Survivors& q, int32_t draft, uint64_t bits);

// What a rejected draft leaves of p: max(p - q, 0) in units of 2^-62. p itself if rounding leaves
// nothing.
Survivors ResidualOf(const Survivors& p, const Survivors& q);

}  // namespace deepinfer
