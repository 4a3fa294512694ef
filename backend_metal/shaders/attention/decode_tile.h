// How a decode threadgroup's simdgroups share its work, decided by the head dim. C++ and Metal read
// it.
#pragma once

#include "../common/constants.h"

namespace pomona {

// Simdgroups of a threadgroup. A lane of the kernel holds up to 64 floats of the output and about
// as many of operands, and an Apple core has some 208 KB of registers: 12 to 16 simdgroups stay
// resident. As threadgroups of four they come and go one by one, so that while one of them reduces
// or waits for its queries, the others keep requests in flight.
POMONA_CONSTANT int kDecodeSimdgroups = 4;

// Simdgroups that share the output's dimensions; each of them scores all keys for itself.
constexpr int decode_dim_parts(int head_dim_v) {
  return (head_dim_v + kMaxDecodeDims - 1) / kMaxDecodeDims;
}

// Simdgroups that share the keys; a power of two.
constexpr int decode_key_parts(int head_dim_v, int row_tiles) {
  return row_tiles * decode_dim_parts(head_dim_v) < kDecodeSimdgroups
      ? kDecodeSimdgroups / (row_tiles * decode_dim_parts(head_dim_v))
      : 1;
}

constexpr int decode_threads(int head_dim_v, int row_tiles) {
  return kSimdWidth * row_tiles * decode_dim_parts(head_dim_v) *
      decode_key_parts(head_dim_v, row_tiles);
}

// The queries, and later, in the same place, the states that half of the key parts hand to the
// other half: a lane's share of the accumulator, its row's maximum and its share of the sum.
constexpr int decode_query_bytes(int head_dim, int row_tiles, int itemsize) {
  return row_tiles * kMatrixDim * head_dim * itemsize;
}

constexpr int decode_lane_floats(int head_dim_v) {
  return head_dim_v / decode_dim_parts(head_dim_v) / 4 + 2;
}

constexpr int decode_merge_bytes(int head_dim_v, int row_tiles) {
  return decode_key_parts(head_dim_v, row_tiles) / 2 * row_tiles * decode_dim_parts(head_dim_v) *
      kSimdWidth * decode_lane_floats(head_dim_v) * 4;
}

} // namespace pomona
