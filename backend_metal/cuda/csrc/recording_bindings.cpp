#include "cuda/csrc/recording_bindings.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include "cuda/csrc/recording.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pomona::cuda {

namespace {

using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

mx::Stream stream() {
  return mx::default_stream(mx::Device::gpu);
}

} // namespace

void bind_recording(nb::module_& m) {
  nb::class_<Recording>(m, "Recording")
      .def(
          nb::new_([](mx::array ints, mx::array drawn) {
            return std::make_shared<Recording>(std::move(ints), std::move(drawn));
          }),
          "ints"_a,
          "drawn"_a)
      .def(
          "load",
          [](Recording& self, Ints ints) { self.load({ints.data(), ints.size()}); },
          "ints"_a)
      .def(
          "enter",
          [](Recording& self, const mx::array& newest, bool records) {
            return self.enter(newest, records, stream());
          },
          "newest"_a,
          "records"_a)
      .def(
          "leave",
          [](Recording& self, const mx::array& result, bool records) {
            return self.leave(result, records, stream());
          },
          "result"_a,
          "records"_a)
      .def("abandon", [](Recording& self) { self.abandon(stream()); })
      .def(
          "replay",
          [](Recording& self, const mx::array& newest) { return self.replay(newest, stream()); },
          "newest"_a);
}

} // namespace pomona::cuda
