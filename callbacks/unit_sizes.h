#pragma once

#include <levin/core/nn/flop_counter.h>
#include <levin/core/nn/named_units.h>
#include <levin/core/nn/unit_hook.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace torch::nn {
class Module;
}

namespace levin {

/// What a unit was given at a call, and what it gave.
struct UnitSizes {
  using Sizes = std::vector<std::vector<int64_t>>;  ///< of each tensor

  Sizes inputs;
  Sizes outputs;
  std::optional<int64_t> flops = {};  ///< operations of the forward; nothing where they were not counted alone
};

/// Watches the first call of each unit of a module while it lives, on the thread that made it. Units that other threads
/// run (stages of a pipeline, replicas) are not seen, and where there are such no operations are counted.
class UnitSizeRecorder {
 public:
  /// `module`: must outlive it.
  explicit UnitSizeRecorder(torch::nn::Module& module);
  ~UnitSizeRecorder();
  UnitSizeRecorder(const UnitSizeRecorder&) = delete;
  UnitSizeRecorder& operator=(const UnitSizeRecorder&) = delete;

  /// Returns what was seen so far, by the unit's path; a chain (levin::Sequential) has what its members add up to.
  std::map<std::string, UnitSizes> sizes() const;
  /// Returns the operations of this thread since it was made; nothing where other threads ran units.
  std::optional<int64_t> flops() const;

 private:
  class Hook;

  torch::nn::Module& module_;
  const std::thread::id thread_;
  std::atomic<bool> has_other_threads_ = false;
  FlopCounter counter_;
  std::vector<NamedUnit> units_;
  std::vector<std::unique_ptr<Hook>> hooks_;  ///< of `units_`
};

}  // namespace levin
