#include "cuda/csrc/upload_bindings.h"

#include <nanobind/ndarray.h>

#include <stdexcept>

#include "cuda/csrc/upload.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pomona::cuda {

namespace {

using HostArray = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;

mx::Dtype dtype_of(const HostArray& values) {
  if (values.dtype() == nb::dtype<int32_t>()) {
    return mx::int32;
  }
  if (values.dtype() == nb::dtype<uint32_t>()) {
    return mx::uint32;
  }
  throw std::invalid_argument("upload takes arrays of int32 and uint32");
}

} // namespace

void bind_upload(nb::module_& m, mx::Device device) {
  m.def(
      "upload",
      [device](const HostArray& values) {
        mx::Shape shape;
        for (size_t axis = 0; axis < values.ndim(); axis++) {
          shape.push_back(static_cast<mx::ShapeElem>(values.shape(axis)));
        }
        return upload(
            {static_cast<const std::byte*>(values.data()), values.nbytes()},
            std::move(shape),
            dtype_of(values),
            mx::default_stream(device));
      },
      "values"_a);
}

} // namespace pomona::cuda
