#include "cuda/csrc/loaded.h"

namespace pomona::cuda {

namespace {

thread_local const void* loaded = nullptr;

} // namespace

void remember_loaded(const mx::array& ints) {
  loaded = ints.buffer().ptr();
}

void forget_loaded() {
  loaded = nullptr;
}

bool is_loaded(const mx::array& array) {
  return loaded && array.buffer().ptr() == loaded;
}

} // namespace pomona::cuda
