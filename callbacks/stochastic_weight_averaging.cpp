#include <levin/callbacks/stochastic_weight_averaging.h>

#include <levin/callbacks/running_statistics.h>
#include <levin/core/base/log.h>
#include <levin/core/base/released_storage.h>
#include <levin/core/interfaces/checkpointer.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/trainer/trainer.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace levin {
namespace {

optim::SwaSchedulerOptions scheduler_options(const StochasticWeightAveragingOptions& options) {
  return {.swa_lrs = options.swa_lrs,
          .annealing_epochs = options.annealing_epochs,
          .annealing_strategy = options.annealing_strategy};
}

}  // namespace

void StochasticWeightAveragingOptions::describe(Schema<StochasticWeightAveragingOptions>& schema) {
  using O = StochasticWeightAveragingOptions;
  schema
      .field("swa_lrs", &O::swa_lrs, "learning rate of the averaged epochs, or one for each parameter group; required")
      .require("above 0", [](const auto& lrs) {
        return std::all_of(lrs.values().begin(), lrs.values().end(), [](double rate) { return rate > 0; });
      });
  schema
      .field("swa_epoch_start", &O::swa_epoch_start,
             "the first averaged epoch, counted from 0; below 1 a fraction of max_epochs")
      .at_least(0)
      .require("a whole epoch or a fraction below 1",
               [](double start) { return start < 1 || start == std::floor(start); });
  schema.field("annealing_epochs", &O::annealing_epochs, "epochs of annealing to swa_lrs; 0: none").at_least(0);
  schema.field("annealing_strategy", &O::annealing_strategy, "shape of the annealing").one_of({"cos", "linear"});
}

StochasticWeightAveraging::StochasticWeightAveraging(const Options& options) : options_(options) {
  if (options.swa_lrs.values().empty())
    throw ConfigError(
        "stochastic_weight_averaging.swa_lrs is required; got none; hint: stochastic_weight_averaging: {swa_lrs: "
        "0.01}");
  schema_of<Options>().validate(options, "stochastic_weight_averaging");
}

void StochasticWeightAveraging::setup(Trainer& trainer, Module&, Stage stage) {
  if (stage != Stage::kFit) return;
  require_one_average(trainer);
  average_.reset();
  begun_ = false;
  averaged_epochs_ = 0;
  training_buffers_ = {};
}

int64_t StochasticWeightAveraging::first_epoch(const Trainer& trainer) const {
  const auto epochs = trainer.max_epochs();
  if (options_.swa_epoch_start < 1 && !epochs)
    throw ConfigError(
        fmt::format("stochastic_weight_averaging.swa_epoch_start is {}, a fraction of trainer.max_epochs, which is not "
                    "set; hint: set it, or give an epoch",
                    options_.swa_epoch_start));
  const double first =
      options_.swa_epoch_start < 1 ? options_.swa_epoch_start * static_cast<double>(*epochs) : options_.swa_epoch_start;
  const auto epoch = static_cast<int64_t>(first);
  if (epochs && epoch >= *epochs && trainer.options().fast_dev_run.batches() == 0)
    throw ConfigError(
        fmt::format("stochastic_weight_averaging.swa_epoch_start is {} and trainer.max_epochs {}, so that no epoch is "
                    "averaged; valid: up to {}",
                    options_.swa_epoch_start, *epochs, *epochs - 1));
  return epoch;
}

void StochasticWeightAveraging::on_fit_start(Trainer& trainer, Module& module) {
  if (!module.automatic_optimization || trainer.optimizers().size() != 1)
    throw ConfigError(
        fmt::format("stochastic_weight_averaging needs automatic optimization with one optimizer; got {} and "
                    "automatic_optimization "
                    "= {}",
                    trainer.optimizers().size(), module.automatic_optimization));
  if (!has_all_running_statistics(module))
    throw ConfigError(
        fmt::format("stochastic_weight_averaging computes the running statistics of BatchNorm layers anew, which does "
                    "not work with strategy '{}', whose ranks have different layers; hint: weight_averaging, or layers "
                    "without running statistics (LayerNorm, GroupNorm)",
                    trainer.strategy().name()));
  average_.bind(module, trainer.strategy(), {});
  if (!begun_) {
    first_epoch_ = first_epoch(trainer);
    return;
  }
  begin(trainer);
  if (!average_.in_module()) return;
  // A run that had ended goes on: with the weights and statistics that it trained with.
  average_.take_out_of_module();
  const at::NoGradGuard no_grad;
  for (auto& buffer : module.named_buffers())
    if (const State* saved = training_buffers_.find(buffer.key())) buffer.value().copy_(saved->as_tensor());
  training_buffers_ = {};
}

void StochasticWeightAveraging::begin(Trainer& trainer) {
  begun_ = true;
  trainer.replace_schedulers(std::make_shared<optim::SwaScheduler>(scheduler_options(options_)), Interval::kEpoch);
}

void StochasticWeightAveraging::on_train_epoch_start(Trainer& trainer, Module&) {
  if (begun_ || trainer.current_epoch() < first_epoch_) return;
  log::rank_zero_info(fmt::format("weights are averaged from epoch {} on", trainer.current_epoch()));
  begin(trainer);
}

void StochasticWeightAveraging::on_train_epoch_end(Trainer& trainer, Module&) {
  if (!begun_ || !trainer.epoch_complete()) return;
  ++averaged_epochs_;
  average_.update(1.0 / static_cast<double>(averaged_epochs_));
}

void StochasticWeightAveraging::on_train_end(Trainer& trainer, Module& module) {
  // What a signal cut off is not over: `last` has the training weights to go on with.
  if (trainer.fit_interrupted()) return;
  if (averaged_epochs_ == 0) {
    log::rank_zero_warning(
        fmt::format("training ended before stochastic_weight_averaging had an epoch to average (it begins with epoch "
                    "{}): the weights are those of training",
                    first_epoch_));
    return;
  }
  finish(trainer, module);
}

void StochasticWeightAveraging::finish(Trainer& trainer, Module& module) {
  training_buffers_ = State::map();
  for (const auto& buffer : module.named_buffers())
    if (buffer.value().defined() && !is_released(buffer.value()))
      training_buffers_[buffer.key()] = buffer.value().detach().clone();
  average_.put_into_module();
  recompute_running_statistics(module, trainer.strategy().collective(), [&] { trainer.replay_training_data(); });
  // The epoch's checkpoints were made before.
  if (Checkpointer* checkpointer = trainer.checkpoint_callback()) checkpointer->save_last(trainer);
}

State StochasticWeightAveraging::state_dict() const {
  if (!begun_) return {};
  State state = State::map();
  state["first_epoch"] = first_epoch_;
  state["averaged_epochs"] = averaged_epochs_;
  state["average_in_module"] = average_.in_module();
  state["beside"] = average_.beside();
  state["training_buffers"] = training_buffers_;
  return state;
}

void StochasticWeightAveraging::load_state_dict(const State& state) {
  begun_ = true;
  first_epoch_ = state.at("first_epoch").as_int();
  averaged_epochs_ = state.at("averaged_epochs").as_int();
  average_.load(state.at("beside"), state.at("average_in_module").as_bool());
  training_buffers_ = state.at("training_buffers");
}

}  // namespace levin
