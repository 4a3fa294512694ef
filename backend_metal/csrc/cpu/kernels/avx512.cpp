#define POMONA_INSTRUCTION_SET avx512
#include "cpu/kernels/instruction_set.inc"
