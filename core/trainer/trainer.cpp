#include <levin/core/trainer/trainer.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/image_bytes.h>
#include <levin/core/base/log.h>
#include <levin/core/base/signals.h>
#include <levin/core/base/type_name.h>
#include <levin/core/checkpoint/checkpoint.h>
#include <levin/core/export/export_model.h>
#include <levin/core/export/graph_def.h>
#include <levin/core/interchange/weights.h>
#include <levin/core/interfaces/load_weights.h>
#include <levin/core/interfaces/saved_model.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/nn/adapters.h>
#include <levin/core/precision/precision.h>
#include <levin/core/trainer/call_scope.h>
#include <levin/core/trainer/example_batch.h>
#include <levin/core/trainer/local_hooks.h>
#include <levin/core/trainer/memory_summary.h>
#include <levin/core/trainer/metrics_table.h>
#include <levin/core/trainer/thread_rank.h>
#include <levin/core/trainer/trainer_components.h>
#include <levin/core/trainer/trainer_run.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <span>

namespace levin {

Trainer::Trainer(TrainerOptions options) : components_(std::make_unique<TrainerComponents>(*this, options)) {}
Trainer::~Trainer() = default;

// ---- Calls

RunResult Trainer::run(const RunRequest& request) {
  if (request.module == nullptr)
    throw Error("trainer", fmt::format("{} needs a module; got nullptr", to_string(request.stage)));
  const CallScope call(components_->at_work, request.tune ? "tune" : to_string(request.stage));
  const auto run_thread_rank = [this](const std::shared_ptr<Strategy>& strategy, const RunRequest& of_call,
                                      int64_t local_rank) {
    ThreadRank(*components_, strategy, of_call).run(local_rank);
  };
  last_module_ = request.module;
  last_data_ = request.data;
  return TrainerRun(*components_, request).launch(run_thread_rank);
}

void Trainer::fit(std::shared_ptr<Module> module, std::shared_ptr<DataModule> data, const std::string& ckpt) {
  run({.stage = Stage::kFit, .module = std::move(module), .data = std::move(data), .ckpt = ckpt});
}

void Trainer::fit(std::shared_ptr<Module> module, DataLoader train, DataLoaders val, const std::string& ckpt) {
  run({.stage = Stage::kFit,
       .module = std::move(module),
       .loaders = {.train = std::move(train), .val = std::move(val)},
       .ckpt = ckpt});
}

std::vector<std::string> Trainer::tune(std::shared_ptr<Module> module, std::shared_ptr<DataModule> data,
                                       const std::string& ckpt) {
  return run({.stage = Stage::kFit, .module = std::move(module), .data = std::move(data), .ckpt = ckpt, .tune = true})
      .reports;
}

std::vector<std::string> Trainer::tune(std::shared_ptr<Module> module, DataLoader train, DataLoaders val,
                                       const std::string& ckpt) {
  return run({.stage = Stage::kFit,
              .module = std::move(module),
              .loaders = {.train = std::move(train), .val = std::move(val)},
              .ckpt = ckpt,
              .tune = true})
      .reports;
}

std::vector<MetricMap> Trainer::evaluate(const RunRequest& request, bool verbose) {
  std::vector<MetricMap> results = run(request).metrics;
  const bool has_metrics = std::ranges::any_of(results, [](const MetricMap& of_loader) { return !of_loader.empty(); });
  if (verbose && has_metrics) {
    std::string table = metrics_table(results);
    table.pop_back();  // a message ends its line itself
    log::rank_zero_info(fmt::format("{}\n{}", to_string(request.stage), table));
  }
  return results;
}

std::vector<MetricMap> Trainer::validate(std::shared_ptr<Module> module, std::shared_ptr<DataModule> data,
                                         const std::string& ckpt, bool verbose) {
  return evaluate({.stage = Stage::kValidate, .module = std::move(module), .data = std::move(data), .ckpt = ckpt},
                  verbose);
}

std::vector<MetricMap> Trainer::validate(std::shared_ptr<Module> module, DataLoaders loaders, const std::string& ckpt,
                                         bool verbose) {
  return evaluate(
      {.stage = Stage::kValidate, .module = std::move(module), .loaders = {.val = std::move(loaders)}, .ckpt = ckpt},
      verbose);
}

std::vector<MetricMap> Trainer::test(std::shared_ptr<Module> module, std::shared_ptr<DataModule> data,
                                     const std::string& ckpt, bool verbose) {
  return evaluate({.stage = Stage::kTest, .module = std::move(module), .data = std::move(data), .ckpt = ckpt}, verbose);
}

std::vector<MetricMap> Trainer::test(std::shared_ptr<Module> module, DataLoaders loaders, const std::string& ckpt,
                                     bool verbose) {
  return evaluate(
      {.stage = Stage::kTest, .module = std::move(module), .loaders = {.test = std::move(loaders)}, .ckpt = ckpt},
      verbose);
}

std::vector<MetricMap> Trainer::test(const std::string& ckpt, bool verbose) {
  if (last_module_ == nullptr)
    throw Error("trainer", "test was given no module, and the trainer has none yet; hint: call fit first");
  return evaluate({.stage = Stage::kTest, .module = last_module_, .data = last_data_, .ckpt = ckpt}, verbose);
}

std::vector<std::vector<Batch>> Trainer::predict(std::shared_ptr<Module> module, std::shared_ptr<DataModule> data,
                                                 const std::string& ckpt, std::optional<bool> return_predictions) {
  return run({.stage = Stage::kPredict,
              .module = std::move(module),
              .data = std::move(data),
              .ckpt = ckpt,
              .return_predictions = return_predictions})
      .predictions;
}

std::vector<std::vector<Batch>> Trainer::predict(std::shared_ptr<Module> module, DataLoaders loaders,
                                                 const std::string& ckpt, std::optional<bool> return_predictions) {
  return run({.stage = Stage::kPredict,
              .module = std::move(module),
              .loaders = {.predict = std::move(loaders)},
              .ckpt = ckpt,
              .return_predictions = return_predictions})
      .predictions;
}

namespace {

/// Loads weights of any kind into a module that has its layers.
void load_weights_into(Module& module, const std::string& path, bool strict) {
  if (is_levin_checkpoint(path)) {
    State tree = read_checkpoint(path, {"model", "module", "hyper_parameters"});
    if (const State* extra = tree.find("module")) module.on_load_checkpoint(*extra);
    if (strict) {
      keep_first_names(tree["model"], module);
      return load_saved_model(
          module, {.tensors = tree["model"], .path = path, .hyper_parameters = tree.find("hyper_parameters")},
          [&](const State& tensors) { load_named_tensors(module, tensors); });
    }
  }
  LoadWeightsOptions options = checkpoint_weights(module, path);
  options.strict = strict;
  const WeightReport report = levin::load_weights(module, options);
  log::rank_zero_info(fmt::format("{}: {}", path, report.text()));
}

}  // namespace

void Trainer::begin_local(const std::shared_ptr<Module>& module, std::string_view call) {
  if (module == nullptr) throw Error("trainer", fmt::format("{} needs a module; got nullptr", call));
  components_->context.require_free(*module, call);
  CallScope::begin(components_->at_work, call);
  components_->context.attach(module);
}

namespace {

/// Makes the layers of the module of the call, and gives them their weights.
void load_attached(TrainerComponents& components, const std::string& ckpt) {
  Module& module = *components.state.module;
  const std::string found = components.checkpoints.find_weights(ckpt);
  run_local_hooks(components, [&] {
    configure_model(components);
    if (!found.empty()) return load_weights_into(module, found, /*strict=*/true);
    const LoadWeightsOptions& initial = components.options.given.init_from;
    // As in validate: what this trainer has trained is not undone.
    if (takes_initial_weights(components) && components.state.progress.total_batches == 0)
      log::rank_zero_info(fmt::format("init_from {}: {}", initial.path, levin::load_weights(module, initial).text()));
  });
}

ExportReport export_attached(TrainerComponents& components, const Batch& example, const std::string& path,
                             const std::string& ckpt, const ExportOptions& options) {
  load_attached(components, ckpt);
  return levin::export_model(*components.state.module, example, path, options);
}

}  // namespace

void Trainer::load_weights(std::shared_ptr<Module> module, const std::string& ckpt) {
  begin_local(module, "load_weights");
  const CallScope call(components_->at_work, std::adopt_lock);
  load_attached(*components_, ckpt);
}

void Trainer::run_on_ranks(std::shared_ptr<Module> module, const std::string& ckpt,
                           const std::function<void(Trainer& rank)>& work) {
  run({.stage = Stage::kPredict,
       .module = std::move(module),
       .ckpt = ckpt,
       .is_driven = true,
       .steps = [&](TrainerComponents& rank) { work(rank.trainer); }});
}

ExportReport Trainer::export_model(std::shared_ptr<Module> module, const Batch& example, const std::string& path,
                                   const std::string& ckpt, const ExportOptions& options) {
  begin_local(module, "export_model");
  const CallScope call(components_->at_work, std::adopt_lock);
  return is_global_zero() ? export_attached(*components_, example, path, ckpt, options) : ExportReport();
}

ExportReport Trainer::export_model(std::shared_ptr<Module> module, std::shared_ptr<DataModule> data,
                                   const std::string& path, const std::string& ckpt, const ExportOptions& options) {
  begin_local(module, "export_model");
  const CallScope call(components_->at_work, std::adopt_lock);
  if (!is_global_zero()) return {};
  components_->data.begin_call(data, {});
  const ExampleBatch example = find_example_batch(*module, data.get());
  ExportReport report = export_attached(*components_, example.batch, path, ckpt, options);
  example.set_up->tear_down();
  return report;
}

// ---- Where training is

int64_t Trainer::current_epoch() const { return components_->state.progress.epoch; }
int64_t Trainer::global_step() const { return components_->state.progress.global_step; }
int64_t Trainer::batch_idx() const { return components_->state.progress.batch; }
int64_t Trainer::total_batches() const { return components_->state.progress.total_batches; }
bool Trainer::epoch_complete() const { return components_->state.progress.last_batch_done; }
int64_t Trainer::moment() const { return components_->state.progress.moment(); }
int64_t Trainer::moment_before_epoch() const { return components_->state.progress.moment_before_epoch; }
bool Trainer::epoch_cut_short() const { return components_->state.progress.cut_short; }
bool Trainer::validates() const { return components_->data.validates(); }
bool Trainer::validated() const { return components_->state.progress.validated; }
std::optional<int64_t> Trainer::num_training_batches() const { return components_->data.train_batches(); }
std::vector<int64_t> Trainer::num_evaluation_batches() const { return components_->state.evaluation_batches; }
std::optional<int64_t> Trainer::estimated_steps() const { return components_->optimizers.estimated_steps(); }
std::optional<int64_t> Trainer::max_epochs() const { return components_->options.max_epochs; }
bool Trainer::resumed() const { return components_->state.resumed; }
RunningStage Trainer::running_stage() const { return components_->state.running; }
Stage Trainer::stage() const { return components_->state.stage; }
TrainerStatus Trainer::status() const { return components_->state.status; }
double Trainer::elapsed_seconds() const { return components_->stop.elapsed_seconds(); }
double Trainer::data_wait_seconds() const { return std::chrono::duration<double>(components_->data.waited()).count(); }

// ---- Metrics

const MetricMap& Trainer::callback_metrics() const { return components_->logger.callback_metrics(); }
std::optional<int64_t> Trainer::moment_of_metric(const std::string& name) const {
  return components_->logger.moment_of_metric(name);
}
void Trainer::combine_step_metrics() { components_->logger.combine_step_metrics(); }
MetricMap Trainer::logged_metrics() const { return components_->logger.logged_metrics(); }
MetricMap Trainer::progress_bar_metrics(bool wait_for_device) const {
  return components_->logger.progress_bar_metrics(wait_for_device);
}
void Trainer::log_metrics(const MetricMap& values) { components_->logger.add_to_row(values); }

void Trainer::log_image(const std::string& name, const at::Tensor& image) {
  if (!is_global_zero() || sanity_checking() || loggers().empty()) return;
  const at::Tensor bytes = image_bytes(image);
  components_->logger.give_loggers(
      name, [&](Logger& logger, const std::string& full) { logger.log_image(full, bytes, global_step()); });
}

void Trainer::log_text(const std::string& name, const std::string& text) {
  if (!is_global_zero() || sanity_checking()) return;
  components_->logger.give_loggers(
      name, [&](Logger& logger, const std::string& full) { logger.log_text(full, text, global_step()); });
}

void Trainer::log_histogram(const std::string& name, const at::Tensor& values) {
  if (!is_global_zero() || sanity_checking() || loggers().empty()) return;
  const at::Tensor numbers = values.detach().to(at::kCPU, at::kDouble).reshape({-1}).contiguous();
  const std::span<const double> span(numbers.const_data_ptr<double>(), static_cast<size_t>(numbers.numel()));
  components_->logger.give_loggers(
      name, [&](Logger& logger, const std::string& full) { logger.log_histogram(full, span, global_step()); });
}

void Trainer::log_graph(const Batch& example) {
  if (!is_global_zero() || loggers().empty()) return;
  if (world_size() > 1 && strategy().divided_model().divides_state())
    throw Error("trainer", fmt::format("log_graph cannot trace a model that the strategy '{}' divides over ranks",
                                       strategy().name()));
  const std::string graph = graph_def(
      module(), [this](const Batch& batch) { return module().export_step(batch); }, example);
  for (const auto& logger : loggers()) logger->log_graph(graph);
}

void Trainer::log_rank_value(std::string_view name, double value, const LogOptions& options) {
  components_->logger.train_metrics().log(name, value, options);
}

void Trainer::log_last_row(const std::function<void()>& log) {
  components_->logger.set_over(false);
  components_->logger.train_metrics().begin({.training_batches = components_->state.progress.moment()});
  log();
  components_->logger.log_step_row();
  components_->logger.set_over(true);
}

// ---- Who is who

int64_t Trainer::global_rank() const { return strategy().rank(); }
int64_t Trainer::world_size() const { return strategy().world_size(); }
RankMesh Trainer::mesh() const { return RankMesh(strategy().ranks()); }
const at::Device& Trainer::device() const { return strategy().root_device(); }
const std::vector<at::Device>& Trainer::devices() const { return components_->options.devices; }
bool Trainer::is_joining() const { return components_->state.joining; }
Strategy& Trainer::strategy() const { return *components_->options.strategy; }
Precision& Trainer::precision() const { return *components_->options.precision; }

Module& Trainer::module() const {
  Module* const module = components_->state.module.get();
  if (module == nullptr) throw Error("trainer", "the trainer has no module yet; hint: call fit first");
  return *module;
}

DataModule* Trainer::data_module() const { return components_->data.data_module(); }
const DataLoader& Trainer::train_dataloader() const { return components_->data.loaders().train; }
int64_t Trainer::train_ranks() const { return components_->data.train_ranks(); }
const std::vector<std::shared_ptr<Callback>>& Trainer::callbacks() const { return components_->callbacks.all(); }
const std::vector<std::shared_ptr<Logger>>& Trainer::loggers() const { return components_->options.loggers; }
const std::vector<OptimizerHandle*>& Trainer::optimizers() const { return components_->optimizers.all(); }
const optim::ParameterNames& Trainer::parameter_names() const { return components_->optimizers.parameter_names(); }
Profiler* Trainer::profiler() const { return components_->tracer.profiler(); }
std::vector<std::pair<std::string, double>> Trainer::learning_rates() const {
  return components_->optimizers.learning_rates();
}
const TrainerOptions& Trainer::options() const { return components_->options.given; }
void Trainer::set_config(const Config& config) { components_->options.config = config; }

Checkpointer* Trainer::checkpoint_callback() const {
  const auto found = components_->callbacks.checkpointers();
  return found.empty() ? nullptr : found.front();
}

// ---- Forwards outside of steps

std::shared_ptr<void> Trainer::autocast() { return std::make_shared<ForwardScope>(precision()); }
std::shared_ptr<void> Trainer::full_parameters(const torch::nn::Module& module) {
  return strategy().divided_model().full_parameters(module);
}

// ---- Files and memory

std::string Trainer::run_directory() const { return components_->logger.run_directory(); }

bool Trainer::is_saving(const std::string& path) const { return components_->checkpoints.is_saving(path); }

void Trainer::save_checkpoint(const std::string& path, const CheckpointEvent& event) {
  module();
  components_->checkpoints.save_or_defer(path, event);
}

std::string Trainer::memory_summary() const {
  return levin::memory_summary(strategy(), module(), components_->optimizers);
}

// ---- Control

void Trainer::request_stop(const std::string& reason) { components_->stop.request(reason); }
void Trainer::request_pause(const std::string& reason) { components_->stop.request_pause(reason); }
void Trainer::set_stop_token(std::stop_token token) { components_->stop.set_token(std::move(token)); }
void Trainer::set_stop_reason(const Callback& who, const std::string& reason) {
  components_->stop.set_reason(who, reason);
}
bool Trainer::fit_interrupted() const { return components_->stop.is_interrupted(); }
bool Trainer::fit_ended() const { return components_->stop.has_ended(); }
bool Trainer::stop_requested() const { return components_->stop.is_requested(); }
bool Trainer::interrupted() const { return interrupt_signal() != 0; }
int Trainer::interrupt_signal() const { return SignalScope::received(); }

void Trainer::set_accumulate_grad_batches(optim::AccumulationSchedule schedule) {
  if (schedule.fewest_batches() < 1)
    throw Error("trainer", fmt::format("set_accumulate_grad_batches was given {} batches; valid: at least 1",
                                       schedule.fewest_batches()));
  if (!schedule.is_off() && !module().automatic_optimization)
    throw ConfigError(
        "accumulation of gradients by the trainer does not work with manual optimization; hint: count batches in "
        "training_step");
  components_->optimizers.set_accumulation(std::move(schedule));
}

int64_t Trainer::accumulate_grad_batches() const { return components_->optimizers.accumulation().at(current_epoch()); }

void Trainer::set_train_batch_size(int64_t batch_size) {
  components_->data.set_train_batch_size(batch_size);
  if (running_stage() == RunningStage::kTrain) components_->optimizers.restart_schedules();
}

double Trainer::learning_rate() const { return components_->optimizers.learning_rate(); }
void Trainer::set_learning_rate(double rate) { components_->optimizers.set_learning_rate(rate); }
void Trainer::restart_schedules(double rate) { components_->optimizers.restart_schedules(rate); }

void Trainer::replace_schedulers(std::shared_ptr<optim::Scheduler> scheduler, Interval interval) {
  components_->optimizers.replace_schedulers(std::move(scheduler), interval);
}

void Trainer::replay_training_data() { components_->fit.replay_training_data(); }

namespace detail {

Config saved_hyper_parameters(const std::string& path) {
  if (FileSystem::current().exists(path) && !is_levin_checkpoint(path))
    throw Error("checkpoint", fmt::format("{} is not a checkpoint of Levin, which alone has the options of the module; "
                                          "hint: load_from_checkpoint<M>(path, options)",
                                          path));
  const State tree = read_checkpoint(path, {"hyper_parameters"});
  const std::string& options = tree.at("hyper_parameters").at("options").as_string();
  if (options.empty())
    throw Error("checkpoint",
                fmt::format("the options of the module in '{}' were not recorded; hint: make modules with "
                            "levin::make, or call load_from_checkpoint<M>(path, options)",
                            path));
  return Config::parse(options, {.source = path});
}

/// Adds those that the option `adapters` gave the module of the checkpoint.
static void add_saved_adapters(Module& module, const std::string& path) {
  if (!is_levin_checkpoint(path)) return;
  const State tree = read_checkpoint(path, {"hyper_parameters"});
  const State* const of_module = tree.find("hyper_parameters");
  const State* const saved = of_module != nullptr ? of_module->find("adapters") : nullptr;
  if (saved == nullptr) return;
  AdapterOptions options;
  schema_of<AdapterOptions>().apply(options, Config::parse(saved->as_string(), {.source = path}), "adapters");
  if (!has_adapter(module, options)) add_adapters(module, options);
}

void load_checkpoint_weights(Module& module, const std::string& path, bool strict) {
  try {
    module.configure_model();
  } catch (...) {
    throw Error("checkpoint",
                fmt::format("configure_model of {} failed without a trainer and its data; got {}; hint: where it needs "
                            "them, give the module and the checkpoint to a call: trainer.test(module, data, \"{}\")",
                            short_class_name(typeid(module)), error_message(std::current_exception()), path));
  }
  add_saved_adapters(module, path);
  load_weights_into(module, path, strict);
}

void throw_other_data_module(const DataModule* data, const std::type_info& needed) {
  throw Error("trainer",
              fmt::format("the module or a callback needs a data module of type {}; got {}; hint: give it to "
                          "the call, as in fit(module, data)",
                          demangled(needed.name()), data == nullptr ? "none" : demangled(typeid(*data).name())));
}

}  // namespace detail
}  // namespace levin
