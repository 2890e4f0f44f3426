#pragma once

#include <levin/core/base/state.h>
#include <levin/core/base/step_scaling.h>
#include <levin/core/optim/group_options.h>
#include <levin/core/optim/has_parameter_states.h>
#include <levin/core/optim/optimizer_capabilities.h>
#include <levin/core/optim/parameter_names.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <torch/optim/optimizer.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace levin::optim {

/// A tensor of state that parameters have.
struct StateField {
  const char* name;
  bool is_number = false;  ///< one float32 on the host; else a tensor of the sizes that `state_sizes` says
};

/// What takes sparse gradients, for messages.
inline constexpr const char* kTakesSparseGradients =
    "sgd without momentum and weight_decay, adagrad without weight_decay, sparse_adam; hint: or make the Embedding "
    "without `sparse`";

/// Gradients that an optimizer takes.
enum class GradientLayouts {
  kDense,
  kDenseOrSparse,  ///< a step with the rows of a sparse gradient is the one with the dense gradient
  kSparse,
};

/// Base of the optimizers over LibTorch's fused kernels (CPU and CUDA), which update all parameters of a group in one
/// call.
///
/// Of a parameter with a sparse gradient the kernel gets the rows that the gradient has, and those of its state.
///
/// Gradients are collected anew in every step and parameters without one are left out; everything else that a kernel
/// needs is kept between steps, so that a step costs what its kernel costs. State has its parameter's type, unless
/// `state_type` says otherwise, and, where it has its shape, its layout.
class FusedOptimizer : public torch::optim::Optimizer, public DeclaresCapabilities, public HasParameterStates {
 public:
  at::Tensor step(LossClosure closure = nullptr) override;
  /// Takes a step in which the kernel unscales the gradients (and leaves them unscaled), or changes nothing where an
  /// infinity was found.
  virtual void fused_step(const StepScaling& scaling = {});

  void zero_grad(bool set_to_none = true) { optim::zero_grad(*this, set_to_none); }

  /// Gradients that a group takes with its options.
  virtual GradientLayouts gradient_layouts(size_t /*group*/) const { return GradientLayouts::kDense; }

  // For steps that are recorded once and done again without this object (`graph`).

  /// Makes later steps read everything that changes from step to step from tensors, on every device: the learning rates
  /// too, which are rounded to float32 on a GPU.
  void make_recordable();
  /// Writes the groups' present learning rates to those tensors; a step that is not recorded does so itself.
  void write_learning_rates();
  /// Whether a step recorded at the time of `since` would still do what a step does now: the same parameters, state and
  /// options, the learning rate excepted.
  struct Snapshot {
    std::vector<const void*> tensors;
    std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options;
  };
  Snapshot snapshot() const;
  bool is_unchanged(const Snapshot& since) const;

  OptimizerCapabilities capabilities() const override {
    return {.element_wise = true, .found_inf = !steps_on_host(), .tensor_learning_rate = takes_learning_rate_tensor()};
  }

  State parameter_states(const ParameterNames& names) const override;
  /// Copies into the state's tensors in place, making those that do not exist yet.
  void load_parameter_states(const ParameterNames& names, const State& states) override;

  /// Throws levin::Error that names `optimizer_state_dict`, since LibTorch's archives key state by address.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 protected:
  static constexpr size_t kMaxStateFields = 3;

  /// The tensors of one group that share device and type, index by index.
  struct TensorLists {
    std::vector<at::Tensor> params;
    std::vector<at::Tensor> grads;
    std::vector<at::Tensor> steps;  ///< empty when `counts_steps()` is false; this step included
    std::array<std::vector<at::Tensor>, kMaxStateFields> states;  ///< in the order of `state_fields`
    at::Tensor learning_rate;  ///< one element on the device; undefined: take that of the group's options
    c10::Device device;
    c10::ScalarType dtype;
    bool first_step;  ///< see `distinguishes_first_step`
  };

  /// Scaling as the kernels take it: absent where there is nothing to do.
  struct KernelScaling {
    std::optional<at::Tensor> grad_scale;
    std::optional<at::Tensor> found_inf;
  };

  /// Throws levin::Error for an empty list, a parameter in two groups, and one that is no leaf, no dense tensor or not
  /// of a floating-point type. A parameter that is twice in one group counts once.
  FusedOptimizer(std::string_view name, std::vector<torch::optim::OptimizerParamGroup> groups,
                 std::unique_ptr<torch::optim::OptimizerOptions> defaults);

  /// Calls the kernel, with `lists.learning_rate` where there is one.
  virtual void update(size_t group, TensorLists& lists, const KernelScaling& scaling) = 0;
  /// State that the options of a group ask for, at most kMaxStateFields.
  virtual std::span<const StateField> state_fields(size_t group) const = 0;
  /// Initial value of a parameter's state in this group.
  virtual double initial_value(size_t group, const StateField& field) const;
  /// Sizes of a field's tensor for a parameter, by default the parameter's own; nothing for one without this field.
  virtual std::optional<std::vector<int64_t>> state_sizes(size_t group, const StateField& field,
                                                          const at::Tensor& param) const;
  /// Type of such a tensor, by default the parameter's.
  virtual c10::ScalarType state_type(size_t group, const StateField& field, const at::Tensor& param) const;
  /// Whether each parameter's steps are counted for the kernel.
  virtual bool counts_steps() const { return true; }
  /// Whether the host counts steps and reads found_inf on every device, for want of a kernel that does.
  virtual bool steps_on_host() const { return false; }
  /// Whether `update` takes the learning rate from `lists.learning_rate` where it is defined.
  virtual bool takes_learning_rate_tensor() const { return false; }
  /// Whether parameters that take their first step go to the kernel apart from the others.
  virtual bool distinguishes_first_step() const { return false; }

 private:
  struct ParamState;

  /// Place of a parameter of a group.
  struct Entry {
    const c10::TensorImpl* param;
    std::ptrdiff_t lists;  ///< index into GroupCache::lists, or -1 for a parameter without a gradient
    size_t index;          ///< in those lists
  };
  struct GroupCache {
    std::vector<Entry> entries;
    std::vector<TensorLists> lists;
    size_t fields = 0;
  };
  /// Learning rate of one group on one device.
  struct LearningRate {
    size_t group;
    c10::Device device;
    double written;
    at::Tensor tensor;
  };

  bool collect_gradients(size_t group);
  void rebuild(size_t group);
  TensorLists& lists_for(GroupCache& cache, const at::Tensor& param, bool first_step);
  ParamState& materialize(size_t group, const at::Tensor& param);
  ParamState* find_state(const at::Tensor& param) const;
  at::Tensor learning_rate_tensor(size_t group, const c10::Device& device);
  void step_lists(size_t group, TensorLists& lists, const StepScaling& scaling);
  void step_rows(size_t group, at::Tensor param, const StepScaling& scaling);
  void release_gradients(size_t group, bool scaled);

  std::string name_;
  std::vector<GroupCache> caches_;
  std::vector<at::Tensor> with_rows_;  ///< parameters of the present group that have sparse gradients
  bool recordable_ = false;
  std::vector<LearningRate> learning_rates_;
};

/// Base of the concrete optimizers: groups of one options type.
template <class OptionsType>
class FusedOptimizerOf : public FusedOptimizer {
 public:
  using Options = OptionsType;
  using Groups = std::vector<ParameterGroup<Options>>;

  const Options& group_options(size_t group) const {
    const auto* typed = dynamic_cast<const GroupOptions<Options>*>(&param_groups_.at(group).options());
    if (typed == nullptr)
      throw Error("optim", "parameter group " + std::to_string(group) +
                               " has options of another optimizer; add groups with levin::optim::GroupOptions");
    return typed->values;
  }

 protected:
  /// `defaults` serve groups that are added later without options.
  FusedOptimizerOf(std::string_view name, Groups groups, const Options& defaults = {})
      : FusedOptimizer(name, convert(name, std::move(groups)), std::make_unique<GroupOptions<Options>>(defaults)) {}

 private:
  static std::vector<torch::optim::OptimizerParamGroup> convert(std::string_view name, Groups groups) {
    std::vector<torch::optim::OptimizerParamGroup> converted;
    for (auto& group : groups) {
      schema_of<Options>().validate(group.options, std::string(name));
      converted.emplace_back(std::move(group.params), std::make_unique<GroupOptions<Options>>(group.options));
    }
    return converted;
  }
};

}  // namespace levin::optim
