// A graph of CUDA's that is recorded once and then launched whole: what a step costs the host is then
// one launch, however many kernels there are.
//
// MLX launches its kernels one by one, on the stream of its encoder, if MLX_USE_CUDA_GRAPHS is 0.
// CUDA records what is launched between `enter` and `leave`. All addresses in it stay as they are:
// the recording holds every buffer that its kernels use, its inputs have buffers of their own, which
// a replay fills, and caches are written where they have always been: on one stream, behind what was
// submitted before and before what is submitted then, so that no array has to say so.
#pragma once

#include <mlx/backend/cuda/device.h>
#include <mlx/mlx.h>
#include <mlx/primitives.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cuda/csrc/staging.h"

namespace pomona::cuda {

namespace mx = mlx::core;

// How often MLX ends a list of commands, which must not be within a recording. `leave` puts back what
// `enter` took away.
struct EncoderLimit {
  int ops = 0;
};

class Recording : public std::enable_shared_from_this<Recording> {
 public:
  // `ints` and `drawn`: int32, one-dimensional, evaluated; their buffers are the inputs'.
  Recording(mx::array ints, mx::array drawn);
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  // What a replay is to begin with: as many as `ints` has. The copy to the device is part of the next
  // replay, or of the next rehearsal.
  void load(std::span<const int32_t> ints);

  // `ints` and `drawn`, from which the graph of arrays between here and `leave` begins. A rehearsal
  // runs, so that all buffers that it needs are there when the next one asks for as many; what is
  // recorded does not. `newest`: what `drawn` is to hold.
  std::vector<mx::array> enter(const mx::array& newest, bool records, mx::Stream stream);
  // The last array of the graph; in a recording its buffer is what replays write.
  mx::array leave(const mx::array& result, bool records, mx::Stream stream);
  // After what failed in between.
  void abandon(mx::Stream stream);

  // The result of what is recorded, valid until the next replay.
  mx::array replay(const mx::array& newest, mx::Stream stream);

  // The rest is for the primitives, when they are evaluated.
  void begin(mx::cu::CommandEncoder& encoder, const mx::array& newest, bool records);
  void end(mx::cu::CommandEncoder& encoder, const mx::array& result, bool records);
  void launch(mx::cu::CommandEncoder& encoder, const mx::array& newest, Staged& loaded);
  const mx::array& ints() const {
    return ints_;
  }
  const mx::array& drawn() const {
    return drawn_;
  }
  const mx::array& result() const {
    return *result_;
  }

 private:
  mx::array ints_;
  mx::array drawn_;
  std::optional<mx::array> result_;
  std::vector<std::shared_ptr<mx::array::Data>> held_;
  std::shared_ptr<Staged> loaded_;
  std::optional<EncoderLimit> limit_; // between `begin` and `end`
  CUgraphExec graph_ = nullptr;
};

} // namespace pomona::cuda
