#include <levin/core/trainer/trainer.h>

#include <levin/core/base/error.h>
#include <levin/core/base/image_bytes.h>
#include <levin/core/base/signals.h>
#include <levin/core/checkpoint/checkpoint.h>
#include <levin/core/comm/control_plane.h>
#include <levin/core/interfaces/cluster_environment.h>
#include <levin/core/optim/scheduler.h>
#include <levin/core/trainer/memory_summary.h>
#include <levin/core/trainer/rank_core.h>
#include <levin/core/trainer/session.h>
#include <levin/core/trainer/trainer_parts.h>

#include <fmt/format.h>
#include <torch/optim/optimizer.h>

#include <typeinfo>

namespace levin {

Trainer::Trainer(TrainerOptions options) : parts_(std::make_unique<TrainerParts>(*this, std::move(options))) {}
Trainer::~Trainer() = default;

void Trainer::fit(std::shared_ptr<Module> module, std::shared_ptr<DataModule> data, const std::string& ckpt) {
  parts_->session.fit({.stage = Stage::kFit, .module = std::move(module), .data = std::move(data), .ckpt = ckpt});
}

void Trainer::fit(std::shared_ptr<Module> module, DataLoader train, DataLoaders val, const std::string& ckpt) {
  parts_->session.fit({.stage = Stage::kFit,
                       .module = std::move(module),
                       .given = {.train = std::move(train), .val = std::move(val)},
                       .ckpt = ckpt});
}

std::vector<std::string> Trainer::tune(std::shared_ptr<Module> module, std::shared_ptr<DataModule> data,
                                       const std::string& ckpt) {
  return parts_->session.tune(
      {.stage = Stage::kFit, .module = std::move(module), .data = std::move(data), .ckpt = ckpt, .tune = true});
}

std::vector<std::string> Trainer::tune(std::shared_ptr<Module> module, DataLoader train, DataLoaders val,
                                       const std::string& ckpt) {
  return parts_->session.tune({.stage = Stage::kFit,
                               .module = std::move(module),
                               .given = {.train = std::move(train), .val = std::move(val)},
                               .ckpt = ckpt,
                               .tune = true});
}

std::vector<MetricMap> Trainer::validate(std::shared_ptr<Module> module, std::shared_ptr<DataModule> data,
                                         const std::string& ckpt) {
  return parts_->session.evaluate(
      {.stage = Stage::kValidate, .module = std::move(module), .data = std::move(data), .ckpt = ckpt});
}

std::vector<MetricMap> Trainer::validate(std::shared_ptr<Module> module, DataLoaders loaders, const std::string& ckpt) {
  return parts_->session.evaluate(
      {.stage = Stage::kValidate, .module = std::move(module), .given = {.val = std::move(loaders)}, .ckpt = ckpt});
}

std::vector<MetricMap> Trainer::test(std::shared_ptr<Module> module, std::shared_ptr<DataModule> data,
                                     const std::string& ckpt) {
  return parts_->session.evaluate(
      {.stage = Stage::kTest, .module = std::move(module), .data = std::move(data), .ckpt = ckpt});
}

std::vector<MetricMap> Trainer::test(std::shared_ptr<Module> module, DataLoaders loaders, const std::string& ckpt) {
  return parts_->session.evaluate(
      {.stage = Stage::kTest, .module = std::move(module), .given = {.test = std::move(loaders)}, .ckpt = ckpt});
}

std::vector<std::vector<Batch>> Trainer::predict(std::shared_ptr<Module> module, std::shared_ptr<DataModule> data,
                                                 const std::string& ckpt) {
  return parts_->session.predict(
      {.stage = Stage::kPredict, .module = std::move(module), .data = std::move(data), .ckpt = ckpt});
}

std::vector<std::vector<Batch>> Trainer::predict(std::shared_ptr<Module> module, DataLoaders loaders,
                                                 const std::string& ckpt) {
  return parts_->session.predict(
      {.stage = Stage::kPredict, .module = std::move(module), .given = {.predict = std::move(loaders)}, .ckpt = ckpt});
}

RankCore& Trainer::core() const { return parts_->core; }

int64_t Trainer::current_epoch() const { return core().progress.epoch; }
int64_t Trainer::global_step() const { return core().progress.global_step; }
int64_t Trainer::batch_idx() const { return core().progress.batch; }
bool Trainer::epoch_complete() const { return core().progress.last_batch_done; }
std::optional<int64_t> Trainer::num_training_batches() const { return core().train_batches; }
std::vector<int64_t> Trainer::num_evaluation_batches() const { return core().evaluation_batches; }
std::optional<int64_t> Trainer::estimated_steps() const { return core().estimated_steps(); }
std::optional<int64_t> Trainer::max_epochs() const { return core().resolved.max_epochs; }
RunningStage Trainer::running_stage() const { return core().running; }
Stage Trainer::stage() const { return core().stage; }
TrainerStatus Trainer::status() const { return core().status; }
Profiler* Trainer::profiler() const { return core().profiler; }
double Trainer::data_wait_seconds() const { return std::chrono::duration<double>(core().data_wait).count(); }
double Trainer::elapsed_seconds() const { return core().elapsed_seconds(); }

const MetricMap& Trainer::callback_metrics() const { return core().callback_metrics(); }
MetricMap Trainer::progress_bar_metrics(bool wait_for_device) const {
  return core().progress_bar_metrics(wait_for_device);
}
void Trainer::log_metrics(const MetricMap& values) { core().add_to_row(values); }

void Trainer::log_image(const std::string& name, const at::Tensor& image) {
  if (!is_global_zero() || sanity_checking() || loggers().empty()) return;
  const at::Tensor bytes = image_bytes(image);
  for (const auto& logger : loggers()) logger->log_image(name, bytes, global_step());
}

int64_t Trainer::global_rank() const { return core().strategy().environment().rank(); }
int64_t Trainer::world_size() const { return core().strategy().environment().world_size(); }
const at::Device& Trainer::device() const { return core().strategy().root_device(); }
Strategy& Trainer::strategy() const { return core().strategy(); }
Precision& Trainer::precision() const { return core().precision(); }

Module& Trainer::module() const {
  if (core().user_module == nullptr) throw Error("trainer", "the trainer has no module yet; hint: call fit first");
  return core().module();
}

DataModule* Trainer::data_module() const { return core().data.get(); }
const std::vector<std::shared_ptr<Callback>>& Trainer::callbacks() const { return core().callbacks; }
const std::vector<std::shared_ptr<Logger>>& Trainer::loggers() const { return core().loggers(); }
const std::vector<OptimizerHandle*>& Trainer::optimizers() const { return core().optimizer_list; }
const TrainerOptions& Trainer::options() const { return core().options; }
void Trainer::set_config(const Config& config) { core().config = config; }

std::vector<std::pair<std::string, double>> Trainer::learning_rates() const {
  std::vector<std::pair<std::string, double>> rates;
  std::map<std::string, int64_t> of_type;
  for (const OptimizerHandle* handle : core().optimizer_list) {
    const torch::optim::Optimizer& optimizer = handle->optimizer();
    std::string type = detail::demangled(typeid(optimizer).name());
    type = type.substr(type.rfind(':') + 1);
    const int64_t same = of_type[type]++;
    const std::string name = same == 0 ? "lr-" + type : fmt::format("lr-{}-{}", type, same);
    const auto& groups = optimizer.param_groups();
    for (size_t group = 0; group < groups.size(); ++group)
      rates.emplace_back(groups.size() == 1 ? name : fmt::format("{}/pg{}", name, group + 1),
                         handle->learning_rate(group));
  }
  return rates;
}

Checkpointer* Trainer::checkpoint_callback() const {
  const auto found = core().checkpointers();
  return found.empty() ? nullptr : found.front();
}

std::string Trainer::run_directory() const { return core().run_directory(); }

void Trainer::save_checkpoint(const std::string& path, const CheckpointEvent& event) {
  module();
  CheckpointConnector& checkpoints = parts_->session.checkpoints();
  if (core().strategy().divides_state() && core().running == RunningStage::kIdle)
    throw Error(
        "trainer",
        fmt::format("save_checkpoint() outside of a call cannot save what strategy '{}' has divided over ranks; "
                    "hint: call it in a hook, or let model_checkpoint save (save_last: true)",
                    core().strategy().name()));
  if (core().in_fit_loop && (!core().exact_moment || checkpoints.waits_for_window()))
    checkpoints.defer(path, event);
  else
    checkpoints.save(path, event);
}

void Trainer::request_stop(const std::string& reason) {
  if (core().world_size() == 1) {
    core().stop_requested = true;
    core().stop_reason = reason;
    return;
  }
  // Ranks stop together: before a batch that they agree on, or at the end of an epoch or validation.
  core().stop_wish = reason;
  if (ControlPlane* control = core().strategy().control_plane()) control->request_stop(reason);
}

bool Trainer::stop_requested() const { return core().stop_requested || !core().stop_wish.empty(); }
bool Trainer::interrupted() const { return interrupt_signal() != 0; }
int Trainer::interrupt_signal() const { return SignalScope::received(); }

void Trainer::set_accumulate_grad_batches(optim::AccumulationSchedule schedule) {
  if (schedule.fewest_batches() < 1)
    throw Error("trainer", fmt::format("set_accumulate_grad_batches was given {} batches; valid: at least 1",
                                       schedule.fewest_batches()));
  if (!schedule.is_off() && !core().module().automatic_optimization)
    throw ConfigError(
        "accumulation of gradients by the trainer does not work with manual optimization; hint: count batches in "
        "training_step");
  core().accumulation = std::move(schedule);
}

int64_t Trainer::accumulate_grad_batches() const { return core().accumulation.at(current_epoch()); }

std::string Trainer::memory_summary() const { return levin::memory_summary(core()); }

void Trainer::replace_schedulers(std::shared_ptr<optim::Scheduler> scheduler, Interval interval) {
  if (core().optimizer_list.size() != 1)
    throw Error("trainer",
                fmt::format("replace_schedulers works with one optimizer; got {}", core().optimizer_list.size()));
  OptimizerHandle& optimizer = *core().optimizer_list.front();
  scheduler->attach(optimizer.optimizer());
  optimizer.clear_schedulers();
  optimizer.add_scheduler(*scheduler);
  core().schedulers.clear();
  core().schedulers.push_back({.scheduler = std::move(scheduler), .config = {.interval = interval}});
}

void Trainer::replay_training_data() { parts_->session.replay_training_data(); }

namespace detail {

Config saved_hyper_parameters(const std::string& path) {
  const State tree = read_checkpoint(path, {"hyper_parameters"});
  const std::string& options = tree.at("hyper_parameters").at("options").as_string();
  if (options.empty())
    throw Error("checkpoint",
                fmt::format("the options of the module in '{}' were not recorded; hint: make modules with "
                            "levin::make, or call load_from_checkpoint<M>(path, options)",
                            path));
  return Config::parse(options, {.source = path});
}

void load_weights(Module& module, const std::string& path) {
  const State tree = read_checkpoint(path, {"model", "module"});
  module.configure_model();
  if (const State* extra = tree.find("module")) module.on_load_checkpoint(*extra);
  load_named_tensors(module, tree.at("model"));
}

}  // namespace detail
}  // namespace levin
