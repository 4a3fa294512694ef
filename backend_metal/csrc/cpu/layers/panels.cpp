#include "cpu/layers/panels.h"

#include <mlx/allocator.h>
#include <mlx/backend/cpu/encoder.h>

#include <stdexcept>
#include <string>

#include "cpu/gemm/gemm.h"
#include "cpu/arrays/cache_memory.h"
#include "cpu/arrays/contiguous.h"

namespace pomona {

namespace {

void check(bool holds, const char* message) {
  if (!holds) {
    throw std::invalid_argument(message);
  }
}

void check_panels(const mx::array& panels, int num_columns) {
  check(panels.dtype() == mx::float32, "panels must be float32");
  check(
      panels.ndim() == 3 && gemm::Index(panels.shape(2)) == gemm::kPanelColumns,
      "panels must be of 8 columns");
  check(
      num_columns > 0 &&
          gemm::divide_up(num_columns, gemm::kPanelColumns) == gemm::Index(panels.shape(0)),
      "num_columns must be what panels have");
}

void copy_row(const gemm::ColumnPanels& panels, int row, float* out) {
  if (row < -panels.columns || row >= panels.columns) {
    throw std::out_of_range(
        "indices must be in [0, " + std::to_string(int(panels.columns)) + "), not " +
        std::to_string(row));
  }
  const float* from = panels.at(row < 0 ? row + panels.columns : row);
  for (gemm::Index k = 0; k < panels.depth; k++) {
    out[k] = from[k * gemm::kPanelColumns];
  }
}

} // namespace

void PanelProduct::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
  out.set_data(mx::allocator::malloc(out.nbytes()));
  auto& encoder = mx::cpu::get_command_encoder(stream());
  const mx::array x = row_contiguous(inputs[0], encoder);
  const gemm::ColumnPanels panels{
      row_contiguous(inputs[1], encoder).data<float>(), num_columns_, x.shape(-1)};
  const int64_t num_rows = x.size() / panels.depth;
  encoder.dispatch([x = x.data<float>(), panels, num_rows, out = out.data<float>()]() {
    gemm::panel_product(num_rows, x, panels, out);
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
  check(x.dtype() == mx::float32, "x must be float32");
  check_panels(panels, num_columns);
  check(
      x.ndim() > 0 && x.shape(-1) == panels.shape(1) && x.shape(-1) > 0,
      "x must have as many elements a row as panels");
  check(gemm::kernel_name() != nullptr, "this processor has no kernel for products of panels");
  mx::Shape shape = x.shape();
  shape.back() = num_columns;
  return mx::array(
      std::move(shape),
      mx::float32,
      std::make_shared<PanelProduct>(stream, num_columns),
      {x, panels});
}

void PanelRows::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
  out.set_data(mx::allocator::malloc(out.nbytes()));
  auto& encoder = mx::cpu::get_command_encoder(stream());
  const gemm::ColumnPanels panels{
      row_contiguous(inputs[1], encoder).data<float>(), num_rows_, out.shape(-1)};
  encoder.dispatch([indices = row_contiguous(inputs[0], encoder).data<int32_t>(),
                    count = static_cast<int64_t>(inputs[0].size()),
                    panels,
                    out = out.data<float>()]() {
    for (int64_t i = 0; i < count; i++) {
      copy_row(panels, indices[i], out + i * panels.depth);
    }
  });
}

void PanelRows::eval_gpu(const std::vector<mx::array>&, mx::array&) {
  throw std::runtime_error("PanelRows has no GPU kernel");
}

std::vector<mx::Shape> PanelRows::output_shapes(const std::vector<mx::array>& inputs) {
  mx::Shape shape = inputs[0].shape();
  shape.push_back(inputs[1].shape(1));
  return {shape};
}

bool PanelRows::is_equivalent(const mx::Primitive& other) const {
  return num_rows_ == static_cast<const PanelRows&>(other).num_rows_;
}

mx::array panel_rows(
    const mx::array& indices, const mx::array& panels, int num_rows, mx::Stream stream) {
  check(indices.dtype() == mx::int32, "indices must be int32");
  check_panels(panels, num_rows);
  mx::Shape shape = indices.shape();
  shape.push_back(panels.shape(1));
  return mx::array(
      std::move(shape),
      mx::float32,
      std::make_shared<PanelRows>(stream, num_rows),
      {indices, panels});
}

mx::array lay_in_panels(mx::array weight, mx::Stream stream) {
  check(weight.dtype() == mx::float32, "weight must be float32");
  check(weight.ndim() == 2 && weight.size() > 0, "weight must be a matrix");
  weight = mx::contiguous(weight, false, stream);
  weight.eval();
  const int columns = weight.shape(0), depth = weight.shape(1);
  const int panels = static_cast<int>(gemm::divide_up(columns, gemm::kPanelColumns));
  auto out = cpu::zeros({panels, depth, int(gemm::kPanelColumns)}, mx::float32);
  gemm::lay_in_panels(weight.data<float>(), columns, depth, out.data<float>());
  return out;
}

} // namespace pomona
