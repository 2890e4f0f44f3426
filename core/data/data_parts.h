#pragma once

#include <levin/core/base/spec.h>
#include <levin/core/data/data_module.h>

#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace levin::data {

/// A data module that is made of others, each with a name. The loaders of evaluation are those of all parts, one behind
/// the other in the order of names.
class DataParts : public DataModule {
 public:
  using Part = std::pair<std::string, std::shared_ptr<DataModule>>;

  /// Throws ConfigError where there are no parts.
  explicit DataParts(std::map<std::string, Spec<DataModule>> parts);

  /// Makes the parts that are given by name; levin::Cli does so with its own registry.
  void make_parts(const Registry<DataModule>& registry);

  void prepare_data() override;
  void setup(Stage stage) override;
  void teardown(Stage stage) override;
  DataLoaders val_dataloader() override;
  DataLoaders test_dataloader() override;
  DataLoaders predict_dataloader() override;
  State state_dict() const override;
  void load_state_dict(const State& state) override;

  /// By name. Throws levin::Error where they were given by name and have not been made.
  const std::vector<Part>& parts() const;

 protected:
  /// Returns the loaders of training of all parts. Throws levin::Error for a part without one.
  std::vector<DataLoader::Part> training_loaders() const;
  /// Of each loader of evaluation that was handed out last, the part that it is of and its number there.
  const std::vector<std::pair<size_t, int64_t>>& evaluated() const { return evaluated_; }

 private:
  /// Tears down the first `count` parts; returns the first error.
  std::exception_ptr tear_down_parts(size_t count, Stage stage);
  DataLoaders loaders_of(DataLoaders (DataModule::*hook)());

  std::map<std::string, Spec<DataModule>> specs_;
  std::vector<Part> parts_;
  std::vector<std::pair<size_t, int64_t>> evaluated_;
};

}  // namespace levin::data
