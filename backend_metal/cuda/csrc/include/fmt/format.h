// MLX's CUDA headers include fmt, which its wheels leave out, for the text of one error.
#pragma once

#include <string>

namespace fmt {

template <typename... Arguments>
std::string format(const char* pattern, const Arguments&...) {
  return pattern;
}

} // namespace fmt
