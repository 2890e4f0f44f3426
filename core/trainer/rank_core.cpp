#include <levin/core/trainer/rank_core.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/seed.h>
#include <levin/core/comm/communication_error.h>
#include <levin/core/comm/control_plane.h>
#include <levin/core/interfaces/cluster_environment.h>
#include <levin/core/metrics/metric.h>
#include <levin/core/metrics/metric_name.h>
#include <levin/core/precision/full_precision.h>
#include <levin/core/trainer/hooks.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace levin {
namespace {

/// Whether an error may be the consequence of another rank's.
bool is_communication_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const CommunicationError&) {
    return true;
  } catch (const c10::DistError&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

std::string error_message(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& of_libtorch) {
    return of_libtorch.what_without_backtrace();
  } catch (const std::exception& standard) {
    return standard.what();
  } catch (...) {
    return "something was thrown that is no std::exception";
  }
}

std::string RankCore::from_rank_zero(const std::string& value) const {
  return world_size() == 1 ? value : strategy().collective().broadcast_bytes(value, 0);
}

StrategySetup RankCore::strategy_setup() {
  return {.devices = resolved.devices,
          .devices_are_given = resolved.devices_are_given,
          .num_nodes = options.num_nodes,
          .sync_batchnorm = options.sync_batchnorm,
          .mixed_type = resolved.precision->mixed_type(),
          .whereabouts = &whereabouts};
}

void RankCore::begin_fit() {
  progress = {};
  elapsed_before = 0;
  data_wait = {};
  accumulation = options.accumulate_grad_batches;
  train_batch_size.reset();
  forget_metrics();
  if (fits++ > 0) forget_run_directory();
  data_seed = global_seed();
}

std::exception_ptr RankCore::root_cause(const std::exception_ptr& error) const {
  ControlPlane* control = world_size() > 1 ? strategy().control_plane() : nullptr;
  if (control == nullptr) return error;
  // A broken collective is most often a consequence; it takes a while until an end without a word is noticed.
  constexpr auto kPatience = std::chrono::seconds(4);
  const auto failure = control->failure_of_other(is_communication_error(error) ? kPatience : std::chrono::seconds(0));
  if (!failure || !is_communication_error(error)) return error;
  return std::make_exception_ptr(RankFailedError(*failure));
}

std::pair<bool, bool> RankCore::any_rank(bool first, bool second) const {
  const ProfilerSpan span(profiler, "any_rank");
  at::Tensor answers = at::tensor({first ? 1.0 : 0.0, second ? 1.0 : 0.0}, at::kDouble).to(device());
  strategy().collective().all_reduce(answers, ReduceOp::kMax)->wait();
  const at::Tensor on_host = answers.cpu();
  const double* any = on_host.const_data_ptr<double>();
  return {any[0] > 0, any[1] > 0};
}

void RankCore::agree_on_stop() {
  if (world_size() == 1) return;
  const ProfilerSpan span(profiler, "agree_on_stop");
  for (const std::string& wish : strategy().collective().gather_bytes(stop_wish)) {
    if (wish.empty()) continue;
    stop_requested = true;
    stop_reason = wish;
    return;
  }
}

RankCore::RankCore(Trainer& trainer, TrainerOptions given_options)
    : options(std::move(given_options)), resolved(resolve(options)), trainer_(trainer) {
  accumulation = options.accumulate_grad_batches;
  set_callbacks(resolved.callbacks);
  config = schema_of<TrainerOptions>().dump(options);
}

RankCore::~RankCore() {
  if (user_module != nullptr) user_module->attach(nullptr);
}

void RankCore::set_callbacks(std::vector<std::shared_ptr<Callback>> all) {
  sort_callbacks(all);
  callbacks = std::move(all);
  first_after_metrics = first_checkpointer = 0;
  for (const auto& callback : callbacks) {
    const bool checkpointer = dynamic_cast<Checkpointer*>(callback.get()) != nullptr;
    if (!checkpointer) ++first_checkpointer;
    if (!checkpointer && !callback->runs_after_metrics()) ++first_after_metrics;
  }
}

std::vector<Checkpointer*> RankCore::checkpointers() const {
  std::vector<Checkpointer*> found;
  for (const auto& callback : callbacks)
    if (auto* checkpointer = dynamic_cast<Checkpointer*>(callback.get())) found.push_back(checkpointer);
  return found;
}

double RankCore::elapsed_seconds() const {
  if (running == RunningStage::kIdle || stage != Stage::kFit) return progress.elapsed;
  return elapsed_before + std::chrono::duration<double>(std::chrono::steady_clock::now() - fit_started).count();
}

std::optional<int64_t> RankCore::estimated_steps() const {
  std::optional<int64_t> steps = resolved.max_steps;
  if (resolved.max_epochs && train_batches) {
    const int64_t by_epochs = accumulation.steps(*resolved.max_epochs, *train_batches);
    steps = steps ? std::min(*steps, by_epochs) : by_epochs;
  }
  return steps;
}

// ---- Logging

template <class Value>
void RankCore::log_value(std::string_view name, Value&& value, const LogOptions& log_options) {
  if (active_metrics == nullptr)
    throw Error("log",
                fmt::format("'{}' was logged where nothing is collected; hint: log from a step or from a hook during "
                            "training or evaluation",
                            name));
  if (muted || !strategy().owns_outputs()) return;
  if (!strategy().outputs_everywhere()) {
    // The rank that shows it may be another one.
    LogOptions for_all = log_options;
    for_all.sync_dist = true;
    for_all.rank_zero_only = false;
    return active_metrics->log(name, value, for_all);
  }
  if (log_options.rank_zero_only && !is_global_zero()) return;
  active_metrics->log(name, value, log_options);
}

void RankCore::log(std::string_view name, const at::Tensor& value, const LogOptions& log_options) {
  log_value(name, value, log_options);
}
void RankCore::log(std::string_view name, double value, const LogOptions& log_options) {
  log_value(name, value, log_options);
}
void RankCore::log(std::string_view name, metrics::Metric& metric, const LogOptions& log_options) {
  log_value(name, metric, log_options);
}

const MetricMap& RankCore::callback_metrics() {
  if (active_metrics == nullptr) return metrics_cache_;
  const auto remember = [this](const metrics::Collector::Value& value) {
    metrics_cache_[value.name] = value.value;
    if (value.name != value.short_name) metrics_cache_[value.short_name] = value.value;
  };
  active_metrics->visit_step(remember, /*all=*/true);
  if (epoch_values_visible) active_metrics->visit_epoch(remember);
  return metrics_cache_;
}

MetricMap RankCore::progress_bar_metrics(bool wait_for_device) {
  if (active_metrics != nullptr && (wait_for_device || !active_metrics->on_device())) {
    const auto remember = [this](const metrics::Collector::Value& value) {
      if (value.prog_bar) bar_cache_[value.name] = value.value;
    };
    active_metrics->visit_step(remember, /*all=*/true);
    if (epoch_values_visible) active_metrics->visit_epoch(remember);
  }
  return bar_cache_;
}

void RankCore::append_to_row(const std::string& name, double value) {
  // Slots of the row are used again, so that a boundary allocates nothing once all names are known.
  if (row_size_ == row_.size()) row_.emplace_back();
  row_[row_size_].name = name;
  row_[row_size_].value = value;
  ++row_size_;
}

void RankCore::add_to_row(const MetricMap& values) {
  for (const auto& [name, value] : values) {
    metrics::check_metric_name(name);
    metrics_cache_[name] = value;
    append_to_row(name, value);
  }
}

void RankCore::emit_row() {
  if (row_size_ > 0 && running != RunningStage::kSanityCheck && is_global_zero())
    for (const auto& logger : loggers())
      call_user(*this, "log_metrics", *logger, [&] {
        logger->log_metrics({row_.data(), row_size_}, progress.global_step, progress.epoch);
      });
  row_size_ = 0;
}

void RankCore::log_step_row() {
  const Activity activity(*this, "log_metrics");
  if (world_size() > 1) train_metrics.synchronize_step(strategy().collective(), !muted && strategy().owns_outputs());
  train_metrics.visit_step([this](const metrics::Collector::Value& value) {
    if (value.prog_bar) bar_cache_[value.name] = value.value;
    if (value.logger) append_to_row(value.name, value.value);
  });
  train_metrics.end_step();
  emit_row();
}

void RankCore::log_epoch_row(metrics::Collector& collector) {
  const Activity activity(*this, "log_metrics");
  collector.visit_epoch([this](const metrics::Collector::Value& value) {
    metrics_cache_[value.name] = value.value;
    if (value.name != value.short_name) metrics_cache_[value.short_name] = value.value;
    if (value.prog_bar) bar_cache_[value.name] = value.value;
    if (value.logger) append_to_row(value.name, value.value);
  });
  emit_row();
}

// ---- Files

const std::string& RankCore::run_directory() {
  if (!run_directory_.empty() || !resolved.writes_files || options.fast_dev_run.batches() > 0) return run_directory_;
  if (!is_global_zero()) return run_directory_;
  FileSystem& files = FileSystem::current();
  const std::string& root = options.default_root_dir;
  files.create_directories(root);
  int64_t next = 0;
  for (const auto& name : files.list(root)) {
    if (!name.starts_with("version_")) continue;
    int64_t number = 0;
    const auto [end, error] = std::from_chars(name.data() + 8, name.data() + name.size(), number);
    if (error == std::errc() && end == name.data() + name.size()) next = std::max(next, number + 1);
  }
  // Another run may claim a number at the same time: making the folder is the claim.
  while (!files.create_directory(fmt::format("{}/version_{}", root, next))) ++next;
  run_directory_ = fmt::format("{}/version_{}", root, next);
  if (config.is_mapping()) {
    const auto file = files.create(run_directory_ + "/config.yaml");
    file->append(config.to_yaml(/*with_origins=*/true));
    file->close();
  }
  return run_directory_;
}

void RankCore::share_run_directory() {
  const std::string& made = run_directory();
  run_directory_ = from_rank_zero(made);
}

void RankCore::forget_run_directory() {
  run_directory_.clear();
  loggers_started_ = false;
}

void RankCore::start_loggers(const std::string& resumed_from) {
  if (loggers().empty() || !is_global_zero()) return;
  const std::string& directory = run_directory();
  for (const auto& logger : loggers())
    logger->start({directory, directory.substr(directory.rfind('/') + 1), resumed_from});
  if (loggers_started_) return;
  loggers_started_ = true;
  Config hyperparameters = Config::mapping();
  if (user_module != nullptr && user_module->recipe_options().is_mapping())
    hyperparameters.set("model", user_module->recipe_options());
  if (data != nullptr && data->recipe_options().is_mapping()) hyperparameters.set("data", data->recipe_options());
  hyperparameters.set("config", config);
  for (const auto& logger : loggers()) logger->log_hyperparameters(hyperparameters);
}

// ---- Data

at::Tensor RankCore::in_memory_format(const at::Tensor& tensor) const {
  if (!resolved.channels_last) return tensor;
  if (tensor.dim() == 4) return tensor.contiguous(at::MemoryFormat::ChannelsLast);
  return tensor.dim() == 5 ? tensor.contiguous(at::MemoryFormat::ChannelsLast3d) : tensor;
}

Batch RankCore::transfer(Batch batch, int64_t dataloader_idx, const std::optional<Batch>& next) {
  const Activity activity(*this, "transfer_batch");
  const auto untouched = [this] {
    return module().untouched_batches() + (data == nullptr ? 0 : data->untouched_batches());
  };
  // Before and after the transfer, of the data module and of the module.
  const auto run_before = [&](auto& object) {
    call_user(*this, "on_before_batch_transfer", object,
              [&] { batch = object.on_before_batch_transfer(std::move(batch), dataloader_idx); });
  };
  const auto run_after = [&](auto& object) {
    call_user(*this, "on_after_batch_transfer", object,
              [&] { batch = object.on_after_batch_transfer(std::move(batch), dataloader_idx); });
  };
  const int64_t before = untouched();
  if (data != nullptr) run_before(*data);
  run_before(module());
  // A hook may write to a batch through a pointer, which nobody would notice.
  const bool may_copy_ahead = untouched() - before == (data == nullptr ? 1 : 2);
  call_user(*this, "transfer_batch_to_device", module(),
            [&] { batch = module().transfer_batch_to_device(std::move(batch), device(), dataloader_idx); });
  // Before all that this batch computes.
  if (next && prefetch_ != nullptr && may_copy_ahead)
    prefetch_->start(*next);
  else
    drop_early_copies();
  for (auto& [name, tensor] : batch.items())
    if (tensor.defined() && tensor.is_floating_point()) tensor = in_memory_format(precision().convert_input(tensor));
  if (data != nullptr) run_after(*data);
  run_after(module());
  return batch;
}

void RankCore::use_early_copies(Batch& batch, const at::Device& to) {
  if (prefetch_ == nullptr || to != device()) return;
  for (auto& [name, tensor] : batch.items()) {
    if (!tensor.defined()) continue;
    if (at::Tensor copy = prefetch_->take(tensor); copy.defined()) tensor = std::move(copy);
  }
}

DataLoaderPosition RankCore::position(int64_t epoch, int64_t batch) const {
  return {.seed = data_seed, .epoch = epoch, .batch = batch, .rank = data_rank(), .world_size = data_ranks()};
}

DataLoaderPosition RankCore::train_position() const {
  DataLoaderPosition here = position(progress.epoch, progress.batch);
  here.first_example = progress.first_example;
  if (!options.use_distributed_sampler) {
    here.rank = 0;
    here.world_size = 1;
  }
  return here;
}

// ---- Manual optimization

void RankCore::manual_backward(const at::Tensor& loss, const BackwardOptions& backward) {
  const FullPrecision outside_of_autocast;  // of the forward that training_step runs in
  if (loss.numel() != 1)
    throw Error("module", fmt::format("manual_backward() needs a scalar loss; got shape {}; hint: take its mean or sum",
                                      c10::str(loss.sizes())));
  if (!loss.requires_grad())
    throw Error("module",
                "the loss given to manual_backward() does not depend on any parameter that requires a gradient; hint: "
                "it may have been detached, or come from parameters of another optimizer than the one toggled");
  Hooks hooks(*this);
  at::Tensor start = loss;
  hooks.call("on_before_backward", &Callback::on_before_backward, &Module::on_before_backward, start);
  {
    const Activity activity(*this, "backward");
    if (loss_weight != 1) start = start * loss_weight;
    strategy().manual_backward(precision().scale_loss(start), backward);
  }
  const bool toggled = std::any_of(optimizer_list.begin(), optimizer_list.end(),
                                   [](const OptimizerHandle* optimizer) { return optimizer->is_toggled(); });
  for (OptimizerHandle* optimizer : optimizer_list)
    if (optimizer->is_toggled() || !toggled) optimizer->note_backward();
  hooks.call("on_after_backward", &Callback::on_after_backward, &Module::on_after_backward);
}

at::Tensor RankCore::all_gather(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const at::Tensor own = tensor.detach().contiguous();
  std::vector<int64_t> shape = own.sizes().vec();
  shape.insert(shape.begin(), world_size());
  at::Tensor all = at::empty(shape, own.options());
  strategy().collective().all_gather(all, own)->wait();
  return all;
}

void RankCore::clip_gradients(OptimizerHandle& optimizer, double value, ClipAlgorithm algorithm, bool in_step) {
  precision().unscale(optimizer.optimizer());
  const auto& parameters = optimizer.parameters();
  const auto reduce = [this](at::Tensor norm) { return strategy().reduce_norm(std::move(norm), 2); };
  switch (algorithm) {
    case ClipAlgorithm::kValue:
      return optim::clip_by_value(parameters, value);
    case ClipAlgorithm::kAdaptive:
      return strategy().clip_adaptively(parameters, value);
    case ClipAlgorithm::kNorm:
      break;
  }
  if (!in_step || !optimizer.divides_in_step()) {
    optim::clip_by_norm(parameters, value, reduce);
  } else if (const at::Tensor norm = optim::gradient_norm(parameters, reduce); norm.defined()) {
    optimizer.divide_in_step(optim::clip_divisor(norm, value));
  }
}

}  // namespace levin
