#include <levin/core/connectors/set_up_scope.h>

#include <levin/core/connectors/error_context.h>
#include <levin/core/data/data_module.h>
#include <levin/core/interfaces/module.h>

#include <utility>

namespace levin {

SetUpScope::SetUpScope(Module& module, DataModule* data, Stage stage) : stage_(stage) {
  if (data != nullptr) data->setup(stage);
  data_ = data;
  try {
    module.setup(stage);
  } catch (...) {
    tear_down_after_failure();
    throw;
  }
  module_ = &module;
}

SetUpScope::~SetUpScope() { tear_down_after_failure(); }

void SetUpScope::tear_down() {
  if (DataModule* const data = std::exchange(data_, nullptr)) data->teardown(stage_);
  if (Module* const module = std::exchange(module_, nullptr)) module->teardown(stage_);
}

void SetUpScope::tear_down_after_failure() {
  while (data_ != nullptr || module_ != nullptr) log_further_error("teardown", [this] { tear_down(); });
}

}  // namespace levin
