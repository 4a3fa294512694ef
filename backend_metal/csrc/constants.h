// Sizes that every device's kernels, the launch plan and the tests share.
#pragma once

namespace pomona {

// Keys of one split. A row's softmax is folded split by split, in order, with boundaries at
// multiples of this: so its result never depends on how the work was divided.
inline constexpr int kKeysPerSplit = 512;

// Keys that one pass of a kernel scores at once; divides kKeysPerSplit.
inline constexpr int kKeyTile = 64;

// Query rows (tokens times query heads of a group) from which one token's rows fill a tile.
inline constexpr int kTiledGroup = 16;

// Most query rows of one tile.
inline constexpr int kMaxTileRows = 128;

} // namespace pomona
