#include "block.h"

namespace cuda_on_cpu {

namespace {

// Where MLX's buffers of the CPU start, which stand for those of a GPU at multiples of 16.
constexpr uintptr_t kBufferStart = 8;
constexpr size_t kCanary = 256;
constexpr size_t kAlignment = 1024; // of shared memory, as a GPU has it
constexpr unsigned char kPoison = 0xff; // NaN in every dtype

thread_local Block* running = nullptr;

} // namespace

Block& current_block() {
  return *running;
}

Block::Block(const Launch& launch, void (*kernel)(void**))
    : launch_(launch),
      kernel_(kernel),
      threads_(launch.threads),
      warps_(launch.threads / kLanes),
      memory_(launch.memory_bytes + kCanary + kAlignment) {
  auto address = reinterpret_cast<uintptr_t>(memory_.data());
  shared = memory_.data() + (kAlignment - address % kAlignment) % kAlignment;
}

void Block::enter() {
  Block& block = current_block();
  block.kernel_(block.launch_.arguments);
  if (!block.threads_[block.current].has_waited) {
    block.fail("a thread ended without waiting for the kernels before");
  }
  const auto& rows_out = block.threads_[block.current].rows_out;
  if (rows_out.size() > 1 || !rows_out.front().empty()) {
    block.fail("a thread ended while its rows were leaving shared memory");
  }
  block.threads_[block.current].is_done = true;
  block.idle_ = 0;
  block.yield();
}

void Block::run(std::array<int, 3> at) {
  position = at;
  std::fill(memory_.begin(), memory_.end(), kPoison);
  barrier_arrived_ = 0;
  numbered_ = {};
  arrivals_.clear();
  idle_ = 0;
  cluster_meetings_ = 0;
  for (auto& warp : warps_) {
    warp.arrived = 0;
  }
  for (auto& thread : threads_) {
    thread.is_done = false;
    thread.has_waited = false;
    thread.groups.assign(1, {});
    thread.rows_out.assign(1, {});
    thread.products.assign(1, {});
    thread.is_fenced = false;
    thread.meetings = 0;
    thread.fiber.prepare(&Block::enter);
  }
  for (auto& warp : warps_) {
    warp.meetings = 0;
  }
  running = this;
  current = launch_.backwards ? launch_.threads - 1 : 0;
  caller_.switch_to(threads_[current].fiber);
  if (!failure_.empty()) {
    throw std::runtime_error(failure_);
  }
  for (size_t i = 0; i < kCanary; i++) {
    if (shared[launch_.memory_bytes + i] != kPoison) {
      throw std::runtime_error("shared memory was overrun");
    }
  }
}

void Block::fail(const std::string& what) {
  failure_ = what + ", by thread " + std::to_string(current);
  threads_[current].fiber.switch_to(caller_);
}

void Block::yield() {
  auto& from = threads_[current].fiber;
  int count = static_cast<int>(threads_.size());
  if (idle_++ > 4 * count) {
    fail("threads wait for others that will not come");
  }
  for (int i = 1; i <= count; i++) {
    int next = (current + (launch_.backwards ? count - i : i)) % count;
    if (!threads_[next].is_done) {
      current = next;
      from.switch_to(threads_[next].fiber);
      return;
    }
  }
  from.switch_to(caller_);
}

void Block::meet_block() {
  long meeting = barrier_meetings_;
  if (++barrier_arrived_ == static_cast<int>(threads_.size())) {
    barrier_arrived_ = 0;
    barrier_meetings_++;
    idle_ = 0;
    return;
  }
  wait_until([&] { return barrier_meetings_ != meeting; });
}

void Block::meet_cluster() {
  meet_block();
  if (current == 0) {
    cluster_meetings_++;
    std::erase_if(remote_stores_, [&](const RemoteStore& store) {
      bool is_due = store.position == position && store.meetings < cluster_meetings_;
      if (is_due) {
        std::memcpy(shared + store.offset, &store.value, sizeof(float));
      }
      return is_due;
    });
  }
  meet_block();
}

void Block::store_to_block(int rank, float* own, float value) {
  int cluster = launch_.cluster;
  auto to = position;
  to[2] = position[2] / cluster * cluster + rank;
  // A block that has run already can't be told anything any more.
  if (rank < 0 || rank >= cluster || to[2] <= position[2] || cluster_meetings_ == 0) {
    fail("stores go to later blocks of the cluster, once all of them are there");
  }
  auto offset = reinterpret_cast<unsigned char*>(own) - shared;
  if (offset < 0 || offset + int64_t(sizeof(float)) > launch_.memory_bytes) {
    fail("stores to another block must lie in its shared memory");
  }
  remote_stores_.push_back({to, cluster_meetings_, offset, value});
}

void Block::end() {
  if (!remote_stores_.empty()) {
    throw std::runtime_error("a block ended without what others stored for it");
  }
}

void Block::wait_until(const std::function<bool()>& condition) {
  while (!condition()) {
    yield();
  }
}

const WarpWords& Block::exchange(std::initializer_list<uint64_t> words, const char* operation) {
  auto& warp = warps_[current / kLanes];
  auto& thread = threads_[current];
  long meeting = thread.meetings++;
  auto& slots = warp.words[meeting % 2];
  std::copy(words.begin(), words.end(), slots[current % kLanes].begin());
  if (warp.arrived == 0) {
    warp.operation = operation;
  } else if (std::strcmp(warp.operation, operation) != 0) {
    fail(std::string(operation) + " meets " + warp.operation);
  }
  if (++warp.arrived == kLanes) {
    warp.arrived = 0;
    warp.meetings++;
    idle_ = 0;
  }
  wait_until([&] { return warp.meetings != meeting; });
  return slots;
}

void Block::check_shared(const void* from, size_t bytes) const {
  auto* first = static_cast<const unsigned char*>(from);
  bool inside = first >= shared && first + bytes <= shared + launch_.memory_bytes;
  if (!inside || (first - shared) % 16) {
    const_cast<Block*>(this)->fail("rows must lie in shared memory, at multiples of 16 bytes");
  }
}

void Block::check_global(const void* address, size_t bytes) {
  if ((reinterpret_cast<uintptr_t>(address) - kBufferStart) % bytes != 0) {
    fail("copies must start at multiples of " + std::to_string(bytes) + " bytes");
  }
}

void Block::wait_for_kernels_before() {
  threads_[current].has_waited = true;
}

void Block::start_copy(void* to, const void* from, bool present) {
  check_shared(to, 16);
  if (present) {
    check_global(from);
  }
  threads_[current].groups.back().push_back({to, from, present});
  threads_[current].is_fenced = false;
}

void Block::end_copies() {
  threads_[current].groups.push_back({});
}

void Block::wait_for_copies(int latest) {
  auto& groups = threads_[current].groups;
  while (static_cast<int>(groups.size()) - 1 > latest) {
    complete(groups.front());
    groups.erase(groups.begin());
  }
}

void Block::complete(const std::vector<Copy>& copies) {
  for (const auto& copy : copies) {
    if (copy.present) {
      std::memcpy(copy.to, copy.from, 16);
    } else {
      std::memset(copy.to, 0, 16);
    }
  }
}

void Block::arrive_after_copies(Barrier& barrier) {
  Arrival arrival{&barrier, {}};
  auto& groups = threads_[current].groups;
  for (const auto& group : groups) {
    arrival.copies.insert(arrival.copies.end(), group.begin(), group.end());
  }
  groups.assign(1, {});
  arrivals_.push_back(std::move(arrival));
}

void Block::arrive_with_row(Barrier& barrier, void* to, const void* from, int bytes) {
  Arrival arrival{&barrier, {}};
  for (int i = 0; i < bytes; i += 16) {
    auto* piece = static_cast<unsigned char*>(to) + i;
    check_shared(piece, 16);
    // What has not left yet is gone.
    std::memset(piece, kPoison, 16);
    check_global(static_cast<const unsigned char*>(from) + i);
    arrival.copies.push_back({piece, static_cast<const unsigned char*>(from) + i, true});
  }
  arrivals_.push_back(std::move(arrival));
}

void Block::copy_row_out(void* to, const void* from, int bytes) {
  for (int i = 0; i < bytes; i += 16) {
    const auto* piece = static_cast<const unsigned char*>(from) + i;
    check_shared(piece, 16);
    check_global(static_cast<unsigned char*>(to) + i);
    threads_[current].rows_out.back().push_back({static_cast<unsigned char*>(to) + i, piece, true});
  }
}

void Block::end_rows_out() {
  threads_[current].rows_out.push_back({});
}

// What has not left before now leaves only then.
void Block::wait_for_rows_out(int latest) {
  auto& groups = threads_[current].rows_out;
  while (static_cast<int>(groups.size()) - 1 > latest) {
    complete(groups.front());
    groups.erase(groups.begin());
  }
}

void Block::arrive(Barrier& barrier) {
  idle_ = 0;
  if (--barrier.pending == 0) {
    barrier.pending = barrier.count;
    barrier.phase++;
  }
}

void Block::wait(Barrier& barrier, int parity) {
  wait_until([&] {
    // Copies end now, and no sooner.
    std::vector<Arrival> others;
    for (auto& arrival : arrivals_) {
      if (arrival.barrier == &barrier) {
        complete(arrival.copies);
        arrive(barrier);
      } else {
        others.push_back(std::move(arrival));
      }
    }
    arrivals_ = std::move(others);
    return int(barrier.phase % 2) != parity;
  });
  threads_[current].is_fenced = false;
}

void Block::meet_some(int number, int threads, bool waits) {
  auto& barrier = numbered_.at(number);
  long meeting = barrier.meetings;
  if (++barrier.arrived == threads) {
    barrier.arrived = 0;
    barrier.meetings++;
    idle_ = 0;
  } else if (waits) {
    wait_until([&] { return barrier.meetings != meeting; });
  }
}

void run(const Launch& launch, void (*kernel)(void**)) {
  try {
    Block block(launch, kernel);
    for (int z = 0; z < launch.grid[2]; z++) {
      for (int y = 0; y < launch.grid[1]; y++) {
        for (int x = 0; x < launch.grid[0]; x++) {
          block.run({x, y, z});
        }
      }
    }
    block.end();
  } catch (const std::exception& error) {
    *launch.failure = error.what();
  }
}

} // namespace cuda_on_cpu
