// Inputs of [tokens, heads, dim] and caches as kernels take them.
#pragma once

#include <mlx/mlx.h>

#include "common/parameters.h"

namespace pomona {

namespace mx = mlx::core;

// Rows that a kernel can read: their last stride is 1.
struct Rows {
  mx::array array; // whose buffer they are in
  int64_t offset; // bytes, from the array's own
  RowStrides strides;
};

// Whether kernels can read an input's rows where they are.
bool has_whole_rows(const mx::array& in);

// Of an input with whole rows.
Rows rows_in_place(const mx::array& in);

CacheStrides cache_strides(const mx::array& cache);

// Every row starts at a multiple of 16 bytes.
bool is_aligned(const Rows& rows);
bool is_aligned(const mx::array& cache);

bool share_buffer(const mx::array& a, const mx::array& b);

// Row for row, `b` lies where `a` does.
bool is_prefix(const Rows& a, const Rows& b);
bool is_prefix(const mx::array& cache, const mx::array& other);

} // namespace pomona
