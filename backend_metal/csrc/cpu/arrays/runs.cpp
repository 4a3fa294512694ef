#include "cpu/arrays/runs.h"

#include <algorithm>
#include <optional>

#include "cpu/arrays/contiguous.h"

namespace pomona {

namespace {

// From a run to the next, the same for all; none if the strides are others. `in` is not empty.
std::optional<int64_t> run_stride(const mx::array& in, int64_t length) {
  int dim = static_cast<int>(in.ndim()) - 1;
  int64_t size = 1;
  for (; dim >= 0 && (size < length || in.shape(dim) == 1); dim--) {
    if (in.shape(dim) != 1 && in.strides(dim) != size) {
      return std::nullopt;
    }
    size *= in.shape(dim);
  }
  if (size != length) {
    return std::nullopt;
  }
  int64_t stride = length, span = 0;
  for (; dim >= 0; dim--) {
    if (in.shape(dim) == 1) {
      continue;
    }
    if (span == 0) {
      stride = span = in.strides(dim);
    } else if (in.strides(dim) != span) {
      return std::nullopt;
    }
    span *= in.shape(dim);
  }
  return stride;
}

} // namespace

int64_t run_length(const mx::array& in) {
  int64_t length = 1;
  for (int dim = static_cast<int>(in.ndim()) - 1; dim >= 0; dim--) {
    if (in.shape(dim) != 1 && in.strides(dim) != length) {
      break;
    }
    length *= in.shape(dim);
  }
  return length;
}

Runs runs_of(const mx::array& in, int64_t length, mx::cpu::CommandEncoder& encoder) {
  const auto size = static_cast<int64_t>(in.size());
  const int64_t count = size / std::max<int64_t>(1, length);
  if (!in.flags().row_contiguous && size > 0) {
    if (auto stride = run_stride(in, length)) {
      return {in.data<float>(), count, length, *stride};
    }
  }
  return {row_contiguous(in, encoder).data<float>(), count, length, length};
}

} // namespace pomona
