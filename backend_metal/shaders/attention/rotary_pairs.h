// Which dimensions of a head are rotated together.
#pragma once

namespace pomona {

struct DimPair {
  int first;
  int second;
};

// Pairs from `rotated_pairs` on are not rotated: theirs are the dimensions behind the rotated ones.
inline DimPair dims_of_pair(int pair, int rotated_pairs, bool traditional) {
  if (traditional || pair >= rotated_pairs) {
    return {2 * pair, 2 * pair + 1};
  }
  return {pair, pair + rotated_pairs};
}

} // namespace pomona
