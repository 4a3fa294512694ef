// Metal's standard library for clang's C++ for OpenCL, whose address spaces are Metal's:
// device is __global, constant is __constant, threadgroup is __local, thread is __private.
#pragma once

#include "types.h"
#include "runtime.h"
#include "type_traits.h"
#include "vector.h"
#include "limits.h"
#include "math.h"
#include "integer.h"
#include "barrier.h"
#include "simdgroup.h"
#include "simdgroup_matrix.h"
#include "atomic.h"
#include "kernel_entry.h"
#include "private_builtins.h"
