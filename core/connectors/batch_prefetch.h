#pragma once

#include <levin/core/accelerators/copy_stream.h>
#include <levin/core/data/batch.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace levin {

/// Copies the next batch to the device while the present one computes. Only the raw copy is early: hooks see the batch
/// in its turn, on the host, and what they leave as it was need not be copied then. At most one batch is ahead.
///
/// A change in place is noticed by the tensor's version, which every operation of LibTorch counts up. Code that writes
/// into a tensor through a pointer has to call torch::autograd::impl::bump_version(tensor) itself.
class BatchPrefetch {
 public:
  explicit BatchPrefetch(std::unique_ptr<CopyStream> stream) : stream_(std::move(stream)) {}
  ~BatchPrefetch();
  BatchPrefetch(const BatchPrefetch&) = delete;
  BatchPrefetch& operator=(const BatchPrefetch&) = delete;

  /// Makes one for the device of a rank; nullptr where copies cannot run beside the computation, as on a CPU.
  static std::unique_ptr<BatchPrefetch> for_device(const at::Device& device);

  /// Starts copying those tensors of a batch that can be. Copies of the batch before that nobody took are dropped, and
  /// tensors of their names left out until clear(): a hook replaces them.
  void start(const Batch& next);
  /// Returns the copy of this very tensor if it is unchanged since start(), for the current stream, and only once (the
  /// next call gives the copy of the same tensor at its second place in the batch). Otherwise undefined.
  at::Tensor take(const at::Tensor& host);
  /// Drops all copies, and forgets which were not taken.
  void clear() noexcept;

 private:
  struct Copy {
    std::string name;
    at::Tensor host;  ///< held, so that no other tensor gets its address
    int64_t version;
    const void* data;
    at::Tensor on_device;
  };

  bool can_copy(const Batch::Item& item) const;
  void drop_copies() noexcept;

  std::unique_ptr<CopyStream> stream_;
  std::vector<Copy> copies_;
  std::set<std::string> not_taken_;
  bool out_of_memory_ = false;
};

}  // namespace levin
