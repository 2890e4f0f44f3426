#pragma once

#include <cstdint>
#include <memory>

namespace levin {

/// Floating point operations; a multiplication and an addition are two.
struct FlopCount {
  int64_t executed = 0;    ///< by the hardware
  int64_t recomputed = 0;  ///< of them, those with which activation checkpointing computes again what it dropped

  /// Operations that the model needs, however it is computed: model FLOPs as against hardware FLOPs, after Chowdhery et
  /// al., "PaLM", 2022, appendix B.
  int64_t of_model() const { return executed - recomputed; }
};

/// Counts, while it lives, the floating point operations of the operators that its thread runs, and of those that run
/// for it elsewhere under its modes: backward on the threads of autograd, and replicas of `dp`. Other ranks that are
/// threads are not counted. Without one, operators cost what they ever do.
///
/// Counted are matrix products, convolutions and scaled dot product attention, forward and backward, from the shapes of
/// their arguments, as `torch.utils.flop_counter` of PyTorch counts; elementwise operations, reductions and the fused
/// recurrent networks of cuDNN and oneDNN are not. Attention counts in full where it is causal. Other than there,
/// attention on the CPU counts too, and the weight gradient of a grouped convolution counts its own group only.
/// A replayed CUDA graph runs no operators.
class FlopCounter {
 public:
  FlopCounter();
  ~FlopCounter();
  FlopCounter(const FlopCounter&) = delete;
  FlopCounter& operator=(const FlopCounter&) = delete;

  /// Operations since it was made. Destroyed on the thread that made it; several may live on it at a time.
  FlopCount count() const;

 private:
  class Observer;
  std::shared_ptr<Observer> observer_;
  FlopCount before_;
};

}  // namespace levin
