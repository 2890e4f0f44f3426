#pragma once

#include <levin/core/base/events.h>

namespace levin {

class DataModule;
class Module;

/// Has a data module and a module set up, outside of the ranks of a call, and tears them down at its end.
class SetUpScope {
 public:
  /// Calls setup of the data module, unless it is nullptr, and of the module, which outlive the scope. Where one
  /// throws, what was set up is torn down.
  SetUpScope(Module& module, DataModule* data, Stage stage);
  /// Tears down what tear_down has not; what a hook throws is logged.
  ~SetUpScope();
  SetUpScope(const SetUpScope&) = delete;
  SetUpScope& operator=(const SetUpScope&) = delete;

  void tear_down();

 private:
  void tear_down_after_failure();

  DataModule* data_ = nullptr;  ///< nullptr: none is set up
  Module* module_ = nullptr;    ///< likewise
  const Stage stage_;
};

}  // namespace levin
