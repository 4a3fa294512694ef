// Products of more rows than warps hold, with all of a multiprocessor for each block.
#include "cuda/few_rows_product.h"

#undef POMONA_BEGIN
#define POMONA_BEGIN

namespace pomona {

// Grid: (tiles of rows, tiles of outputs, 1).
template <typename T, int OUTPUTS, int TILES>
inline void many_rows_product(const FewRowsProductParameters& p, const FewRowsProductBuffers& b) {
  FewRowsProduct<T, OUTPUTS, TILES, false, kManyRowsMemory>{p, b}.run();
}

template <typename T, int OUTPUTS, int TILES>
inline void gated_many_rows_product(
    const FewRowsProductParameters& p, const FewRowsProductBuffers& b) {
  FewRowsProduct<T, OUTPUTS, TILES, true, kManyRowsMemory>{p, b}.run();
}

} // namespace pomona
