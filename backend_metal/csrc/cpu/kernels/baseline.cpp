#define POMONA_INSTRUCTION_SET baseline
#include "cpu/kernels/instruction_set.inc"
