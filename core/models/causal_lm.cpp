#include <levin/core/models/causal_lm.h>

#include <levin/core/base/error.h>
#include <levin/core/models/language_model_files.h>
#include <levin/core/nn/adapters.h>
#include <levin/core/nn/transformer/language_model_config.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <filesystem>

namespace levin {
namespace {

at::Tensor positions_of(const Batch& batch) {
  const at::Tensor* const found = batch.find("positions");
  return found != nullptr ? *found : at::Tensor();
}

}  // namespace

void CausalLmOptions::describe(Schema<CausalLmOptions>& schema) {
  using O = CausalLmOptions;
  schema.field("path", &O::path, "a folder of Hugging Face with config.json and weights, or a config.json");
  schema.field("pretrained", &O::pretrained, "start from the folder's weights; false: random ones");
  schema.field("adapters", &O::adapters,
               "what is trained instead of the weights: {name: lora, rank: 8, targets: [\"*.q_proj\"]}");
}

CausalLm::CausalLm(const Options& options) : is_pretrained_(options.pretrained) {
  if (options.path.empty())
    throw ConfigError("model.path is not set; hint: a folder of Hugging Face with config.json, or a config.json");
  const nn::LanguageModelOptions described = nn::language_model_options(options.path);
  const std::filesystem::path path(options.path);
  config_ = (std::filesystem::is_directory(path) ? path / "config.json" : path).string();
  model_ = register_module("model",
                           options.pretrained ? load_language_model(options.path) : nn::CausalLanguageModel(described));
  if (asks_for_adapters(options.adapters)) add_adapters(*this, options.adapters);
}

StepOutput CausalLm::step(const Batch& batch, const std::string& name) {
  const at::Tensor& next = batch["next"];
  const at::Tensor count = next.ne(-100).sum();
  at::Tensor loss = model_->loss(batch["tokens"], next, positions_of(batch));
  loss = at::where(count > 0, loss, at::zeros_like(loss));  // the mean of nothing is NaN, which other ranks would get
  log(name, loss, {.prog_bar = true});
  return StepOutput({.loss = loss, .weight = count});
}

StepOutput CausalLm::training_step(const Batch& batch, int64_t /*batch_idx*/) { return step(batch, "train_loss"); }
StepOutput CausalLm::validation_step(const Batch& batch, int64_t /*batch_idx*/) { return step(batch, "val_loss"); }
StepOutput CausalLm::test_step(const Batch& batch, int64_t /*batch_idx*/) { return step(batch, "test_loss"); }

Batch CausalLm::predict_step(const Batch& batch, int64_t /*batch_idx*/) {
  return {{"logits", model_(batch["tokens"], positions_of(batch))}};
}

WeightRules CausalLm::rules_of(const std::string& path) const {
  // Weights that save_weights wrote have the module's names.
  if (open_weights(path).tensors.contains("model.net.0.embed_tokens")) return {};
  return language_model_weights(model_->options(), path, "model.").rules;
}

std::string CausalLm::folder() const { return std::filesystem::path(config_).parent_path().string(); }

AdapterFilesOptions CausalLm::adapter_files(const std::string& adapter) const {
  return {
      .adapter = adapter,
      .path_in_file = [this](const std::string& path) { return hugging_face_path(model_->options(), path, "model."); },
      .base = folder(),
      .task_type = "CAUSAL_LM"};
}

void CausalLm::save_adapter(const std::string& folder) const { levin::save_adapter(*this, folder, adapter_files("")); }

void CausalLm::load_adapter(const std::string& folder, const std::string& adapter) {
  levin::load_adapter(*this, folder, adapter_files(adapter));
}

void CausalLm::save_folder(const std::string& folder) const { save_language_model(model_, folder, config_); }

}  // namespace levin
