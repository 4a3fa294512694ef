// Integers that launch plans are made of.
#pragma once

#include <cstdint>

namespace pomona {

inline int ceil_div(int64_t a, int64_t b) {
  return static_cast<int>((a + b - 1) / b);
}

inline int power_of_two_from(int n) {
  int power = 1;
  while (power < n) {
    power *= 2;
  }
  return power;
}

} // namespace pomona
