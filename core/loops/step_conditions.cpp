#include <levin/core/loops/step_conditions.h>

#include <levin/core/interfaces/module.h>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DefaultDtype.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/distance.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/loss.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/padding.h>
#include <torch/nn/modules/pooling.h>
#include <torch/nn/modules/rnn.h>

#include <algorithm>
#include <tuple>

namespace levin {
namespace {

/// A module's own parameters, without the list that its public functions make.
struct Registered : torch::nn::Module {
  static const auto& parameters_of(const torch::nn::Module& module) { return module.*(&Registered::parameters_); }
};

}  // namespace

size_t gradient_hooks_of(const at::Tensor& tensor) {
  const auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
  if (meta == nullptr) return 0;
  size_t hooks = meta->hooks_.size() + (meta->post_acc_grad_hooks_ != nullptr ? 1 : 0);
  if (meta->cpp_hooks_list_ != nullptr) hooks += meta->cpp_hooks_list_->size();
  if (meta->grad_accumulator_.expired()) return hooks;
  if (const auto accumulator = meta->grad_accumulator_.lock())
    hooks += accumulator->post_hooks().size() + accumulator->pre_hooks().size();
  return hooks;
}

StepConditions::Settings StepConditions::Settings::now() {
  return {.deterministic = at::globalContext().deterministicAlgorithms(),
          .grad_mode = at::GradMode::is_enabled(),
          .anomaly_mode = torch::autograd::AnomalyMode::is_enabled(),
          .autocast = at::autocast::is_autocast_enabled(at::kCPU),
          .threads = at::get_num_threads(),
          .default_type = c10::get_default_dtype_as_scalartype(),
          .thread = std::this_thread::get_id()};
}

StepConditions::StepConditions(const Module& module, const std::vector<OptimizerHandle*>& optimizers)
    : settings_(Settings::now()) {
  for (const OptimizerHandle* handle : optimizers) {
    auto& optimizer = dynamic_cast<optim::FusedOptimizer&>(handle->optimizer());
    optimizers_.emplace_back(&optimizer, optimizer.snapshot());
  }
  const auto held = [](const at::Tensor& tensor) {
    return Held{.tensor = tensor,
                .data = tensor.defined() ? tensor.const_data_ptr() : nullptr,
                .sizes = tensor.defined() ? tensor.sizes().vec() : std::vector<int64_t>(),
                .strides = tensor.defined() ? tensor.strides().vec() : std::vector<int64_t>(),
                .type = tensor.defined() ? tensor.scalar_type() : at::ScalarType::Undefined,
                .requires_grad = tensor.defined() && tensor.requires_grad(),
                .hooks = tensor.defined() ? gradient_hooks_of(tensor) : 0};
  };
  for (const auto& member : module.modules()) {
    Part part{.module = member,
              .training = member->is_training(),
              .children = member->children(),
              .parameters = {},
              .buffers = {}};
    for (const auto& item : Registered::parameters_of(*member)) part.parameters.push_back(held(item.value()));
    for (const auto& buffer : member->buffers(/*recurse=*/false)) part.buffers.push_back(held(buffer));
    for (const auto* held : {&part.parameters, &part.buffers})
      for (const Held& one : *held)
        if (one.tensor.defined() && !one.tensor.is_inference()) versions_.emplace_back(one.tensor, 0);
    parts_.push_back(std::move(part));
    if (const auto* unit = dynamic_cast<const Unit*>(member.get()))
      units_.push_back({.unit = unit, .hooks = unit->hooks(), .runner = unit->runner()});
    note_options(*member);
  }
  note_writes();
}

void StepConditions::note_options(const torch::nn::Module& module) {
  namespace nn = torch::nn;
  const auto note = [this](const auto* found, auto... fields) {
    if (found == nullptr) return;
    const auto add = [&](auto field) {
      const auto now = [found, field]() -> std::optional<double> { return field(found->options); };
      numbers_.push_back({.now = now, .value = now()});
    };
    (add(fields), ...);
  };
  const auto note_each = [&]<class... Modules>(const std::tuple<const Modules*...>& /*of*/, auto... fields) {
    (note(dynamic_cast<const Modules*>(&module), fields...), ...);
  };
  using Option = std::optional<double>;
  const auto alpha = [](const auto& options) -> Option { return options.alpha(); };
  const auto beta = [](const auto& options) -> Option { return options.beta(); };
  const auto dropout = [](const auto& options) -> Option { return options.dropout(); };
  const auto eps = [](const auto& options) -> Option { return options.eps(); };
  const auto lambda = [](const auto& options) -> Option { return options.lambda(); };
  const auto margin = [](const auto& options) -> Option { return options.margin(); };
  const auto momentum = [](const auto& options) -> Option { return options.momentum(); };
  const auto norm_type = [](const auto& options) -> Option { return options.norm_type(); };
  const auto p = [](const auto& options) -> Option { return options.p(); };
  const auto threshold = [](const auto& options) -> Option { return options.threshold(); };
  note_each(std::tuple<const nn::DropoutImpl*, const nn::Dropout2dImpl*, const nn::Dropout3dImpl*,
                       const nn::AlphaDropoutImpl*, const nn::FeatureAlphaDropoutImpl*>(),
            p);
  note_each(
      std::tuple<const nn::RNNImpl*, const nn::LSTMImpl*, const nn::GRUImpl*, const nn::MultiheadAttentionImpl*>(),
      dropout);
  note_each(std::tuple<const nn::BatchNorm1dImpl*, const nn::BatchNorm2dImpl*, const nn::BatchNorm3dImpl*,
                       const nn::InstanceNorm1dImpl*, const nn::InstanceNorm2dImpl*, const nn::InstanceNorm3dImpl*>(),
            momentum, eps);
  note_each(std::tuple<const nn::LayerNormImpl*, const nn::GroupNormImpl*, const nn::CosineSimilarityImpl*,
                       const nn::PoissonNLLLossImpl*>(),
            eps);
  note_each(std::tuple<const nn::LocalResponseNormImpl*, const nn::CrossMapLRN2dImpl*>(), alpha, beta,
            [](const auto& options) -> Option { return options.k(); });
  note_each(std::tuple<const nn::ELUImpl*, const nn::CELUImpl*>(), alpha);
  note_each(std::tuple<const nn::HardshrinkImpl*, const nn::SoftshrinkImpl*>(), lambda);
  note_each(std::tuple<const nn::LeakyReLUImpl*>(),
            [](const auto& options) -> Option { return options.negative_slope(); });
  note_each(std::tuple<const nn::SoftplusImpl*>(), beta, threshold);
  note_each(std::tuple<const nn::ThresholdImpl*>(), threshold,
            [](const auto& options) -> Option { return options.value(); });
  note_each(
      std::tuple<const nn::HardtanhImpl*>(), [](const auto& options) -> Option { return options.min_val(); },
      [](const auto& options) -> Option { return options.max_val(); });
  note_each(std::tuple<const nn::PairwiseDistanceImpl*>(), p, eps);
  note_each(std::tuple<const nn::SmoothL1LossImpl*>(), beta);
  note_each(std::tuple<const nn::HuberLossImpl*>(), [](const auto& options) -> Option { return options.delta(); });
  note_each(std::tuple<const nn::CrossEntropyLossImpl*>(),
            [](const auto& options) -> Option { return options.label_smoothing(); });
  note_each(std::tuple<const nn::CrossEntropyLossImpl*, const nn::NLLLossImpl*>(),
            [](const auto& options) -> Option { return options.ignore_index(); });
  note_each(std::tuple<const nn::HingeEmbeddingLossImpl*, const nn::CosineEmbeddingLossImpl*,
                       const nn::MarginRankingLossImpl*>(),
            margin);
  note_each(std::tuple<const nn::MultiMarginLossImpl*>(), p, margin);
  note_each(std::tuple<const nn::TripletMarginLossImpl*>(), p, margin, eps);
  note_each(std::tuple<const nn::LPPool1dImpl*, const nn::LPPool2dImpl*>(), norm_type);
  note_each(
      std::tuple<const nn::EmbeddingImpl*, const nn::EmbeddingBagImpl*>(), norm_type,
      [](const auto& options) -> Option { return options.max_norm(); },
      [](const auto& options) -> Option { return options.padding_idx(); });
  note_each(std::tuple<const nn::ConstantPad1dImpl*, const nn::ConstantPad2dImpl*, const nn::ConstantPad3dImpl*>(),
            [](const auto& options) -> Option { return options.value(); });
  note_each(std::tuple<const nn::SoftmaxImpl*, const nn::SoftminImpl*, const nn::LogSoftmaxImpl*, const nn::GLUImpl*>(),
            [](const auto& options) -> Option { return options.dim(); });
}

void StepConditions::note_writes() {
  for (auto& [tensor, version] : versions_) version = tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

bool StepConditions::were_written() const {
  return std::any_of(versions_.begin(), versions_.end(), [](const auto& noted) {
    return noted.first.unsafeGetTensorImpl()->version_counter().current_version() != noted.second;
  });
}

bool StepConditions::Held::is(const at::Tensor& now, bool flags) const {
  if (!now.is_same(tensor)) return false;
  return !tensor.defined() || (tensor.const_data_ptr() == data && (!flags || tensor.requires_grad() == requires_grad) &&
                               tensor.sizes() == sizes && tensor.strides() == strides && tensor.scalar_type() == type);
}

bool StepConditions::Held::has_its_hooks() const { return !tensor.defined() || gradient_hooks_of(tensor) == hooks; }

bool StepConditions::same_tensors(bool flags) const {
  return std::all_of(parts_.begin(), parts_.end(), [flags](const Part& part) {
    const auto& parameters = Registered::parameters_of(*part.module);
    if (!std::equal(part.parameters.begin(), part.parameters.end(), parameters.begin(), parameters.end(),
                    [&](const Held& before, const auto& now) { return before.is(now.value(), flags); }))
      return false;
    // Listing buffers costs an allocation.
    if (part.buffers.empty()) return true;
    const auto buffers = part.module->buffers(/*recurse=*/false);
    return std::equal(part.buffers.begin(), part.buffers.end(), buffers.begin(), buffers.end(),
                      [&](const Held& before, const at::Tensor& now) { return before.is(now, flags); });
  });
}

bool StepConditions::same_optimizers() const {
  return std::all_of(optimizers_.begin(), optimizers_.end(),
                     [](const auto& one) { return one.first->is_unchanged(one.second); });
}

const char* StepConditions::changed_inside(const Looks& looks) const {
  if (!same_tensors(looks.flags)) return "parameters or buffers";
  return looks.optimizers && !same_optimizers() ? "the optimizer's parameters, state or options" : nullptr;
}

const char* StepConditions::changed() const {
  if (!same_tensors(/*flags=*/true)) return "parameters or buffers";
  for (const Part& part : parts_) {
    if (!part.children.empty() && part.children != part.module->children()) return "a submodule";
    if (!std::all_of(part.parameters.begin(), part.parameters.end(),
                     [](const Held& held) { return held.has_its_hooks(); }))
      return "a hook of a parameter";
    if (part.module->is_training() != part.training) return "the training mode of a part";
  }
  if (!same_optimizers()) return "the optimizer's parameters, state or options";
  for (const AttachedUnit& attached : units_)
    if (attached.unit->hooks() != attached.hooks || attached.unit->runner() != attached.runner)
      return "a hook of a unit";
  for (const Number& number : numbers_)
    if (number.now() != number.value) return "a number in the options of a module";
  if (!(Settings::now() == settings_))
    return "a setting of LibTorch (threads, deterministic, anomaly, default type) or the calling thread";
  return nullptr;
}

}  // namespace levin
