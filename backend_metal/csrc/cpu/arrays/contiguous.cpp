#include "cpu/arrays/contiguous.h"

#include <mlx/allocator.h>

#include <cstring>


namespace pomona {

namespace {

void copy_strided(
    const char* from,
    const mx::Shape& shape,
    const mx::Strides& strides,
    size_t dim,
    size_t itemsize,
    char*& to) {
  if (dim == shape.size()) {
    std::memcpy(to, from, itemsize);
    to += itemsize;
    return;
  }
  if (dim + 1 == shape.size() && strides[dim] == 1) {
    std::memcpy(to, from, shape[dim] * itemsize);
    to += shape[dim] * itemsize;
    return;
  }
  for (int i = 0; i < shape[dim]; i++) {
    const char* at = from + i * strides[dim] * static_cast<int64_t>(itemsize);
    copy_strided(at, shape, strides, dim + 1, itemsize, to);
  }
}

} // namespace

mx::array packed(const mx::array& in, mx::cpu::CommandEncoder& encoder) {
  mx::array out(in.shape(), in.dtype(), nullptr, {});
  out.set_data(mx::allocator::malloc(out.nbytes()));
  encoder.add_temporary(out);
  encoder.dispatch([from = in.data<char>(),
                    shape = in.shape(),
                    strides = in.strides(),
                    itemsize = in.itemsize(),
                    to = out.data<char>()]() mutable {
    copy_strided(from, shape, strides, 0, itemsize, to);
  });
  return out;
}

mx::array row_contiguous(const mx::array& in, mx::cpu::CommandEncoder& encoder) {
  return in.flags().row_contiguous || in.size() == 0 ? in : packed(in, encoder);
}

void share_or_allocate(const mx::array& in, mx::array& out) {
  if (in.flags().row_contiguous && in.is_donatable()) {
    out.copy_shared_buffer(in);
  } else {
    out.set_data(mx::allocator::malloc(out.nbytes()));
  }
}

} // namespace pomona
