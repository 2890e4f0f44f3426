#pragma once

#include <levin/core/nn/unit_hook.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace levin {

class Unit;

/// Names the unit whose forward runs, while a step is watched, to what records it (set_recording_unit).
class RecordedUnits {
 public:
  /// Finds the units of a module, which must live as long as this.
  explicit RecordedUnits(torch::nn::Module& module);
  ~RecordedUnits();
  RecordedUnits(const RecordedUnits&) = delete;
  RecordedUnits& operator=(const RecordedUnits&) = delete;

  /// Start and stop naming, while no unit runs. The names stay.
  void attach();
  void detach();

 private:
  class Hook;

  std::vector<std::shared_ptr<torch::nn::Module>> submodules_;  ///< a step may exchange one while it is watched
  std::vector<std::pair<Unit*, std::unique_ptr<Hook>>> hooks_;
  bool is_attached_ = false;
};

}  // namespace levin
