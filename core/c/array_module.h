#pragma once

#include <levin/core/base/registry.h>
#include <levin/core/base/spec.h>
#include <levin/core/interfaces/module.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace levin {

using Shapes = std::vector<std::vector<int64_t>>;

/// A model that a configuration names, from tensors to tensors.
class NamedModel : public Configurable {
 public:
  virtual const std::shared_ptr<torch::nn::Module>& layers() const = 0;
  virtual std::vector<at::Tensor> forward(const std::vector<at::Tensor>& inputs) = 0;
  /// Returns the shapes of what forward makes of these; nothing where only a forward tells. Throws ArgumentError for
  /// inputs that do not fit.
  virtual std::optional<Shapes> output_shapes(const std::vector<at::Tensor>& inputs) const = 0;
};

/// A loss that a configuration names.
class NamedLoss : public Configurable {
 public:
  /// Layers of the loss that have weights or buffers; nullptr where it has none.
  virtual std::shared_ptr<torch::nn::Module> layers() const { return nullptr; }
  virtual at::Tensor compute(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& targets) = 0;
  /// Throws ArgumentError for targets that do not fit outputs of these shapes.
  virtual void check(const Shapes& outputs, const std::vector<at::Tensor>& targets) const = 0;
};

/// Options of ArrayModule, the section `engine` without its optimizer.
struct ArrayModuleOptions {
  Spec<NamedModel> model = {};
  Spec<NamedLoss> loss = "mse";
  static void describe(Schema<ArrayModuleOptions>& schema);
};

/// A module of a model and a loss that a configuration names, which takes batches of `input0`, ..., `target0`, ... and
/// gives `output0`, ....
class ArrayModule : public Module {
 public:
  using Options = ArrayModuleOptions;
  explicit ArrayModule(const Options& options);

  /// Throws ArgumentError where they do not fit the model and the loss; without targets, the model alone.
  void check(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& targets) const;
  static Batch batch_of(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& targets);
  static std::vector<at::Tensor> outputs_of(const Batch& prediction);

  StepOutput training_step(const Batch& batch, int64_t batch_idx) override;
  StepOutput validation_step(const Batch& batch, int64_t batch_idx) override;
  Batch predict_step(const Batch& batch, int64_t batch_idx) override;

 private:
  std::vector<at::Tensor> tensors(const Batch& batch, const char* name) const;
  at::Tensor loss_of(const Batch& batch);

  std::shared_ptr<NamedModel> model_;
  std::shared_ptr<NamedLoss> loss_;
  at::Tensor first_weight_;  ///< whose type inputs are converted to; undefined where there is none
};

/// The names that `engine.model` and `engine.loss` may have.
const Registry<NamedModel>& named_models();
const Registry<NamedLoss>& named_losses();

}  // namespace levin
