#include "transfer/extent.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace deepinfer {
namespace {

RC_GTEST_PROP(Frame, ComesBackAsItWasSent, ()) {
  Extent extent;
  extent.ticket = *rc::gen::arbitrary<uint64_t>();
  extent.offset = *rc::gen::inRange<int64_t>(0, INT64_MAX);
  extent.size_bytes = *rc::gen::inRange<int64_t>(1, kExtentBytes + 1);
  extent.crc32c = *rc::gen::arbitrary<uint32_t>();
  const Result<Extent> back = DecodeFrame(EncodeFrame(extent));
  RC_ASSERT(back.ok());
  RC_ASSERT(back->ticket == extent.ticket);
  RC_ASSERT(back->offset == extent.offset);
  RC_ASSERT(back->size_bytes == extent.size_bytes);
  RC_ASSERT(back->crc32c == extent.crc32c);
}

RC_GTEST_PROP(Frame, IsRefusedWhenAnyBitIsWrong, ()) {
  FrameHeader header = EncodeFrame({*rc::gen::arbitrary<uint64_t>(), 4096, 17, 99});
  const auto bit = *rc::gen::inRange<size_t>(0, 8 * kFrameBytes);
  header[bit / 8] ^= std::byte{1} << (bit % 8);
  RC_ASSERT(DecodeFrame(header).status().code() == StatusCode::kDataCorruption);
}

TEST(Frame, OfAnImpossibleExtentIsRefused) {
  EXPECT_FALSE(DecodeFrame(EncodeFrame({1, -1, 1, 0})).ok());
  EXPECT_FALSE(DecodeFrame(EncodeFrame({1, 0, 0, 0})).ok());
  EXPECT_FALSE(DecodeFrame(EncodeFrame({1, 0, kExtentBytes + 1, 0})).ok());
}

}  // namespace
}  // namespace deepinfer
