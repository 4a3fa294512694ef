#include "cpu/layers/panels.h"

#include <mlx/allocator.h>
#include <mlx/backend/cpu/encoder.h>

#include <stdexcept>

#include "blas/products.h"
#include "cpu/cache_memory.h"
#include "cpu/contiguous.h"

namespace pomona {

namespace {

void check(bool holds, const char* message) {
  if (!holds) {
    throw std::invalid_argument(message);
  }
}

} // namespace

void PanelProduct::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
  out.set_data(mx::allocator::malloc(out.nbytes()));
  auto& encoder = mx::cpu::get_command_encoder(stream());
  const mx::array x = row_contiguous(inputs[0], encoder);
  const blas::ColumnPanels panels{
      row_contiguous(inputs[1], encoder).data<float>(), num_columns_, x.shape(-1)};
  const int64_t num_rows = x.size() / panels.depth;
  encoder.dispatch([x = x.data<float>(), panels, num_rows, out = out.data<float>()]() {
    blas::panel_product(num_rows, x, panels, out);
  });
}

void PanelProduct::eval_gpu(const std::vector<mx::array>&, mx::array&) {
  throw std::runtime_error("PanelProduct has no GPU kernel");
}

std::vector<mx::Shape> PanelProduct::output_shapes(const std::vector<mx::array>& inputs) {
  mx::Shape shape = inputs[0].shape();
  shape.back() = num_columns_;
  return {shape};
}

bool PanelProduct::is_equivalent(const mx::Primitive& other) const {
  return num_columns_ == static_cast<const PanelProduct&>(other).num_columns_;
}

mx::array panel_product(
    const mx::array& x, const mx::array& panels, int num_columns, mx::Stream stream) {
  check(x.dtype() == mx::float32 && panels.dtype() == mx::float32, "x and panels must be float32");
  check(panels.ndim() == 3 && blas::Index(panels.shape(2)) == blas::kPanelColumns, "panels must be of 8 columns");
  check(
      x.ndim() > 0 && x.shape(-1) == panels.shape(1) && x.shape(-1) > 0,
      "x must have as many elements a row as panels");
  check(
      num_columns > 0 &&
          blas::divide_up(num_columns, blas::kPanelColumns) == blas::Index(panels.shape(0)),
      "num_columns must be what panels have");
  check(blas::kernel_name() != nullptr, "this processor has no kernel for products of panels");
  mx::Shape shape = x.shape();
  shape.back() = num_columns;
  return mx::array(
      std::move(shape),
      mx::float32,
      std::make_shared<PanelProduct>(stream, num_columns),
      {x, panels});
}

mx::array lay_in_panels(mx::array weight, mx::Stream stream) {
  check(weight.dtype() == mx::float32, "weight must be float32");
  check(weight.ndim() == 2 && weight.size() > 0, "weight must be a matrix");
  weight = mx::contiguous(weight, false, stream);
  weight.eval();
  const int columns = weight.shape(0), depth = weight.shape(1);
  const int panels = static_cast<int>(blas::divide_up(columns, blas::kPanelColumns));
  auto out = cpu::zeros({panels, depth, int(blas::kPanelColumns)}, mx::float32);
  blas::lay_in_panels(weight.data<float>(), columns, depth, out.data<float>());
  return out;
}

} // namespace pomona
