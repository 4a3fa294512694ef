// The contents of a launch's int32 arrays, checked before anything is read or written through them.
#pragma once

#include "cpu/launch/recurrent_arguments.h"

namespace pomona::cpu {

// All raise std::invalid_argument naming the array.
void check_slots(const int32_t* slot_mapping, int num_tokens, int64_t num_slots);
void check_sequences(const AttentionArguments& arguments, int num_tokens, int num_blocks);
void check_states(const StateSlots& slots, int num_tokens, int num_slots);

} // namespace pomona::cpu
