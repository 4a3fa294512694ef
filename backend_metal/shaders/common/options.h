// The options that a pipeline is specialized for; csrc/metal/pipelines.cpp names each in its key.
// Other compilers find them before this, as constants of a kernel's text.
#pragma once

#include <metal_stdlib>

#ifdef __METAL_VERSION__
#include "bindings.h"

constant int block_size [[function_constant(POMONA_CONSTANT_BLOCK_SIZE)]];
constant bool has_window [[function_constant(POMONA_CONSTANT_HAS_WINDOW)]];
constant bool has_softcap [[function_constant(POMONA_CONSTANT_HAS_SOFTCAP)]];
constant bool has_sinks [[function_constant(POMONA_CONSTANT_HAS_SINKS)]];
constant bool has_new_tokens [[function_constant(POMONA_CONSTANT_HAS_NEW_TOKENS)]];
constant bool has_partials [[function_constant(POMONA_CONSTANT_HAS_PARTIALS)]];
constant bool aligned [[function_constant(POMONA_CONSTANT_ALIGNED)]];
constant bool two_caches [[function_constant(POMONA_CONSTANT_TWO_CACHES)]];
constant bool values_in_keys [[function_constant(POMONA_CONSTANT_VALUES_IN_KEYS)]];
#endif
