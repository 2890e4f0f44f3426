#include <levin/callbacks/throughput_monitor.h>

#include <levin/callbacks/rank_agreement.h>
#include <levin/core/accelerators/accelerator_registry.h>
#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/core/interfaces/divided_examples.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/precision/precision.h>
#include <levin/core/trainer/trainer.h>

#include <ATen/TensorOperators.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace levin {
namespace {

/// Shapes of batches whose operations are counted: counting takes time, and shapes may be as many as batches.
constexpr size_t kMostShapes = 64;

/// A target that does not count.
constexpr int64_t kIgnoredTarget = -100;

int64_t elements_in(const Batch& batch) {
  int64_t elements = 0;
  for (const auto& [name, tensor] : batch.items())
    if (tensor.defined()) elements += tensor.numel();
  return elements;
}

void describe_shape(const Batch& batch, std::vector<int64_t>& shape) {
  shape.clear();
  for (const auto& [name, tensor] : batch.items()) {
    if (!tensor.defined()) continue;
    shape.push_back(tensor.dim());
    shape.insert(shape.end(), tensor.sizes().begin(), tensor.sizes().end());
  }
}

/// What the module's matrix products are computed in, mostly.
at::ScalarType computing_type(Trainer& trainer, const Module& module) {
  if (const auto mixed = trainer.precision().mixed_type()) return *mixed;
  for (const auto& parameter : module.parameters())
    if (parameter.defined() && parameter.is_floating_point()) return parameter.scalar_type();
  return at::kFloat;
}

/// A rank has several devices where replicas share a process.
int64_t device_count(const Trainer& trainer) {
  return std::max(trainer.world_size(), static_cast<int64_t>(trainer.devices().size()) * trainer.options().num_nodes);
}

}  // namespace

void ThroughputMonitorOptions::describe(Schema<ThroughputMonitorOptions>& schema) {
  using O = ThroughputMonitorOptions;
  schema.field("window", &O::window, "logging boundaries in each rate").at_least(1);
  schema.field("warmup_steps", &O::warmup_steps, "first optimizer steps of a fit to ignore").at_least(0);
  schema.field("warmup_epochs", &O::warmup_epochs, "first epochs of a fit to ignore").at_least(0);
  schema
      .field("one_device_epoch_seconds", &O::one_device_epoch_seconds,
             "time of an epoch on one device (s), for speedup; null: none")
      .above(0);
  schema.field("tokens", &O::tokens, "field of the batch whose elements count as tokens (not -100); null: none");
  schema.field("flops", &O::flops, "count operations, for model_tflops_per_second and mfu_percent");
  schema
      .field("peak_tflops", &O::peak_tflops,
             "peak rate of one device (10^12 operations/s); null: its maker's figure, where known")
      .above(0);
}

ThroughputMonitor::ThroughputMonitor(const Options& options) : options_(options) {
  schema_of<Options>().validate(options, "throughput_monitor");
  if (options.tokens && options.count_tokens)
    throw ConfigError("throughput_monitor.tokens and count_tokens exclude each other; hint: leave one of them out");
}

void ThroughputMonitor::on_fit_start(Trainer& trainer, Module& module) {
  require_on_every_rank(trainer, *this, "throughput_monitor");
  first_step_ = trainer.global_step();
  started_.reset();
  validation_began_.reset();
  costs_.clear();
  too_many_shapes_ = false;
  counter_.reset();
  epochs_ = 0;
  epoch_started_.reset();
  peak_.reset();
  if (options_.flops) find_peak(trainer, module);
}

void ThroughputMonitor::find_peak(Trainer& trainer, Module& module) {
  const MatrixFormat format = matrix_format(computing_type(trainer, module));
  const Accelerator& accelerator = accelerator_of(trainer.device());
  const std::string name = accelerator.device_name(trainer.device());
  const auto of_device =
      options_.peak_tflops ? options_.peak_tflops : accelerator.peak_tflops(trainer.device(), format);
  if (!of_device) {
    log::rank_zero_info(fmt::format(
        "throughput_monitor: how much the device '{}' can compute in {} is not known, so mfu_percent is left "
        "out; hint: peak_tflops",
        name, to_string(format)));
    return;
  }
  peak_ = *of_device * 1e12 * static_cast<double>(device_count(trainer));
}

void ThroughputMonitor::on_train_epoch_start(Trainer& trainer, Module&) {
  for (auto& [shape, cost] : costs_) cost.is_of_epoch = false;
  if (epochs_++ < options_.warmup_epochs) return;
  wait_for(trainer.device());
  epoch_started_ = Clock::now();
  epoch_excluded_ = {};
  epoch_samples_ = 0;
}

void ThroughputMonitor::on_train_batch_start(Trainer& trainer, Module&, const Batch& batch, int64_t) {
  steps_before_ = trainer.global_step();
  if (options_.flops && !trainer.is_joining()) begin_count(batch);
}

void ThroughputMonitor::begin_count(const Batch& batch) {
  describe_shape(batch, shape_);
  auto cost = costs_.find(shape_);
  if (cost == costs_.end()) {
    if (costs_.size() == kMostShapes) {
      if (!std::exchange(too_many_shapes_, true))
        log::rank_zero_info(fmt::format(
            "throughput_monitor: batches have more than {} shapes; the operations of further ones are taken "
            "to be in proportion to their elements; hint: flops: false leaves operations out",
            kMostShapes));
      return;
    }
    cost = costs_.emplace(shape_, Cost{.elements = elements_in(batch)}).first;
  }
  if (!cost->second.is_of_epoch) counter_.emplace();
}

void ThroughputMonitor::finish_count() {
  if (!counter_) return;
  const int64_t counted = counter_->count().of_model();
  counter_.reset();
  Cost& cost = costs_.at(shape_);
  cost.is_of_epoch = true;
  // A replayed graph runs no operators.
  if (counted > 0) cost.flops = counted;
}

double ThroughputMonitor::flops_in(const Batch& batch) const {
  if (const auto known = costs_.find(shape_); known != costs_.end()) return static_cast<double>(known->second.flops);
  double flops = 0;
  double elements = 0;
  for (const auto& [shape, cost] : costs_) {
    if (cost.flops == 0) continue;
    flops += static_cast<double>(cost.flops);
    elements += static_cast<double>(cost.elements);
  }
  return elements == 0 ? 0 : flops / elements * static_cast<double>(elements_in(batch));
}

// What is on a device is counted there, and read at logging boundaries.
void ThroughputMonitor::count_tokens_in(const Batch& batch, bool counts) {
  if (options_.count_tokens) {
    const int64_t tokens = options_.count_tokens(batch);
    if (counts) totals_.tokens += tokens;
    return;
  }
  if (!options_.tokens) return;
  if (const at::Tensor* field = batch.find(*options_.tokens)) {
    if (!counts) return;
    const auto add = [](at::Tensor& sum, const at::Tensor& count) { sum = sum.defined() ? sum + count : count; };
    if (at::isIntegralType(field->scalar_type(), /*includeBool=*/false))
      add(counted_, field->ne(kIgnoredTarget).sum());
    else
      totals_.tokens += field->numel();
    if (const at::Tensor* positions = batch.find("positions"); positions != nullptr && positions->dim() == 2) {
      add(padded_, positions->lt(0).sum());
      totals_.places += positions->numel();
    }
    return;
  }
  std::vector<std::string> names;
  for (const auto& [name, tensor] : batch.items()) names.push_back(name);
  throw ConfigError(fmt::format("throughput_monitor.tokens is '{}', which the batch does not have; valid: {}",
                                *options_.tokens, join(names)));
}

void ThroughputMonitor::read_counted() {
  if (counted_.defined()) totals_.tokens += counted_.item<int64_t>();
  if (padded_.defined()) totals_.padding += padded_.item<int64_t>();
  counted_ = padded_ = at::Tensor();
}

void ThroughputMonitor::on_train_batch_end(Trainer& trainer, Module&, const StepOutput&, const Batch& batch, int64_t) {
  finish_count();
  // Another rank of the same pipeline has the same batch, and a batch to join on is nobody's.
  const bool owns_batch =
      !trainer.is_joining() && trainer.strategy().divided_model().owns_outputs() && counts_examples(trainer.strategy());
  if (owns_batch) epoch_samples_ += batch.size();
  count_tokens_in(batch, started_ && owns_batch);
  if (!started_) {
    if (trainer.global_step() - first_step_ >= options_.warmup_steps) start(trainer);
    return;
  }
  totals_.steps += trainer.global_step() - steps_before_;
  if (owns_batch) totals_.samples += batch.size();
  if (options_.flops && !trainer.is_joining()) totals_.flops += flops_in(batch);
  const int64_t every = trainer.options().log_every_n_steps;
  if (trainer.global_step() / every > steps_before_ / every) log(trainer);
}

void ThroughputMonitor::start(Trainer& trainer) {
  wait_for(trainer.device());
  started_ = Clock::now();
  excluded_ = {};
  data_wait_before_ = trainer.data_wait_seconds();
  totals_ = {};
  counted_ = padded_ = at::Tensor();
  boundaries_.assign(1, totals_);
}

void ThroughputMonitor::log(Trainer& trainer) {
  wait_for(trainer.device());
  totals_.seconds = std::chrono::duration<double>(Clock::now() - *started_ - excluded_).count();
  totals_.data_wait = trainer.data_wait_seconds() - data_wait_before_;
  read_counted();
  const Totals& from = boundaries_.front();
  const auto sums = sum_over_ranks(
      trainer, {totals_.seconds - from.seconds, totals_.data_wait - from.data_wait,
                static_cast<double>(totals_.samples - from.samples), static_cast<double>(totals_.tokens - from.tokens),
                totals_.flops - from.flops, static_cast<double>(totals_.places - from.places),
                static_cast<double>(totals_.padding - from.padding)});
  // The mean of the ranks' clocks, which all measure the same steps.
  const double seconds = sums[0] / static_cast<double>(trainer.world_size());
  if (seconds > 0) {
    MetricMap values;
    values["throughput/samples_per_second"] = sums[2] / seconds;
    values["throughput/steps_per_second"] = static_cast<double>(totals_.steps - from.steps) / seconds;
    values["throughput/data_wait_percent"] = 100 * sums[1] / sums[0];
    if (options_.tokens || options_.count_tokens) values["throughput/tokens_per_second"] = sums[3] / seconds;
    if (sums[5] > 0) values["throughput/padding_percent"] = 100 * sums[6] / sums[5];
    if (options_.flops && sums[4] > 0) {
      values["throughput/model_tflops_per_second"] = sums[4] / seconds / 1e12;
      if (peak_) values["throughput/mfu_percent"] = 100 * sums[4] / seconds / *peak_;
    }
    trainer.log_metrics(values);
  }
  boundaries_.push_back(totals_);
  if (static_cast<int64_t>(boundaries_.size()) > options_.window) boundaries_.pop_front();
}

void ThroughputMonitor::on_train_epoch_end(Trainer& trainer, Module&) {
  counter_.reset();
  if (epoch_started_ && trainer.epoch_complete()) log_epoch(trainer);
  epoch_started_.reset();
}

void ThroughputMonitor::log_epoch(Trainer& trainer) {
  wait_for(trainer.device());
  const double own_seconds = std::chrono::duration<double>(Clock::now() - *epoch_started_ - epoch_excluded_).count();
  const auto sums = sum_over_ranks(trainer, {own_seconds, static_cast<double>(epoch_samples_)});
  const double seconds = sums[0] / static_cast<double>(trainer.world_size());
  MetricMap values;
  values["throughput/epoch_seconds"] = seconds;
  values["throughput/epoch_samples"] = sums[1];
  values["throughput/devices"] = static_cast<double>(device_count(trainer));
  if (seconds > 0) {
    values["throughput/epoch_samples_per_second"] = sums[1] / seconds;
    if (options_.one_device_epoch_seconds) values["throughput/speedup"] = *options_.one_device_epoch_seconds / seconds;
  }
  trainer.log_metrics(values);
}

void ThroughputMonitor::on_validation_start(Trainer& trainer, Module&) {
  if ((!started_ && !epoch_started_) || trainer.stage() != Stage::kFit) return;
  wait_for(trainer.device());
  validation_began_ = Clock::now();
}

void ThroughputMonitor::on_validation_end(Trainer& trainer, Module&) {
  if (!validation_began_) return;
  wait_for(trainer.device());
  const auto took = Clock::now() - *validation_began_;
  excluded_ += took;
  epoch_excluded_ += took;
  validation_began_.reset();
}

void ThroughputMonitor::on_exception(Trainer&, Module&, const std::exception_ptr&) { counter_.reset(); }

}  // namespace levin
