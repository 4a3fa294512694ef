#include "cuda/csrc/recording.h"

#include <mlx/backend/cuda/utils.h>

#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "cuda/csrc/copy_staged.h"
#include "cuda/csrc/errors.h"
#include "cuda/csrc/launch.h"
#include "cuda/csrc/loaded.h"
#include "cuda/csrc/overlap.h"

namespace pomona::cuda {

namespace {

using Arrays = std::vector<mx::array>;

// MLX's encoder keeps to itself what a recording has to know: the buffers that its commands use, and
// after how many commands it hands them over. The language lets an explicit instantiation name both.
template <typename Tag, typename Tag::Member member>
struct Opened {
  friend constexpr typename Tag::Member open(Tag) {
    return member;
  }
};

struct Buffers {
  using Member = std::vector<std::shared_ptr<mx::array::Data>> mx::cu::CommandEncoder::*;
  friend constexpr Member open(Buffers);
};
template struct Opened<Buffers, &mx::cu::CommandEncoder::temporaries_>;

struct MaxOps {
  using Member = int mx::cu::CommandEncoder::*;
  friend constexpr Member open(MaxOps);
};
template struct Opened<MaxOps, &mx::cu::CommandEncoder::max_ops_per_graph_>;

// Memory that was taken within a recording that failed is no memory outside: never given back.
void leak(std::vector<std::shared_ptr<mx::array::Data>> buffers) {
  new std::vector(std::move(buffers));
}

// A recording that allocates would hand out memory that is there within its launches alone.
void check_memory(CUgraph graph) {
  size_t count = 0;
  check(cuGraphGetNodes(graph, nullptr, &count), "cuGraphGetNodes");
  std::vector<CUgraphNode> nodes(count);
  check(cuGraphGetNodes(graph, nodes.data(), &count), "cuGraphGetNodes");
  size_t num_allocations = 0;
  size_t bytes = 0;
  for (auto node : nodes) {
    CUgraphNodeType type;
    check(cuGraphNodeGetType(node, &type), "cuGraphNodeGetType");
    if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
      CUDA_MEM_ALLOC_NODE_PARAMS params;
      check(cuGraphMemAllocNodeGetParams(node, &params), "cuGraphMemAllocNodeGetParams");
      num_allocations += 1;
      bytes += params.bytesize;
    }
  }
  if (num_allocations > 0) {
    throw std::runtime_error(
        "a step could not be recorded: it takes " + std::to_string(bytes) + " bytes in " +
        std::to_string(num_allocations) + " pieces that its rehearsal did not leave");
  }
}

// What they have in common: the host's side is a call of the recording.
class RecordingPrimitive : public mx::Primitive {
 public:
  RecordingPrimitive(mx::Stream stream, std::shared_ptr<Recording> recording)
      : mx::Primitive(stream), recording_(std::move(recording)) {}

  void eval_cpu(const Arrays&, Arrays&) override {
    throw std::runtime_error("a recording needs a stream of the GPU");
  }

 protected:
  mx::cu::CommandEncoder& encoder() {
    return mx::cu::get_command_encoder(stream());
  }
  std::shared_ptr<Recording> recording_;
};

// Inputs: ints, drawn, newest. Outputs: ints, drawn.
class Enter : public RecordingPrimitive {
 public:
  Enter(mx::Stream stream, std::shared_ptr<Recording> recording, bool records)
      : RecordingPrimitive(stream, std::move(recording)), records_(records) {}

  void eval_gpu(const Arrays& inputs, Arrays& outputs) override {
    outputs[0].copy_shared_buffer(inputs[0]);
    outputs[1].copy_shared_buffer(inputs[1]);
    recording_->begin(encoder(), inputs[2], records_);
  }
  DEFINE_NAME(EnterRecording)

 private:
  bool records_;
};

// Input: result. Output: the same.
class Leave : public RecordingPrimitive {
 public:
  Leave(mx::Stream stream, std::shared_ptr<Recording> recording, bool records)
      : RecordingPrimitive(stream, std::move(recording)), records_(records) {}

  void eval_gpu(const Arrays& inputs, Arrays& outputs) override {
    outputs[0].copy_shared_buffer(inputs[0]);
    recording_->end(encoder(), outputs[0], records_);
  }
  DEFINE_NAME(LeaveRecording)

 private:
  bool records_;
};

// Input: newest. Output: result.
class Replay : public RecordingPrimitive {
 public:
  Replay(mx::Stream stream, std::shared_ptr<Recording> recording, std::shared_ptr<Staged> loaded)
      : RecordingPrimitive(stream, std::move(recording)), loaded_(std::move(loaded)) {}

  void eval_gpu(const Arrays& inputs, Arrays& outputs) override {
    outputs[0].copy_shared_buffer(recording_->result());
    recording_->launch(encoder(), inputs[0], *loaded_);
    // Kernels of a recording that is dropped may still run.
    encoder().add_completed_handler([recording = recording_]() {});
  }
  DEFINE_NAME(ReplayRecording)

 private:
  std::shared_ptr<Staged> loaded_;
};

} // namespace

Recording::Recording(mx::array ints, mx::array drawn)
    : ints_(std::move(ints)), drawn_(std::move(drawn)) {}

Recording::~Recording() {
  if (graph_) {
    cuGraphExecDestroy(graph_);
  }
}

void Recording::load(std::span<const int32_t> ints) {
  if (ints.size() != ints_.size()) {
    throw std::invalid_argument(
        "a recording of " + std::to_string(ints_.size()) + " integers was given " +
        std::to_string(ints.size()));
  }
  loaded_ = Staged::copy_of(std::as_bytes(ints));
}

Arrays Recording::enter(const mx::array& newest, bool records, mx::Stream stream) {
  return mx::array::make_arrays(
      {ints_.shape(), drawn_.shape()},
      {mx::int32, mx::int32},
      std::make_shared<Enter>(stream, shared_from_this(), records),
      {ints_, drawn_, newest});
}

mx::array Recording::leave(const mx::array& result, bool records, mx::Stream stream) {
  return mx::array(
      result.shape(),
      result.dtype(),
      std::make_shared<Leave>(stream, shared_from_this(), records),
      {result});
}

void Recording::abandon(mx::Stream stream) {
  if (!limit_) {
    return;
  }
  forget_loaded();
  auto& encoder = mx::cu::get_command_encoder(stream);
  encoder.*open(MaxOps{}) = limit_->ops;
  limit_.reset();
  CUstreamCaptureStatus status;
  check(cuStreamIsCapturing(stream_of(encoder), &status), "cuStreamIsCapturing");
  if (status == CU_STREAM_CAPTURE_STATUS_NONE) {
    return;
  }
  leak(encoder.*open(Buffers{}));
  CUgraph graph = nullptr;
  cuStreamEndCapture(stream_of(encoder), &graph);
  if (graph) {
    cuGraphDestroy(graph);
  }
}

mx::array Recording::replay(const mx::array& newest, mx::Stream stream) {
  if (!graph_) {
    throw std::logic_error("nothing is recorded");
  }
  return mx::array(
      result_->shape(),
      result_->dtype(),
      std::make_shared<Replay>(stream, shared_from_this(), loaded_),
      {newest});
}

void Recording::begin(mx::cu::CommandEncoder& encoder, const mx::array& newest, bool records) {
  encoder.commit();
  // Where a graph that was to be rehearsed is not ended, the next one begins with what it took away.
  auto ops = std::exchange(encoder.*open(MaxOps{}), std::numeric_limits<int>::max());
  if (!limit_) {
    limit_ = EncoderLimit{ops};
  }
  remember_loaded(ints_);
  if (records) {
    check(
        cuStreamBeginCapture(stream_of(encoder), CU_STREAM_CAPTURE_MODE_RELAXED),
        "cuStreamBeginCapture");
    return;
  }
  copy_staged(encoder, *loaded_, ints_, newest, drawn_);
}

void Recording::end(mx::cu::CommandEncoder& encoder, const mx::array& result, bool records) {
  forget_loaded();
  encoder.*open(MaxOps{}) = limit_->ops;
  limit_.reset();
  if (!records) {
    return;
  }
  held_ = encoder.*open(Buffers{});
  held_.push_back(result.data_shared_ptr());
  CUgraph graph = nullptr;
  check(cuStreamEndCapture(stream_of(encoder), &graph), "cuStreamEndCapture");
  try {
    check_memory(graph);
    overlap_kernels(graph);
    check(cuGraphInstantiateWithFlags(&graph_, graph, 0), "cuGraphInstantiateWithFlags");
  } catch (...) {
    cuGraphDestroy(graph);
    leak(std::move(held_));
    throw;
  }
  check(cuGraphDestroy(graph), "cuGraphDestroy");
  result_ = result;
}

void Recording::launch(mx::cu::CommandEncoder& encoder, const mx::array& newest, Staged& loaded) {
  copy_staged(encoder, loaded, ints_, newest, drawn_);
  check(cuGraphLaunch(graph_, stream_of(encoder)), "cuGraphLaunch");
}

} // namespace pomona::cuda
