#include <levin/core/c/array_module.h>

#include <levin/core/c/array_view.h>
#include <levin/core/nn/functional.h>
#include <levin/core/nn/script_module.h>
#include <levin/core/nn/sequential.h>

#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/huber_loss.h>
#include <ATen/ops/l1_loss.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/smooth_l1_loss.h>
#include <ATen/ops/tanh.h>
#include <fmt/format.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <utility>

namespace levin {
namespace {

// ---- Models.

enum class MlpActivation { kRelu, kTanh, kGelu, kSilu, kSigmoid };

struct NamedMlpOptions {
  std::vector<int64_t> layers = {};
  MlpActivation activation = MlpActivation::kRelu;
  double dropout = 0;
  bool bias = true;

  static void describe(Schema<NamedMlpOptions>& schema) {
    schema.field("layers", &NamedMlpOptions::layers,
                 "features of the input, of each hidden layer and of the output; required");
    schema.field("activation", &NamedMlpOptions::activation, "function between the layers",
                 {{"relu", MlpActivation::kRelu},
                  {"tanh", MlpActivation::kTanh},
                  {"gelu", MlpActivation::kGelu},
                  {"silu", MlpActivation::kSilu},
                  {"sigmoid", MlpActivation::kSigmoid}});
    schema.field("dropout", &NamedMlpOptions::dropout, "probability that a hidden feature is left out in training")
        .at_least(0)
        .below(1);
    schema.field("bias", &NamedMlpOptions::bias, "layers add a bias");
  }
};

at::Tensor activate_mlp(const at::Tensor& x, MlpActivation activation) {
  switch (activation) {
    case MlpActivation::kTanh:
      return at::tanh(x);
    case MlpActivation::kGelu:
      return at::gelu(x);
    case MlpActivation::kSilu:
      return at::silu(x);
    case MlpActivation::kSigmoid:
      return at::sigmoid(x);
    default:
      return at::relu(x);
  }
}

/// Linear layers with an activation between them, on [examples, ..., features].
class NamedMlp final : public NamedModel {
 public:
  using Options = NamedMlpOptions;
  explicit NamedMlp(const Options& options) {
    if (options.layers.size() < 2)
      throw ConfigError(
          fmt::format("engine.model.layers has the features of the input, of each hidden layer and of the output; got "
                      "{}; valid: [4, 64, 1]",
                      counted(std::ssize(options.layers), "number")));
    for (const int64_t features : options.layers)
      if (features < 1) throw ConfigError(fmt::format("engine.model.layers must be at least 1 each; got {}", features));
    for (size_t i = 0; i + 1 < options.layers.size(); ++i) {
      if (i > 0) {
        chain_->push_back(
            [activation = options.activation](const at::Tensor& x) { return activate_mlp(x, activation); });
        if (options.dropout > 0) chain_->push_back(torch::nn::Dropout(options.dropout));
      }
      chain_->push_back(
          torch::nn::Linear(torch::nn::LinearOptions(options.layers[i], options.layers[i + 1]).bias(options.bias)));
    }
    features_in_ = options.layers.front();
    features_out_ = options.layers.back();
    layers_ = chain_.ptr();
  }

  const std::shared_ptr<torch::nn::Module>& layers() const override { return layers_; }
  std::vector<at::Tensor> forward(const std::vector<at::Tensor>& inputs) override {
    return {chain_->forward(inputs.front())};
  }

  std::optional<Shapes> output_shapes(const std::vector<at::Tensor>& inputs) const override {
    if (inputs.size() != 1)
      throw ArgumentError(fmt::format("num_inputs is {}, but the model mlp takes 1 array", inputs.size()));
    const at::Tensor& input = inputs.front();
    if (input.dim() < 2 || input.size(-1) != features_in_)
      throw ArgumentError(fmt::format("inputs[0].shape does not fit the model mlp; got {}; valid: [examples, {}]",
                                      describe_shape(input.sizes()), features_in_));
    if (!input.is_floating_point())
      throw ArgumentError("inputs[0].dtype is that of integers; valid: LEVIN_FLOAT32, LEVIN_FLOAT64");
    std::vector<int64_t> shape = input.sizes().vec();
    shape.back() = features_out_;
    return Shapes{std::move(shape)};
  }

 private:
  Sequential chain_;
  std::shared_ptr<torch::nn::Module> layers_;
  int64_t features_in_ = 0;
  int64_t features_out_ = 0;
};

struct NamedFileOptions {
  std::string file = {};
  static void describe(Schema<NamedFileOptions>& schema) {
    schema.field("file", &NamedFileOptions::file, "path of a TorchScript file; required");
  }
};

ScriptModule read_named_script(const NamedFileOptions& options, const char* path) {
  if (options.file.empty()) throw ConfigError(fmt::format("{} needs `file`, the path of a TorchScript file", path));
  try {
    return ScriptModule(options.file);
  } catch (const Error& error) {
    throw ConfigError(fmt::format("{}.file: {}", path, error.what()));
  }
}

/// A TorchScript file, which takes and gives any number of tensors.
class NamedScript final : public NamedModel {
 public:
  using Options = NamedFileOptions;
  explicit NamedScript(const Options& options)
      : script_(read_named_script(options, "engine.model")), layers_(script_.ptr()) {}

  const std::shared_ptr<torch::nn::Module>& layers() const override { return layers_; }
  std::vector<at::Tensor> forward(const std::vector<at::Tensor>& inputs) override {
    return script_->forward_all(inputs);
  }
  std::optional<Shapes> output_shapes(const std::vector<at::Tensor>& /*inputs*/) const override { return std::nullopt; }

 private:
  ScriptModule script_;
  std::shared_ptr<torch::nn::Module> layers_;
};

// ---- Losses.

Shapes shapes_of(const std::vector<at::Tensor>& tensors) {
  Shapes shapes;
  for (const at::Tensor& tensor : tensors) shapes.push_back(tensor.sizes().vec());
  return shapes;
}

/// A mean over the elements of one output and a target of the same shape.
class ElementLoss : public NamedLoss {
 public:
  at::Tensor compute(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& targets) final {
    check(shapes_of(outputs), targets);
    return compute_one(outputs.front(), targets.front());
  }
  void check(const Shapes& outputs, const std::vector<at::Tensor>& targets) const final {
    if (outputs.size() != 1 || targets.size() != 1)
      throw ArgumentError(
          fmt::format("engine.loss compares 1 output with 1 target; got {} and {}; valid: the loss "
                      "torchscript for several",
                      counted(std::ssize(outputs), "output"), counted(std::ssize(targets), "target")));
    check_one(outputs.front(), targets.front());
  }

 private:
  virtual at::Tensor compute_one(const at::Tensor& output, const at::Tensor& target) const = 0;
  virtual void check_one(const std::vector<int64_t>& output, const at::Tensor& target) const {
    // A target that is only broadcast to the output's shape would be trained on without a word.
    if (target.sizes() != at::IntArrayRef(output))
      throw ArgumentError(fmt::format("targets[0].shape differs from that of the output; got {}; valid: {}",
                                      describe_shape(target.sizes()), describe_shape(output)));
    if (!target.is_floating_point())
      throw ArgumentError("targets[0].dtype is that of integers; valid: LEVIN_FLOAT32, LEVIN_FLOAT64");
  }
};

template <at::Tensor (*kLoss)(const at::Tensor&, const at::Tensor&)>
class PlainLoss final : public ElementLoss {
  at::Tensor compute_one(const at::Tensor& output, const at::Tensor& target) const override {
    return kLoss(output, target);
  }
};

at::Tensor mean_squared(const at::Tensor& output, const at::Tensor& target) { return at::mse_loss(output, target); }
at::Tensor mean_absolute(const at::Tensor& output, const at::Tensor& target) { return at::l1_loss(output, target); }
at::Tensor binary_logits(const at::Tensor& output, const at::Tensor& target) {
  return at::binary_cross_entropy_with_logits(output, target);
}

struct NamedWidthOptions {
  double width = 1;
  static void describe(Schema<NamedWidthOptions>& schema) {
    schema.field("width", &NamedWidthOptions::width, "error up to which the loss is quadratic").above(0);
  }
};

/// `kIsHuber`: Huber's, else smooth L1, which is it over the width.
template <bool kIsHuber>
class WidthLoss final : public ElementLoss {
 public:
  using Options = NamedWidthOptions;
  explicit WidthLoss(const Options& options) : width_(options.width) {}

 private:
  at::Tensor compute_one(const at::Tensor& output, const at::Tensor& target) const override {
    return kIsHuber ? at::huber_loss(output, target, at::Reduction::Mean, width_)
                    : at::smooth_l1_loss(output, target, at::Reduction::Mean, width_);
  }
  const double width_;
};

/// Rows of logits against the number of a class each.
class ClassLoss final : public ElementLoss {
  at::Tensor compute_one(const at::Tensor& output, const at::Tensor& target) const override {
    return nn::functional::cross_entropy(output, target.to(at::kLong));
  }
  void check_one(const std::vector<int64_t>& output, const at::Tensor& target) const override {
    if (output.size() != 2)
      throw ArgumentError(
          fmt::format("the loss cross_entropy takes rows of logits; got an output of {}; valid: "
                      "[examples, classes]",
                      describe_shape(output)));
    if (target.dim() != 1 || target.size(0) != output.front())
      throw ArgumentError(fmt::format("targets[0].shape is not a class for each example; got {}; valid: [{}]",
                                      describe_shape(target.sizes()), output.front()));
    if (target.is_floating_point())
      throw ArgumentError("targets[0].dtype is floating; valid for classes: LEVIN_INT32, LEVIN_INT64");
    // As PyTorch's ignore_index, -100 counts for none.
    const at::Tensor is_other = target.lt(0).logical_or(target.ge(output.back())).logical_and(target.ne(-100));
    if (is_other.any().item<bool>())
      throw ArgumentError(
          fmt::format("targets[0] has a class that is none of the output's; got {} to {}; valid: 0 to {}, "
                      "and -100 for examples that do not count",
                      target.min().item<int64_t>(), target.max().item<int64_t>(), output.back() - 1));
  }
};

/// A TorchScript file that gets all outputs and then all targets, and gives a scalar.
class ScriptLoss final : public NamedLoss {
 public:
  using Options = NamedFileOptions;
  explicit ScriptLoss(const Options& options) : script_(read_named_script(options, "engine.loss")) {}

  std::shared_ptr<torch::nn::Module> layers() const override { return script_.ptr(); }
  at::Tensor compute(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& targets) override {
    std::vector<at::Tensor> all = outputs;
    all.insert(all.end(), targets.begin(), targets.end());
    const std::vector<at::Tensor> losses = script_->forward_all(all);
    if (losses.size() != 1) throw Error("c", fmt::format("engine.loss.file gives {} tensors; valid: 1", losses.size()));
    return losses.front();
  }
  void check(const Shapes& /*outputs*/, const std::vector<at::Tensor>& /*targets*/) const override {}

 private:
  ScriptModule script_;
};

/// `{torchscript: FILE}` beside `{name: torchscript, file: FILE}`.
template <class Base>
std::shared_ptr<Base> make_part(const Spec<Base>& spec, const Registry<Base>& registry, const std::string& path) {
  const Config given = spec.config();
  if (given.is_null()) throw ConfigError(fmt::format("{} is missing; valid: {}", path, join(registry.names())));
  const Config* file = given.is_mapping() && given.entries().size() == 1 ? given.find("torchscript") : nullptr;
  if (file == nullptr || !file->is_scalar()) return spec.resolve(registry, path);
  Config options = Config::mapping(file->origin());
  options.set("file", *file, file->origin());
  return registry.make("torchscript", options, path, given.origin());
}

}  // namespace

const Registry<NamedModel>& named_models() {
  static const Registry<NamedModel> models = [] {
    Registry<NamedModel> made("model");
    made.add<NamedMlp>("mlp", "linear layers with an activation between them");
    made.add<NamedScript>("torchscript", "a TorchScript file");
    return made;
  }();
  return models;
}

const Registry<NamedLoss>& named_losses() {
  static const Registry<NamedLoss> losses = [] {
    Registry<NamedLoss> made("loss");
    made.add<PlainLoss<mean_squared>>("mse", "mean of the squared errors");
    made.add<PlainLoss<mean_absolute>>("l1", "mean of the absolute errors");
    made.add<WidthLoss<false>>("smooth_l1", "absolute errors, quadratic near 0, over the width");
    made.add<WidthLoss<true>>("huber", "absolute errors, quadratic near 0");
    made.add<PlainLoss<binary_logits>>("bce_with_logits", "binary cross-entropy of logits");
    made.add<ClassLoss>("cross_entropy", "cross-entropy of logits and classes");
    made.add<ScriptLoss>("torchscript", "a TorchScript file, of all outputs and targets");
    return made;
  }();
  return losses;
}

void ArrayModuleOptions::describe(Schema<ArrayModuleOptions>& schema) {
  schema.field("model", &ArrayModuleOptions::model, "the model: mlp or torchscript, with its options; required");
  schema.field("loss", &ArrayModuleOptions::loss, "the loss, with its options");
}

ArrayModule::ArrayModule(const Options& options)
    : model_(make_part(options.model, named_models(), "engine.model")),
      loss_(make_part(options.loss, named_losses(), "engine.loss")) {
  register_module("model", model_->layers());
  if (const auto layers = loss_->layers()) register_module("loss", layers);
  if (const auto weights = model_->layers()->parameters(); !weights.empty()) first_weight_ = weights.front();
}

void ArrayModule::check(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& targets) const {
  const std::optional<Shapes> outputs = model_->output_shapes(inputs);
  if (!outputs) return;
  const int64_t examples = inputs.front().size(0);
  if (examples == 0) throw ArgumentError("inputs[0] has no examples; valid: a first dimension of at least 1");
  if (targets.empty()) return;
  if (targets.front().dim() > 0 && targets.front().size(0) != examples)
    throw ArgumentError(
        fmt::format("inputs[0] and targets[0] differ in the number of examples, their first dimension; "
                    "got {} and {}; valid: the same",
                    describe_shape(inputs.front().sizes()), describe_shape(targets.front().sizes())));
  loss_->check(*outputs, targets);
}

Batch ArrayModule::batch_of(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& targets) {
  Batch batch;
  for (size_t i = 0; i < inputs.size(); ++i) batch.set("input" + std::to_string(i), inputs[i]);
  for (size_t i = 0; i < targets.size(); ++i) batch.set("target" + std::to_string(i), targets[i]);
  return batch;
}

std::vector<at::Tensor> ArrayModule::outputs_of(const Batch& prediction) {
  std::vector<at::Tensor> outputs;
  for (const auto& [name, tensor] : prediction.items()) outputs.push_back(tensor);
  return outputs;
}

std::vector<at::Tensor> ArrayModule::tensors(const Batch& batch, const char* name) const {
  std::vector<at::Tensor> found;
  for (const auto& [key, tensor] : batch.items()) {
    if (!key.starts_with(name)) continue;
    const bool converts = tensor.is_floating_point() && first_weight_.defined();
    found.push_back(converts ? tensor.to(first_weight_.scalar_type()) : tensor);
  }
  return found;
}

at::Tensor ArrayModule::loss_of(const Batch& batch) {
  return loss_->compute(model_->forward(tensors(batch, "input")), tensors(batch, "target"));
}

StepOutput ArrayModule::training_step(const Batch& batch, int64_t /*batch_idx*/) {
  const at::Tensor loss = loss_of(batch);
  log("train_loss", loss);
  return loss;
}

StepOutput ArrayModule::validation_step(const Batch& batch, int64_t /*batch_idx*/) { return loss_of(batch); }

Batch ArrayModule::predict_step(const Batch& batch, int64_t /*batch_idx*/) {
  const std::vector<at::Tensor> outputs = model_->forward(tensors(batch, "input"));
  Batch prediction;
  for (size_t i = 0; i < outputs.size(); ++i) prediction.set("output" + std::to_string(i), outputs[i]);
  return prediction;
}

}  // namespace levin
