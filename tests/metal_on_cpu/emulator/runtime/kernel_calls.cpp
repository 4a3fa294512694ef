// What compiled kernels call: see shim/msl/runtime.h.
#include "worker.h"

using metal_emulator::Site;
using metal_emulator::Worker;

extern "C" {

unsigned msl_lane() {
  return Worker::current().thread().lane;
}

unsigned msl_num_lanes() {
  return Worker::current().simdgroup().num_lanes;
}

unsigned long msl_lane_slots() {
  return reinterpret_cast<unsigned long>(Worker::current().simdgroup().current_slots());
}

int msl_meet(unsigned long operation, unsigned line, unsigned long file) {
  return Worker::current().meet_simdgroup(
      {reinterpret_cast<const char*>(operation), reinterpret_cast<const char*>(file), line});
}

void msl_simdgroup_barrier(unsigned memory, unsigned line, unsigned long file) {
  Site site = {"simdgroup_barrier", reinterpret_cast<const char*>(file), line};
  Worker::current().simdgroup_barrier(site, memory != 0);
}

void msl_threadgroup_barrier(unsigned memory, unsigned line, unsigned long file) {
  Site site = {"threadgroup_barrier", reinterpret_cast<const char*>(file), line};
  Worker::current().threadgroup_barrier(site, memory != 0);
}

unsigned long msl_threadgroup_variable(unsigned long key, unsigned long size) {
  return reinterpret_cast<unsigned long>(Worker::current().threadgroup_variable(key, size));
}

void msl_bad_lane(int lane, unsigned line, unsigned long file) {
  Worker::current().fail(
      "value of lane %d read at %s:%u", lane, reinterpret_cast<const char*>(file), line);
}

// float to bfloat, to nearest even. Declared to return float, whose register's low half is the
// result: a function of type __bf16 would be compiled into a call of itself.
__attribute__((weak)) float msl_truncate_to_bfloat(float value) __asm__("__truncsfbf2");

float msl_truncate_to_bfloat(float value) {
  unsigned bits = __builtin_bit_cast(unsigned, value);
  bits = value != value ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return __builtin_bit_cast(float, bits);
}
}
