// Sizes that kernels, launch plans and tests share. C++ and shaders read it.
#pragma once

#ifdef __METAL_VERSION__
#define POMONA_CONSTANT constant constexpr
#else
#define POMONA_CONSTANT inline constexpr
#endif

namespace pomona {

// Keys of one split. A row's softmax is folded split by split, in order, with boundaries at
// multiples of this: so its result never depends on how the work was divided.
POMONA_CONSTANT int kKeysPerSplit = 512;

// Keys that one pass of a kernel scores at once; divides kKeysPerSplit.
POMONA_CONSTANT int kKeyTile = 64;

// Query rows (tokens times query heads of a group) from which one token's rows fill a tile.
POMONA_CONSTANT int kTiledGroup = 16;

// Most query rows of one tile.
POMONA_CONSTANT int kMaxTileRows = 128;

// Keys of which a prefill's splits are multiples: as many as a tile of keys has at most.
POMONA_CONSTANT int kSplitTile = 128;

// Splits of a prefill, at most: a partial state of more would take longer than the keys it saves.
POMONA_CONSTANT int kMaxPrefillSplits = 16;

// Threads of a simdgroup, on every Apple GPU.
POMONA_CONSTANT int kSimdWidth = 32;

// Rows and columns of a simdgroup matrix. Block sizes are multiples: 8 aligned keys share a block.
POMONA_CONSTANT int kMatrixDim = 8;

// Keys that a simdgroup of the decode kernel folds into its softmax at once.
POMONA_CONSTANT int kDecodeKeys = 32;

// Most row tiles, of kMatrixDim query heads each, that a decode threadgroup serves.
POMONA_CONSTANT int kMaxDecodeRowTiles = 2;

// Most dimensions of the output that one simdgroup of the decode kernel accumulates: 64 registers.
POMONA_CONSTANT int kMaxDecodeDims = 256;

// Rows that a threadgroup of the reduction folds, one a simdgroup.
POMONA_CONSTANT int kReduceRows = 4;

// Convolution: threads of a threadgroup, a channel each, and the tokens that it goes over.
POMONA_CONSTANT int kConvThreads = 256;
POMONA_CONSTANT int kConvTokens = 8;

// Linear attention: rows of state that a simdgroup keeps in registers, and simdgroups.
POMONA_CONSTANT int kStateRows = 4;
POMONA_CONSTANT int kStateSimdgroups = 4;

// Columns that a lane owns where a state has fewer than kSimdWidth.
POMONA_CONSTANT int kNarrowColumns = 4;

// Rotation of heads: simdgroups of a threadgroup, the pairs of dimensions that a lane holds at most, how
// many simdgroups occupy any GPU, and how many heads of a token one rotates at most where there are more.
POMONA_CONSTANT int kRotarySimdgroups = 4;
POMONA_CONSTANT int kMaxRotaryPairs = 8;
POMONA_CONSTANT int kManyRotaryRuns = 2048;
POMONA_CONSTANT int kMostRotaryHeads = 8;

// Draws: threads of a threadgroup that scores a chunk, and the pairs of tokens that a chunk has.
POMONA_CONSTANT int kDrawThreads = 256;
POMONA_CONSTANT int kDrawPairs = 1024;

// Ranking of tokens: threads of a threadgroup that ranks a row or a slice of it, the pairs of tokens that
// a slice has, tokens whose logits a thread has on their way at once, values of a digit, and those that
// one thread adds up. Two digits tell tokens apart.
POMONA_CONSTANT int kCutThreads = 512;
POMONA_CONSTANT int kSlicePairs = 4096;
POMONA_CONSTANT int kCutRun = 4;
POMONA_CONSTANT int kRankDigit = 2048;
POMONA_CONSTANT int kDigitRun = 8;
POMONA_CONSTANT int kMaxDrawVocab = kRankDigit * kRankDigit;

} // namespace pomona
