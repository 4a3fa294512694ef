// One block of a launch: its threads, its shared memory, and where they meet.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

#include "fiber.h"
#include "launch.h"

namespace cuda_on_cpu {

constexpr int kLanes = 32;
constexpr int kWords = 6; // most that a lane hands to its warp at once

using Words = std::array<uint64_t, kWords>;
using WarpWords = std::array<Words, kLanes>;

struct Copy {
  void* to;
  const void* from;
  bool present;
};

struct Thread {
  metal_emulator::Fiber fiber;
  bool is_done = false;
  std::vector<std::vector<Copy>> groups; // the last one is still open
  long meetings = 0;
};

struct Warp {
  WarpWords words[2]; // of even and of odd meetings
  const char* operation = nullptr;
  int arrived = 0;
  long meetings = 0;
};

class Block {
 public:
  Block(const Launch& launch, void (*kernel)(void**));

  // Runs all threads to their ends. Raises std::runtime_error when lanes of a warp part, a thread
  // misses a barrier or shared memory is overrun.
  void run(std::array<int, 3> position);

  std::array<int, 3> position;
  int current = 0; // thread
  unsigned char* shared = nullptr;

  void meet_block();
  const WarpWords& exchange(std::initializer_list<uint64_t> words, const char* operation);
  void start_copy(void* to, const void* from, bool present);
  void end_copies();
  void wait_for_copies(int latest);
  void check_global(const void* address);
  void check_shared(const void* from, size_t bytes) const;

 private:
  static void enter();
  void yield();
  void fail(const std::string& what);

  const Launch& launch_;
  void (*kernel_)(void**);
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<unsigned char> memory_;
  metal_emulator::Fiber caller_;
  int barrier_arrived_ = 0;
  long barrier_meetings_ = 0;
  long idle_ = 0;
  std::string failure_;
};

Block& current_block();

void run(const Launch& launch, void (*kernel)(void**));

} // namespace cuda_on_cpu
