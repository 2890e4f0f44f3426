#include <levin/callbacks/backbone_finetuning.h>

#include <levin/core/base/log.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/nn/batch_norm.h>
#include <levin/core/trainer/trainer.h>

#include <fmt/format.h>
#include <torch/optim/optimizer.h>

#include <algorithm>

namespace levin {

void BackboneFinetuningOptions::describe(Schema<BackboneFinetuningOptions>& schema) {
  using O = BackboneFinetuningOptions;
  schema.field("backbone", &O::backbone, "the submodule, by dotted path");
  schema
      .field("unfreeze_backbone_at_epoch", &O::unfreeze_backbone_at_epoch,
             "first epoch (from 0) in which it is trained")
      .at_least(0);
  schema.field("multiplier", &O::multiplier, "factor of the backbone's rate in each later epoch; 1 keeps it").above(0);
  schema
      .field("backbone_initial_ratio_lr", &O::backbone_initial_ratio_lr,
             "its first learning rate relative to the first group's")
      .above(0);
  schema
      .field("backbone_initial_lr", &O::backbone_initial_lr, "its first learning rate; null: backbone_initial_ratio_lr")
      .above(0);
  schema
      .field("initial_denom_lr", &O::initial_denom_lr,
             "divisor of the first group's rate for its first rate; null: backbone_initial_ratio_lr")
      .above(0);
  schema.field("should_align", &O::should_align, "limit its learning rate to the first group's");
  schema.field("train_bn", &O::train_bn, "train its BatchNorm layers from the start");
}

BackboneFinetuning::BackboneFinetuning(const Options& options) : options_(options) {
  schema_of<Options>().validate(options, "backbone_finetuning");
  if (options.backbone_initial_lr && options.initial_denom_lr)
    throw ConfigError(
        "backbone_finetuning.backbone_initial_lr and backbone_finetuning.initial_denom_lr both say what the backbone's "
        "first learning rate is; hint: leave one of them out");
}

std::shared_ptr<torch::nn::Module> BackboneFinetuning::find_backbone(const Module& module) const {
  const auto parts = module.named_modules(/*name_prefix=*/"", /*include_self=*/false);
  const auto* found = parts.find(options_.backbone);
  return found == nullptr ? nullptr : *found;
}

void BackboneFinetuning::setup(Trainer&, Module& module, Stage stage) {
  if (stage != Stage::kFit) return;
  unfrozen_ = false;
  // Before configure_optimizers, which may take the trained parameters only.
  if (const auto backbone = find_backbone(module)) freeze(*backbone);
}

void BackboneFinetuning::freeze(torch::nn::Module& backbone) {
  for (const auto& part : backbone.modules(/*include_self=*/true)) {
    const bool batch_norm = is_batch_norm(*part);
    if (batch_norm && options_.train_bn) continue;
    for (auto& parameter : part->parameters(/*recurse=*/false)) {
      if (!parameter.requires_grad()) continue;  // the user froze it, or it is a part of two modules
      parameter.set_requires_grad(false);
      frozen_.push_back(parameter);
    }
    if (batch_norm) frozen_norms_.push_back(part);
  }
}

void BackboneFinetuning::on_fit_start(Trainer& trainer, Module& module) {
  const auto backbone = find_backbone(module);
  if (backbone == nullptr) {
    std::vector<std::string> names;
    for (const auto& part : module.named_modules("", /*include_self=*/false)) names.push_back(part.key());
    throw ConfigError(fmt::format("backbone_finetuning.backbone is '{}', which is no submodule of {}{}",
                                  options_.backbone, module.name(), valid_names_hint(options_.backbone, names)));
  }
  if (trainer.optimizers().empty())
    throw ConfigError("backbone_finetuning needs an optimizer; got none from configure_optimizers");
  // A backbone that configure_model made.
  if (frozen_.empty()) freeze(*backbone);
  if (frozen_.empty())
    throw ConfigError(
        fmt::format("backbone_finetuning has nothing to freeze: '{}' has no parameters that are trained{}",
                    options_.backbone, options_.train_bn ? " beside those of BatchNorm layers" : ""));
  for (const auto& norm : frozen_norms_) norm->eval();
  // Resumed: the group's learning rate and state are restored next.
  if (unfrozen_) unfreeze(trainer);
}

void BackboneFinetuning::unfreeze(Trainer& trainer) {
  group_ = trainer.optimizers().front()->move_to_new_group(frozen_, learning_rate_);
  thaw();
  unfrozen_ = true;
}

void BackboneFinetuning::thaw() {
  for (auto& parameter : frozen_) parameter.set_requires_grad(true);
  for (const auto& norm : frozen_norms_) norm->train();
  frozen_.clear();
  frozen_norms_.clear();
}

void BackboneFinetuning::teardown(Trainer&, Module&, Stage) { thaw(); }

void BackboneFinetuning::on_exception(Trainer&, Module&, const std::exception_ptr&) { thaw(); }

void BackboneFinetuning::on_train_epoch_start(Trainer& trainer, Module&) {
  const int64_t epoch = trainer.current_epoch();
  if (epoch < options_.unfreeze_backbone_at_epoch) return;
  OptimizerHandle& optimizer = *trainer.optimizers().front();
  const double of_the_rest = optimizer.learning_rate();
  if (!unfrozen_) {
    const double ratio =
        options_.initial_denom_lr ? 1 / *options_.initial_denom_lr : options_.backbone_initial_ratio_lr;
    learning_rate_ = options_.backbone_initial_lr.value_or(of_the_rest * ratio);
    log::rank_zero_info(fmt::format("'{}' is trained from epoch {} on, at first with the learning rate {:.3g}",
                                    options_.backbone, epoch, learning_rate_));
    unfreeze(trainer);
    return;
  }
  learning_rate_ *= options_.multiplier;
  if (options_.should_align) learning_rate_ = std::min(learning_rate_, of_the_rest);
  optimizer.optimizer().param_groups()[group_].options().set_lr(learning_rate_);
}

State BackboneFinetuning::state_dict() const {
  State state = State::map();
  state["unfrozen"] = unfrozen_;
  state["learning_rate"] = learning_rate_;
  return state;
}

void BackboneFinetuning::load_state_dict(const State& state) {
  unfrozen_ = state.at("unfrozen").as_bool();
  learning_rate_ = state.at("learning_rate").as_double();
}

}  // namespace levin
