// Buffer slots and function constants. C++ and Metal read it. Macros, because Metal's attributes
// take literals.
#pragma once

// Attention: decode, prefill, reduce. Scatter has the same slots for what they share.
#define POMONA_BUFFER_PARAMETERS 0
#define POMONA_BUFFER_Q 1
#define POMONA_BUFFER_K 2 // if HAS_NEW_TOKENS
#define POMONA_BUFFER_V 3 // if HAS_NEW_TOKENS
#define POMONA_BUFFER_K_CACHE 4
#define POMONA_BUFFER_V_CACHE 5 // scatter: if TWO_CACHES
#define POMONA_BUFFER_SLOT_MAPPING 6 // if HAS_NEW_TOKENS
#define POMONA_BUFFER_BLOCK_TABLES 7
#define POMONA_BUFFER_SEQ_LENS 8
#define POMONA_BUFFER_CU_SEQLENS_Q 9
#define POMONA_BUFFER_SINKS 10 // if HAS_SINKS
#define POMONA_BUFFER_OUT 11
#define POMONA_BUFFER_PARTIALS 12 // if HAS_PARTIALS

// causal_conv and linear_attention.
#define POMONA_BUFFER_STATES 4
#define POMONA_BUFFER_READ_SLOTS 6
#define POMONA_BUFFER_WRITE_SLOTS 7
#define POMONA_BUFFER_X 1
#define POMONA_BUFFER_WEIGHT 2
#define POMONA_BUFFER_BIAS 3 // the weight once more, if there is none
#define POMONA_BUFFER_GATES 5
#define POMONA_BUFFER_BETAS 8

// rotate_heads. What an option leaves out is q once more.
#define POMONA_BUFFER_POSITIONS 3
#define POMONA_BUFFER_Q_WEIGHT 4
#define POMONA_BUFFER_K_WEIGHT 5
#define POMONA_BUFFER_FREQUENCIES 6
#define POMONA_BUFFER_Q_OUT 7
#define POMONA_BUFFER_K_OUT 8

// Draws: draw_chunks, draw_weights, draw_slices, draw_rows. What is empty is the options once more.
#define POMONA_BUFFER_LOGITS 1
#define POMONA_BUFFER_DRAW_OPTIONS 2
#define POMONA_BUFFER_MASKS 3
#define POMONA_BUFFER_COUNTS 4
#define POMONA_BUFFER_BIAS_IDS 5
#define POMONA_BUFFER_BIASES 6
#define POMONA_BUFFER_BESTS 7
#define POMONA_BUFFER_CANDIDATES 8 // draw_slices, draw_rows
#define POMONA_BUFFER_TALLIES 9

// pack.
#define POMONA_BUFFER_FROM 1
#define POMONA_BUFFER_TO 2

#define POMONA_CONSTANT_BLOCK_SIZE 0 // int: 8, 16 or 32
#define POMONA_CONSTANT_HAS_WINDOW 1
#define POMONA_CONSTANT_HAS_SOFTCAP 2
#define POMONA_CONSTANT_HAS_SINKS 3
#define POMONA_CONSTANT_HAS_NEW_TOKENS 4 // k, v and slot_mapping are given
#define POMONA_CONSTANT_HAS_PARTIALS 5 // some row may have more than one split
#define POMONA_CONSTANT_ALIGNED 6 // rows of K, V and caches start at multiples of 16 bytes
#define POMONA_CONSTANT_TWO_CACHES 7 // not views of one buffer: v_cache is bound, too
#define POMONA_CONSTANT_VALUES_IN_KEYS 8 // prefill: each value is the head of its key, as in MLA
