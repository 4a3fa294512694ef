// Products of few rows, and of more than a warp holds, with all of a multiprocessor for each block.
#include "few_rows_product.h"

#undef POMONA_BEGIN
#define POMONA_BEGIN

namespace pomona {

// Grid: (tiles of rows, tiles of outputs, splits).
template <typename T, int OUTPUTS, int TILES>
inline void whole_core_product(const FewRowsProductParameters& p, const FewRowsProductBuffers& b) {
  FewRowsProduct<T, OUTPUTS, TILES, false, kWholeCoreMemory>{p, b}.run();
}

template <typename T, int OUTPUTS, int TILES>
inline void gated_whole_core_product(
    const FewRowsProductParameters& p, const FewRowsProductBuffers& b) {
  FewRowsProduct<T, OUTPUTS, TILES, true, kWholeCoreMemory>{p, b}.run();
}

} // namespace pomona
