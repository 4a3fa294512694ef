#define POMONA_INSTRUCTION_SET avx2
#include "cpu/kernels/instruction_set.inc"
