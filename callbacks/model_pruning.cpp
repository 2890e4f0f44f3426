#include <levin/callbacks/model_pruning.h>

#include <levin/callbacks/averaging_callbacks.h>
#include <levin/callbacks/rank_agreement.h>
#include <levin/core/base/log.h>
#include <levin/core/base/seed.h>
#include <levin/core/base/wildcard.h>
#include <levin/core/interfaces/independent_steps.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/trainer/trainer.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace levin {
namespace {

std::vector<const ModelPruning*> prunings_of(const Trainer& trainer) {
  std::vector<const ModelPruning*> found;
  for (const auto& callback : trainer.callbacks())
    if (const auto* pruning = dynamic_cast<const ModelPruning*>(callback.get())) found.push_back(pruning);
  return found;
}

std::string share_of(int64_t part, int64_t whole) {
  return fmt::format("{} of {} ({:.2f}%)", part, whole,
                     100 * static_cast<double>(part) / static_cast<double>(std::max<int64_t>(whole, 1)));
}

}  // namespace

void ModelPruningOptions::describe(Schema<ModelPruningOptions>& schema) {
  using O = ModelPruningOptions;
  schema.field("pruning_fn", &O::pruning_fn, "criterion: smallest entries, slices of the smallest norm, or random ones")
      .one_of({"l1_unstructured", "random_unstructured", "ln_structured", "random_structured"});
  schema.field("parameters_to_prune", &O::parameters_to_prune,
               "names of parameters, `*` for any characters; empty: all with at least two dimensions");
  schema.field(
      "use_global_unstructured", &O::use_global_unstructured,
      "entries of all parameters compete; false: each parameter loses its share; null: true for single entries");
  schema.field("amount", &O::amount, "share to prune; schedule says of what").above(0).below(1);
  schema.field("pruning_dim", &O::pruning_dim, "dimension along which structured pruning takes slices");
  schema.field("pruning_norm", &O::pruning_norm, "norm of slices for ln_structured: 1, 2 or inf")
      .require("1, 2 or inf",
               [](double norm) { return norm == 1 || norm == 2 || norm == std::numeric_limits<double>::infinity(); });
  schema
      .field("schedule", &O::schedule,
             "constant: `amount` of what is left, each time; gradual: up to `amount` of all at end_epoch")
      .one_of({"constant", "gradual"});
  schema.field("start_epoch", &O::start_epoch, "first epoch (from 0) that prunes, at its start").at_least(0);
  schema.field("end_epoch", &O::end_epoch, "the last epoch that prunes; null: no end; gradual needs one").at_least(0);
  schema.field("every_n_epochs", &O::every_n_epochs, "epochs from one pruning to the next").at_least(1);
  schema.field("verbose", &O::verbose, "1: a line each time; 2: and one for each parameter").at_least(0).at_most(2);
}

ModelPruning::ModelPruning(const Options& options) : options_(options) {
  schema_of<Options>().validate(options, "model_pruning");
  if (is_structured() && options.use_global_unstructured.value_or(false))
    throw ConfigError(
        fmt::format("model_pruning.use_global_unstructured is true, and pruning_fn {}, whose slices are those of one "
                    "parameter; valid: false, or l1_unstructured or random_unstructured",
                    options.pruning_fn));
  if (options.schedule == "gradual" && !options.end_epoch)
    throw ConfigError(
        "model_pruning.end_epoch is required by schedule gradual; got null; hint: the epoch at whose start `amount` is "
        "reached, with some epochs of training after it");
  if (options.end_epoch && *options.end_epoch < options.start_epoch)
    throw ConfigError(fmt::format("model_pruning.end_epoch must be at least start_epoch, {}; got {}",
                                  options.start_epoch, *options.end_epoch));
}

void ModelPruning::setup(Trainer& trainer, Module&, Stage stage) {
  if (stage != Stage::kFit) return;
  require_on_every_rank(trainer, *this, "model_pruning");
  masks_.reset();
  seed_.reset();
  pruned_ = entries_ = 0;
  averages_ = false;
  bool is_later = false;
  for (const auto& callback : trainer.callbacks()) {
    is_later = is_later || callback.get() == this;
    const bool averages = averages_weights(*callback);
    if (averages && is_later)
      throw ConfigError(
          "model_pruning comes before a callback that averages weights, whose averages it could not prune; hint: name "
          "it after weight_averaging or stochastic_weight_averaging in trainer.callbacks");
    averages_ = averages_ || averages;
  }
}

std::vector<std::pair<std::string, at::Tensor>> ModelPruning::find_parameters(const Module& module) const {
  std::vector<std::string> names;
  std::vector<std::pair<std::string, at::Tensor>> found;
  std::vector<bool> matched(options_.parameters_to_prune.size(), false);
  for (const auto& [name, parameter] : named_unique_parameters(module)) {
    if (!parameter.is_floating_point()) continue;
    names.push_back(name);
    bool is_wanted = options_.parameters_to_prune.empty() && parameter.dim() >= 2;
    for (size_t i = 0; i < matched.size(); ++i)
      if (matches_wildcard(options_.parameters_to_prune[i], name)) is_wanted = matched[i] = true;
    if (is_wanted) found.emplace_back(name, parameter);
  }
  for (size_t i = 0; i < matched.size(); ++i)
    if (!matched[i])
      throw ConfigError(fmt::format("model_pruning.parameters_to_prune has '{}', which is no parameter of {}{}",
                                    options_.parameters_to_prune[i], module.name(),
                                    valid_names_hint(options_.parameters_to_prune[i], names)));
  if (found.empty())
    throw ConfigError(
        fmt::format("model_pruning has nothing to prune: {} has no parameters of two or more dimensions; hint: name "
                    "those to prune in parameters_to_prune{}",
                    module.name(), valid_names_hint("", names)));
  if (!is_structured()) return found;
  for (const auto& [name, parameter] : found) {
    if (parameter.dim() < 2)
      throw ConfigError(
          fmt::format("model_pruning.pruning_fn {} prunes slices of parameters of two or more dimensions; got '{}' of "
                      "{}; hint: leave it out of parameters_to_prune",
                      options_.pruning_fn, name, parameter.dim()));
    if (options_.pruning_dim < -parameter.dim() || options_.pruning_dim >= parameter.dim())
      throw ConfigError(fmt::format("model_pruning.pruning_dim is {}, and '{}' has {} dimensions; valid: {} to {}",
                                    options_.pruning_dim, name, parameter.dim(), -parameter.dim(),
                                    parameter.dim() - 1));
  }
  return found;
}

void ModelPruning::check_epochs(const Trainer& trainer) const {
  const auto epochs = trainer.max_epochs();
  if (!epochs || trainer.options().fast_dev_run.batches() != 0) return;
  if (options_.start_epoch >= *epochs)
    throw ConfigError(
        fmt::format("model_pruning.start_epoch is {} and trainer.max_epochs {}, so that nothing is pruned; valid: up "
                    "to {}",
                    options_.start_epoch, *epochs, *epochs - 1));
  if (options_.schedule == "gradual" && *options_.end_epoch >= *epochs)
    throw ConfigError(
        fmt::format("model_pruning.end_epoch is {} and trainer.max_epochs {}, so that amount {} is not reached; valid: "
                    "up to {}",
                    *options_.end_epoch, *epochs, options_.amount, *epochs - 1));
}

void ModelPruning::on_fit_start(Trainer& trainer, Module& module) {
  if (has_local_weights(trainer.strategy()))
    throw ConfigError(
        "model_pruning does not work with sync: local_sgd or diloco, whose ranks have other weights than each other "
        "between two exchanges; valid: sync: gradients");
  if (trainer.strategy().divided_model().divides_state())
    throw ConfigError(
        fmt::format("model_pruning does not work with strategy '{}', which divides parameters or their optimizer over "
                    "the ranks; valid: strategies whose ranks hold whole models (single_device, dp, ddp, ddp2, "
                    "horovod)",
                    trainer.strategy().name()));
  check_epochs(trainer);
  masks_.bind(find_parameters(module));
  for (const ModelPruning* earlier : prunings_of(trainer)) {
    if (earlier == this) break;
    for (const auto& theirs : earlier->masks_.parameters())
      for (const auto& own : masks_.parameters())
        if (own.name == theirs.name)
          throw ConfigError(fmt::format(
              "model_pruning is there twice for the parameter '{}'; hint: different parameters_to_prune", own.name));
  }
  if (!seed_) seed_ = static_cast<int64_t>(global_seed());
  seen_steps_ = trainer.global_step();
  take_stock(/*report=*/false);
  masks_.apply();
}

bool ModelPruning::is_due(int64_t epoch) const {
  if (epoch < options_.start_epoch || epoch > options_.end_epoch.value_or(epoch)) return false;
  const bool reaches_amount = options_.schedule == "gradual" && epoch == *options_.end_epoch;
  return reaches_amount || (epoch - options_.start_epoch) % options_.every_n_epochs == 0;
}

double ModelPruning::amount_at(int64_t epoch) const {
  if (options_.schedule == "constant" || epoch == *options_.end_epoch) return options_.amount;
  const double progress = static_cast<double>(epoch - options_.start_epoch) /
                          static_cast<double>(*options_.end_epoch - options_.start_epoch);
  return options_.amount * (1 - std::pow(1 - progress, 3));
}

void ModelPruning::on_train_epoch_start(Trainer& trainer, Module&) {
  const int64_t epoch = trainer.current_epoch();
  if (!is_due(epoch)) return;
  masks_.prune({.random = options_.pruning_fn.starts_with("random"),
                .slices = is_structured(),
                .global = options_.use_global_unstructured.value_or(!is_structured()),
                .dim = options_.pruning_dim,
                .norm = options_.pruning_norm,
                .of_rest = options_.schedule == "constant",
                .amount = amount_at(epoch),
                .seed = mix_seed(static_cast<uint64_t>(*seed_), static_cast<uint64_t>(epoch))});
  // Equal weights may be ranked differently.
  if (trainer.world_size() > 1) masks_.share(trainer.strategy().collective());
  masks_.apply();
  take_stock(options_.verbose > 0);
}

void ModelPruning::take_stock(bool report) {
  const std::vector<int64_t> pruned = masks_.count();
  const auto& parameters = masks_.parameters();
  pruned_ = std::accumulate(pruned.begin(), pruned.end(), int64_t{0});
  entries_ = 0;
  for (const auto& parameter : parameters) entries_ += parameter.value.numel();
  for (size_t i = 0; i < parameters.size(); ++i)
    if (pruned[i] > 0 && pruned[i] == parameters[i].value.numel())
      log::rank_zero_warning_once(fmt::format(
          "model_pruning has pruned all of '{}'; hint: a smaller amount, use_global_unstructured: false, or "
          "other parameters_to_prune",
          parameters[i].name));
  if (!report) return;
  log::rank_zero_info(fmt::format("[model_pruning] {} pruned, {}", options_.pruning_fn, share_of(pruned_, entries_)));
  if (options_.verbose < 2) return;
  for (size_t i = 0; i < parameters.size(); ++i)
    log::rank_zero_info(
        fmt::format("[model_pruning] {}: {}", parameters[i].name, share_of(pruned[i], parameters[i].value.numel())));
}

/// With gradients of zero, what is pruned does not count in clipping, and optimizers forget that it moved.
void ModelPruning::on_before_optimizer_step(Trainer&, Module&, OptimizerHandle&) { masks_.apply_to_gradients(); }

/// Momentum and weight decay move what has no gradient.
void ModelPruning::on_train_batch_end(Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t) {
  if (trainer.global_step() == seen_steps_) return;
  seen_steps_ = trainer.global_step();
  masks_.apply();
}

void ModelPruning::on_train_epoch_end(Trainer& trainer, Module&) {
  const auto prunings = prunings_of(trainer);
  if (prunings.front() != this) return;
  int64_t pruned = 0;
  int64_t entries = 0;
  for (const ModelPruning* pruning : prunings) {
    pruned += pruning->pruned_;
    entries += pruning->entries_;
  }
  trainer.log_rank_value("pruning/sparsity", static_cast<double>(pruned) / static_cast<double>(entries),
                         {.on_step = false, .on_epoch = true});
}

void ModelPruning::on_validation_start(Trainer& trainer, Module&) {
  if (averages_ && trainer.stage() == Stage::kFit) masks_.apply();
}

void ModelPruning::on_train_end(Trainer&, Module&) {
  if (averages_) masks_.apply();
}

void ModelPruning::on_save_checkpoint(Trainer&, Module&, State& checkpoint) {
  if (!averages_ || masks_.empty()) return;
  auto& model = checkpoint["model"].as_map();
  for (const auto& parameter : masks_.parameters()) {
    const auto found = model.find(parameter.name);
    LEVIN_CHECK(found != model.end(), "a checkpoint's model has every parameter");
    const TensorLeaf& leaf = found->second.as_leaf();
    found->second = TensorLeaf{PruningMasks::masked(parameter, leaf.tensor()), leaf.placement};
  }
}

State ModelPruning::state_dict() const {
  if (!seed_) return {};
  State state = State::map();
  state["seed"] = *seed_;
  state["pruned"] = masks_.state_dict();
  return state;
}

void ModelPruning::load_state_dict(const State& state) {
  seed_ = state.at("seed").as_int();
  masks_.load(state.at("pruned"));
}

}  // namespace levin
