// Products of few rows, or of tiles of so many, with a half of what a multiprocessor has.
#include "few_rows_product.h"

#undef POMONA_LEAST_BLOCKS
#define POMONA_LEAST_BLOCKS , 2
#undef POMONA_BEGIN
#define POMONA_BEGIN

namespace pomona {

// Grid: (tiles of rows, tiles of outputs, splits).
template <typename T, int OUTPUTS, int TILES>
inline void few_rows_product(const FewRowsProductParameters& p, const FewRowsProductBuffers& b) {
  FewRowsProduct<T, OUTPUTS, TILES, false, kFewRowsMemory>{p, b}.run();
}

template <typename T, int OUTPUTS, int TILES>
inline void gated_few_rows_product(
    const FewRowsProductParameters& p, const FewRowsProductBuffers& b) {
  FewRowsProduct<T, OUTPUTS, TILES, true, kFewRowsMemory>{p, b}.run();
}

} // namespace pomona
