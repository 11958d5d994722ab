// Constants of scheduling and what fixed each of them.
// Thread rule: constants.
#pragma once

#include <cstdint>

namespace deepinfer {

// Tokens of a cache block; equals kBlockTokens of the model's layout, which the engine checks.
inline constexpr int32_t kPlanBlockTokens = 128;

// Rows of a prefill quantum: one cache block, so that a forced chunk still ends on a block edge.
inline constexpr int32_t kMinPrefillRows = 128;
// A quantum runs at least every so many steps however slow decoding is: prefill then keeps a
// quarter of the steps, and a decoding client waits for at most every fourth token.
inline constexpr int32_t kPrefillEvery = 4;
// Of the time a mixed step may take, prefill gets at most this share, so that decode rows are
// never a vanishing part of it.
inline constexpr double kPrefillShareMax = 0.8;
// Time per output token a mixed step aims at: 20 tokens/s, faster than reading.
inline constexpr int64_t kTpotTargetUs = 50'000;

// Candidates a step may pass over before it stops looking: bounds the time of planning.
inline constexpr int32_t kMaxSkips = 8;
// A candidate passed over longer than either becomes a barrier: about two seconds of steps at the
// targeted step time.
inline constexpr int32_t kBarrierSteps = 32;
inline constexpr int64_t kBarrierUs = 2'000'000;

// Share of prefill rows kept for the batch class while it waits: low enough to cost the other
// classes nothing noticeable, high enough to end.
inline constexpr double kBatchFloor = 0.05;
// A request that waited longer is served before its class order, in order of arrival.
inline constexpr int64_t kMaxWaitInteractiveUs = 2'000'000;
inline constexpr int64_t kMaxWaitAgentUs = 10'000'000;
inline constexpr int64_t kMaxWaitBatchUs = 120'000'000;

// First tokens that requests of a class should have by then, counted from their arrival: among
// waiting requests of one class the one with the least time left goes first. For the two classes
// behind, their longest wait: somebody reads the first, nobody the others.
inline constexpr int64_t kTtftTargetInteractiveUs = 2'000'000;
inline constexpr int64_t kTtftTargetAgentUs = kMaxWaitAgentUs;
inline constexpr int64_t kTtftTargetBatchUs = kMaxWaitBatchUs;

// A sequence is not parked again within this time, nor when it ends sooner than that: parking
// costs a copy out and in, and must pay for it.
inline constexpr int64_t kParkAgainUs = 5'000'000;
inline constexpr int64_t kParkMinRemainingUs = 1'000'000;
// Blocks that stay free per decoding sequence when something new is admitted, so that the next
// block edge does not park anybody.
inline constexpr int32_t kBlocksPerDecode = 1;

// Recursive least squares of the step time: about 1,000 steps of memory (0.999), outliers beyond
// five median absolute deviations of the last residuals are dropped.
inline constexpr double kForgetting = 0.999;
inline constexpr double kOutlierMads = 5.0;
inline constexpr int32_t kResidualWindow = 64;
// Fewer observations than this predict by the exact operation count alone.
inline constexpr int32_t kMinObservations = 24;

}  // namespace deepinfer
