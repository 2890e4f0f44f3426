#include <levin/core/engine/rank.h>

#include <levin/core/base/error.h>
#include <levin/core/base/type_name.h>
#include <levin/core/engine/rank_calls.h>
#include <levin/core/interfaces/overridden.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/metrics/metric_name.h>
#include <levin/core/trainer/trainer.h>

#include <c10/util/ScopeExit.h>
#include <fmt/format.h>

#include <typeinfo>
#include <utility>

namespace levin {
namespace {

/// A tensor of another device would be copied in every step, without a word.
void check_batch(const char* name, const Batch& batch, const at::Device& device) {
  if (batch.empty())
    throw Error("engine", fmt::format("{} was given an empty batch; valid: a batch with at least one tensor", name));
  for (const auto& [key, tensor] : batch.items())
    if (tensor.defined() && !tensor.device().is_cpu() && tensor.device() != device)
      throw Error("engine",
                  fmt::format("{} was given a batch of another device; got '{}' on {}; valid: {}{}; hint: "
                              "batch.to(engine.device()), or leave it on the CPU",
                              name, key, tensor.device().str(), device.is_cpu() ? "" : "cpu, ", device.str()));
}

/// `call`: needs this step of the module.
void require_step(const char* call, const char* step, bool is_there, const Module& module, const char* hint = "") {
  if (is_there) return;
  throw Error("engine", fmt::format("{} needs {}(), which {} does not override{}", call, step,
                                    short_class_name(typeid(module)), hint));
}

}  // namespace

Rank::Rank(std::shared_ptr<RankCalls> calls) : calls_(std::move(calls)) {}
Rank::~Rank() = default;

StepOutput Rank::train_step(Batch batch, const TrainStepOptions& options) {
  TrainerComponents& parts = calls_->parts();
  return calls_->run(
      "train_step",
      [&] {
        check_batch("train_step", batch, device());
        require_step("train_step", "training_step", options.step || overrides_training_step(module()), module(),
                     "; hint: override it, or have the option `step` return the loss");
        if (options.is_last && !parts.fit.in_epoch())
          throw Error(
              "engine",
              "train_step was told that the batch is the last one of its epoch; got a step outside of an epoch; "
              "valid: inside of epoch(); hint: accumulate(n) sets the length of accumulation windows");
        if (parts.fit.in_epoch() && parts.state.progress.last_batch_done)
          throw Error("engine", fmt::format("train_step after the last batch of epoch {}; valid: in the next epoch()",
                                            parts.state.progress.epoch));
      },
      [&] {
        parts.step.set_body(options.step);
        const auto forget = c10::make_scope_exit([&] { parts.step.set_body({}); });
        return parts.fit.train_step(std::move(batch), options.is_last);
      });
}

StepOutput Rank::eval_step(Batch batch) {
  return calls_->run(
      "eval_step",
      [&] {
        check_batch("eval_step", batch, device());
        require_step("eval_step", "validation_step", overrides_validation_step(module()), module());
      },
      [&] { return calls_->parts().evaluation.evaluate_batch(std::move(batch)); });
}

Batch Rank::predict_step(Batch batch) {
  return calls_->run(
      "predict_step",
      [&] {
        check_batch("predict_step", batch, device());
        require_step("predict_step", "predict_step", overrides_predict_step(module()), module());
      },
      [&] { return calls_->parts().evaluation.predict_batch(std::move(batch)); });
}

std::vector<MetricMap> Rank::validate(const DataLoaders& loaders) {
  TrainerComponents& parts = calls_->parts();
  return calls_->run(
      "validate",
      [&] {
        require_step("validate", "validation_step", overrides_validation_step(module()), module());
        parts.data.set_validation_loaders(loaders);
      },
      [&] { return parts.fit.run_validation(); });
}

void Rank::epoch(const std::function<void()>& steps) {
  FitLoop& fit = calls_->parts().fit;
  const FitProgress& progress = calls_->parts().state.progress;
  calls_->run(
      "epoch",
      [&] {
        if (steps == nullptr) throw Error("engine", "epoch was given no function");
        if (fit.in_epoch())
          throw Error("engine",
                      "epoch inside of an epoch; valid: one after the other; hint: a single epoch() around "
                      "the steps");
      },
      [&] { fit.begin_epoch(); });
  try {
    steps();
  } catch (...) {
    fit.leave_epoch();
    throw;
  }
  calls_->run(
      "epoch",
      [&] {
        if (progress.window_index == 0) return;
        fit.leave_epoch();
        throw Error("engine",
                    fmt::format("the epoch ends inside of an accumulation window, after {} of {} batches; hint: "
                                "train_step(batch, {{.is_last = true}}) for the last batch of the epoch",
                                progress.window_index, progress.window_size));
      },
      [&] { fit.end_epoch(); });
}

void Rank::accumulate(int64_t batches) {
  if (batches < 1) throw Error("engine", fmt::format("accumulate was given {} batches; valid: at least 1", batches));
  calls_->run(
      "accumulate", [&] { trainer().set_accumulate_grad_batches(batches); }, [] {});
}

void Rank::require_in_step(const char* name) const {
  if (calls_->is_inside()) return;
  throw Error("engine", fmt::format("{} outside of a step; valid: in training_step, or in the function `step` of "
                                    "train_step, of a module with automatic_optimization = false",
                                    name));
}

void Rank::backward(const at::Tensor& loss, const BackwardOptions& options) {
  require_in_step("backward");
  module().manual_backward(loss, options);
}

void Rank::optimizer_step(int64_t index) {
  require_in_step("optimizer_step");
  if (module().automatic_optimization)
    throw Error(
        "engine",
        "optimizer_step is for manual optimization; got a module whose optimizers step behind its loss; hint: set "
        "automatic_optimization = false in the module's constructor");
  module().optimizer(index).step();
}

at::Tensor Rank::all_gather(const at::Tensor& tensor, bool sync_grads) {
  return calls_->run_anywhere("all_gather", [&] { return module().all_gather(tensor, sync_grads); });
}

void Rank::barrier() {
  calls_->run_anywhere("barrier", [&] { calls_->parts().options.strategy->collective().barrier(); });
}

int64_t Rank::global_rank() const { return trainer().global_rank(); }
int64_t Rank::world_size() const { return trainer().world_size(); }
const at::Device& Rank::device() const { return trainer().device(); }

void Rank::log(const std::string& name, double value) {
  if (calls_->is_inside()) return module().log(name, value);
  calls_->run(
      "log", [&] { metrics::check_metric_name(name); },
      [&] {
        trainer().log_metrics({{name, value}});
        calls_->parts().logger.emit_row();
      });
}

void Rank::save(const std::string& path) {
  TrainerComponents& parts = calls_->parts();
  const auto save_here = [&] {
    parts.state.at_resume_point = true;
    const auto leave = c10::make_scope_exit([&] { parts.state.at_resume_point = false; });
    parts.checkpoints.save(path, {});
  };
  const bool several = world_size() > 1;  // where one fails, the others wait for it
  calls_->run(
      "save",
      [&] {
        if (parts.checkpoints.waits_for_window())
          throw Error("engine", fmt::format("save inside of an accumulation window, whose gradients strategy '{}' "
                                            "divides over the ranks; got {} of {} batches; valid: after the last one",
                                            parts.options.strategy->name(), parts.state.progress.window_index,
                                            parts.state.progress.window_size));
        if (!several) save_here();
      },
      [&] {
        if (several) save_here();
      });
}

DataLoaderPosition Rank::position(const DataLoader& loader) {
  DataLoaderPosition here;
  calls_->run(
      "position", [&] { here = calls_->parts().fit.next_position(loader); }, [] {});
  return here;
}

int64_t Rank::step() const { return trainer().global_step(); }
int64_t Rank::current_epoch() const { return trainer().current_epoch(); }
void Rank::request_stop(const std::string& reason) { trainer().request_stop(reason); }

bool Rank::stop_requested() {
  return calls_->run("stop_requested", [&] { return calls_->parts().fit.wants_to_end(); });
}

Trainer& Rank::trainer() const { return calls_->parts().trainer; }
Module& Rank::module() const { return trainer().module(); }

}  // namespace levin
