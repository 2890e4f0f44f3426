#pragma once

#include <levin/core/base/events.h>
#include <levin/core/connectors/set_up_scope.h>
#include <levin/core/data/batch.h>

#include <memory>

namespace levin {

class DataModule;
class Module;

/// A batch to trace a module with.
struct ExampleBatch {
  Batch batch;  ///< on the CPU, as steps get it
  Stage stage;  ///< for which the data module and the module are set up
  std::unique_ptr<SetUpScope> set_up;
};

/// Returns the first batch of the data: that of the prediction loaders, else of test, validation or training. Prepares
/// the data and sets up for each of these stages until there is a batch; a stage without one is torn down. `data`:
/// nullptr where the module has the data hooks. Throws levin::Error where there is none.
ExampleBatch find_example_batch(Module& module, DataModule* data);

}  // namespace levin
