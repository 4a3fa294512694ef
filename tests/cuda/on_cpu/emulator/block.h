// One block of a launch: its threads, its shared memory, and where they meet.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

#include "fiber.h"
#include "launch.h"
#include "warpgroup.h"

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
  bool has_waited = false; // for the kernels before
  std::vector<std::vector<Copy>> groups; // the last one is still open
  std::vector<std::vector<Copy>> rows_out; // likewise
  std::vector<std::vector<Product>> products; // likewise
  bool is_fenced = false;
  long meetings = 0;
};

// What arrives at a barrier once its copies are done.
struct Arrival {
  Barrier* barrier;
  std::vector<Copy> copies;
};

// To another block of the cluster, which finds it behind its next meeting.
struct RemoteStore {
  std::array<int, 3> position;
  int meetings; // of the cluster, before
  int64_t offset; // in shared memory
  float value;
};

// A barrier with a number.
struct Meeting {
  int arrived = 0;
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
  // After all blocks.
  void end();

  std::array<int, 3> position;
  int current = 0; // thread
  unsigned char* shared = nullptr;

  const int (&grid() const)[3] {
    return launch_.grid;
  }

  void meet_block();
  void meet_cluster();
  void store_to_block(int rank, float* own, float value);
  const WarpWords& exchange(std::initializer_list<uint64_t> words, const char* operation);
  void wait_for_kernels_before();

  void start_copy(void* to, const void* from, bool present);
  void end_copies();
  void wait_for_copies(int latest);
  void arrive_after_copies(Barrier& barrier);
  void arrive_with_row(Barrier& barrier, void* to, const void* from, int bytes);
  void copy_row_out(void* to, const void* from, int bytes);
  void end_rows_out();
  void wait_for_rows_out(int latest);
  void arrive(Barrier& barrier);
  void wait(Barrier& barrier, int parity);
  void meet_some(int number, int threads, bool waits);
  void fence();
  void start_product(Product product);
  void end_products();
  void wait_for_products(int latest);
  void check_global(const void* address, size_t bytes = 16);
  void check_shared(const void* from, size_t bytes) const;

 private:
  static void enter();
  void yield();
  void wait_until(const std::function<bool()>& condition);
  void complete(const std::vector<Copy>& copies);
  void fail(const std::string& what);

  const Launch& launch_;
  void (*kernel_)(void**);
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<unsigned char> memory_;
  metal_emulator::Fiber caller_;
  std::vector<Arrival> arrivals_;
  std::array<Meeting, 16> numbered_;
  int barrier_arrived_ = 0;
  long barrier_meetings_ = 0;
  long idle_ = 0;
  std::vector<RemoteStore> remote_stores_; // not received yet
  int cluster_meetings_ = 0; // of this block
  std::string failure_;
};

Block& current_block();

void run(const Launch& launch, void (*kernel)(void**));

} // namespace cuda_on_cpu
