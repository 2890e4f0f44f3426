#include <levin/core/trainer/session.h>

#include <levin/core/base/error.h>
#include <levin/core/base/host_memory.h>
#include <levin/core/base/log.h>
#include <levin/core/base/seed.h>
#include <levin/core/base/signals.h>
#include <levin/core/base/thread_generator.h>
#include <levin/core/checkpoint/checkpoint.h>
#include <levin/core/checkpoint/state_bytes.h>
#include <levin/core/comm/control_plane.h>
#include <levin/core/data/sampler.h>
#include <levin/core/interfaces/cluster_environment.h>
#include <levin/core/interfaces/finder.h>
#include <levin/core/interfaces/launcher.h>
#include <levin/core/nn/anomaly_units.h>
#include <levin/core/nn/saved_tensor_scope.h>
#include <levin/core/trainer/batch_state.h>
#include <levin/core/trainer/capable_strategies.h>
#include <levin/core/trainer/memory_summary.h>
#include <levin/core/trainer/registries.h>
#include <levin/core/trainer/stand_in.h>
#include <levin/core/trainer/thread_advice.h>
#include <levin/core/trainer/thread_rank.h>

#include <ATen/Context.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/anomaly_mode.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <mutex>
#include <typeinfo>
#include <utility>

namespace levin {

namespace {

/// Ranks that are threads may share a data module, whose hooks are called by one rank at a time.
std::mutex& shared_data_mutex() {
  static std::mutex mutex;
  return mutex;
}

/// In its scope nothing is logged.
class MutedScope {
 public:
  explicit MutedScope(RankCore& core) : core_(core), former_(std::exchange(core.muted, true)) {}
  ~MutedScope() { core_.muted = former_; }
  MutedScope(const MutedScope&) = delete;
  MutedScope& operator=(const MutedScope&) = delete;

 private:
  RankCore& core_;
  bool former_;
};

}  // namespace

Session::Session(RankCore& core)
    : core_(core),
      hooks_(core),
      checkpoints_(core),
      optimization_(core, hooks_),
      evaluation_(core, hooks_, checkpoints_),
      fit_loop_(core, hooks_, checkpoints_, optimization_, evaluation_),
      prediction_(core, hooks_) {}

void Session::require_idle(const SessionRequest& request) const {
  if (request.module == nullptr)
    throw Error("trainer", fmt::format("{} needs a module; got nullptr", to_string(request.stage)));
  if (core_.running != RunningStage::kIdle || core_.in_fit_loop)
    throw Error("trainer",
                fmt::format("{} was called while the trainer is at work; hint: use a second trainer inside hooks",
                            to_string(request.stage)));
}

/// The ranks of one call, as a launcher sees them.
class CallProgram : public RankProgram {
 public:
  CallProgram(RankCore& core, Session& session, const SessionRequest& request)
      : core_(core), session_(session), request_(request) {}

  void run(int64_t local_rank) override {
    if (local_rank > 0) {
      if (const auto strategy = core_.strategy().for_thread_rank(local_rank)) {
        ThreadRank(core_, strategy, request_).run(local_rank);
        return;
      }
    }
    core_.strategy().enter_rank(local_rank);
    session_.run_rank(request_);
  }
  void save_outcome(const std::string& directory) override { session_.save_outcome(request_, directory); }
  void load_outcome(const std::string& directory) override { session_.load_outcome(request_, directory); }

 private:
  RankCore& core_;
  Session& session_;
  const SessionRequest& request_;
};

void Session::launch(const SessionRequest& request) {
  keep_freed_memory();
  install_autograd_engine();
  const SignalScope signals;
  const StrategySetup setup = core_.strategy_setup();
  core_.strategy().prepare(setup);
  advise_on_threads(core_.strategy(), setup);
  CallProgram program(core_, *this, request);
  core_.strategy().launcher().launch(program);
}

void Session::run_rank(const SessionRequest& request) {
  const log::RankScope rank(core_.rank(), core_.world_size());
  try {
    set_up(request);
    switch (request.stage) {
      case Stage::kFit:
        request.tune ? run_tuning(request) : run_fit(request);
        break;
      case Stage::kPredict:
        run_prediction(request);
        break;
      default:
        run_evaluation(request);
    }
    tear_down();
  } catch (...) {
    const std::exception_ptr error = core_.root_cause(std::current_exception());
    std::rethrow_exception(on_error(error));
  }
}

void Session::set_up(const SessionRequest& request) {
  core_.stage = request.stage;
  core_.status = TrainerStatus::kRunning;
  core_.stop_requested = false;
  core_.stop_wish.clear();
  core_.muted = false;
  core_.resumed = false;
  core_.given = request.given;
  core_.data = request.data;
  if (core_.user_module != nullptr) core_.user_module->attach(nullptr);
  core_.user_module = request.module;
  core_.user_module->attach(&core_);

  using Level = Determinism::Level;
  const Level level = core_.options.deterministic.level();
  at::globalContext().setDeterministicAlgorithms(level != Level::kOff, level == Level::kWarn);
  at::globalContext().setBenchmarkCuDNN(core_.options.benchmark.value_or(false));
  if (const auto& precision = core_.options.float32_matmul_precision)
    at::globalContext().setFloat32MatmulPrecision(*precision);
  core_.strategy().setup_environment(core_.strategy_setup());
  core_.precision().set_up(core_.device());
  core_.set_prefetch(BatchPrefetch::for_device(core_.device()));
  core_.data_seed = std::stoull(core_.from_rank_zero(std::to_string(core_.data_seed)));
  core_.share_run_directory();

  core_.set_callbacks(callbacks_for(request));
  if (!request.tune) start_profiler();
  set_up_data(request);
  hooks_.call("setup", &Callback::setup, &Module::setup, request.stage);
  {
    const auto scope =
        core_.strategy().build_scope([this](torch::nn::Module& part) { core_.precision().convert_module(part); });
    // Parts of one model: every rank draws what rank 0 does.
    if (scope != nullptr)
      restore_rng_state(state_from_bytes(core_.from_rank_zero(state_to_bytes(capture_rng_state()))));
    hooks_.module("configure_model", &Module::configure_model);
  }
  {
    const Activity activity(core_, "select_loaders");
    select_loaders();
  }
  if (request.tune) return;
  const Activity activity(core_, "start_loggers");
  const bool resumes = request.stage == Stage::kFit && !request.ckpt.empty();
  core_.start_loggers(resumes ? checkpoints_.find_on_rank_zero(request.ckpt) : "");
}

std::vector<std::shared_ptr<Callback>> Session::callbacks_for(const SessionRequest& request) const {
  std::vector<std::shared_ptr<Callback>> callbacks = core_.resolved.callbacks;
  for (auto& own : call_user(core_, "configure_callbacks", core_.module(),
                             [this] { return core_.module().configure_callbacks(); })) {
    const Callback& replacement = *own;
    std::erase_if(callbacks, [&](const auto& item) {
      const Callback& other = *item;
      return typeid(other) == typeid(replacement);
    });
    callbacks.push_back(std::move(own));
  }
  if (!request.tune) return callbacks;
  std::erase_if(callbacks, [](const auto& other) { return dynamic_cast<Finder*>(other.get()) == nullptr; });
  if (callbacks.empty()) callbacks.push_back(registries().callbacks.make("learning_rate_finder", Config::null(), ""));
  return callbacks;
}

void Session::start_profiler() {
  Profiler* profiler = core_.resolved.profiler.get();
  if (profiler == nullptr) return;
  core_.span_names.clear();
  profiler->start({.stage = core_.stage,
                   .rank = core_.rank(),
                   .world_size = core_.world_size(),
                   .is_first_in_process = !core_.shares_data,
                   .directory = core_.run_directory()});
  core_.profiler = profiler;
  whole_call_.emplace(profiler, to_string(core_.stage));
}

void Session::show_module_to_profiler() {
  if (core_.profiler != nullptr) core_.profiler->on_model_ready(core_.module());
}

void Session::finish_profiler() {
  whole_call_.reset();
  if (Profiler* profiler = std::exchange(core_.profiler, nullptr)) profiler->finish();
}

void Session::set_up_data(const SessionRequest& request) {
  const Activity activity(core_, "set_up_data");
  if (core_.strategy().environment().local_rank() == 0) {
    if (core_.data != nullptr) call_user(core_, "prepare_data", *core_.data, [this] { core_.data->prepare_data(); });
    call_user(core_, "prepare_data", core_.module(), [this] { core_.module().prepare_data(); });
  }
  core_.strategy().collective().barrier();
  // Ranks that are threads share one data module.
  if (core_.data != nullptr && !core_.shares_data)
    call_user(core_, "setup", *core_.data, [&] { core_.data->setup(request.stage); });
  core_.strategy().collective().barrier();
}

DataLoader Session::train_loader() const {
  const std::lock_guard lock(shared_data_mutex());
  DataLoader loader = core_.given.train;
  if (!loader && core_.data != nullptr)
    loader = call_user(core_, "train_dataloader", *core_.data, [this] { return core_.data->train_dataloader(); });
  if (!loader)
    loader = call_user(core_, "train_dataloader", core_.module(), [this] { return core_.module().train_dataloader(); });
  if (!loader) return loader;
  if (core_.train_batch_size) return loader.with_batch_size(*core_.train_batch_size);
  return core_.has_thread_ranks() ? loader.with_options(loader.options()) : loader;
}

void Session::use_batch_size(int64_t batch_size) {
  const auto former_size = std::exchange(core_.train_batch_size, batch_size);
  const LoaderSet former = core_.loaders;
  core_.loaders.train = former.train.with_batch_size(batch_size);
  // While a checkpoint is being loaded, what is counted has not been counted yet.
  if (core_.running != RunningStage::kTrain) return;
  try {
    fit_loop_.count_batches();
  } catch (const ConfigError&) {
    core_.train_batch_size = former_size;
    core_.loaders = former;
    fit_loop_.count_batches();
    throw;
  }
  optimization_.restart_schedules();
}

DataLoaders Session::evaluation_loaders(const char* name, const DataLoaders& given,
                                        DataLoaders (DataModule::*of_data)(),
                                        DataLoaders (Module::*of_module)()) const {
  const std::lock_guard lock(shared_data_mutex());
  DataLoaders loaders = given;
  if (loaders.empty() && core_.data != nullptr)
    loaders = call_user(core_, name, *core_.data, [&] { return (core_.data.get()->*of_data)(); });
  if (loaders.empty()) loaders = call_user(core_, name, core_.module(), [&] { return (core_.module().*of_module)(); });
  if (core_.has_thread_ranks())
    for (auto& loader : loaders) loader = loader.with_options(loader.options());
  return loaders;
}

void Session::select_loaders() {
  core_.loaders = {};
  const auto require = [&](bool there, const char* hook) {
    if (!there)
      throw Error("trainer",
                  fmt::format("{} needs data; got none; valid: loaders given to the call, or {}() of a data module "
                              "or of the module",
                              to_string(core_.stage), hook));
  };
  switch (core_.stage) {
    case Stage::kFit: {
      core_.loaders.train = train_loader();
      require(static_cast<bool>(core_.loaders.train), "train_dataloader");
      if (core_.resolved.overfit) {
        // The same few batches in every epoch.
        DataLoaderOptions in_order = core_.loaders.train.options();
        in_order.shuffle = false;
        core_.loaders.train = core_.loaders.train.with_options(in_order);
        if (core_.loaders.train.dataset() != nullptr)
          core_.loaders.train = core_.loaders.train.with_sampler(std::make_shared<data::SequentialSampler>());
      }
      core_.loaders.val =
          evaluation_loaders("val_dataloader", core_.given.val, &DataModule::val_dataloader, &Module::val_dataloader);
      break;
    }
    case Stage::kValidate:
      core_.loaders.val =
          evaluation_loaders("val_dataloader", core_.given.val, &DataModule::val_dataloader, &Module::val_dataloader);
      require(!core_.loaders.val.empty(), "val_dataloader");
      break;
    case Stage::kTest:
      core_.loaders.test = evaluation_loaders("test_dataloader", core_.given.test, &DataModule::test_dataloader,
                                              &Module::test_dataloader);
      require(!core_.loaders.test.empty(), "test_dataloader");
      break;
    case Stage::kPredict:
      core_.loaders.predict = evaluation_loaders("predict_dataloader", core_.given.predict,
                                                 &DataModule::predict_dataloader, &Module::predict_dataloader);
      require(!core_.loaders.predict.empty(), "predict_dataloader");
      break;
  }
}

void Session::set_up_weights(const std::string& ckpt, bool weights_only) {
  const Activity activity(core_, "set_up_model");
  const std::string path = checkpoints_.find_on_rank_zero(ckpt);
  if (!path.empty()) checkpoints_.read(path, weights_only);
  core_.precision().convert_module(core_.module());
  if (core_.resolved.channels_last)
    for (auto& [name, parameter] : named_unique_parameters(core_.module()))
      parameter.set_data(core_.in_memory_format(parameter.detach()));
  const bool before = core_.strategy().loads_weights_before_setup();
  if (!path.empty() && before) checkpoints_.restore_module(weights_only);
  if (core_.stage == Stage::kFit)
    core_.strategy().set_sample([this] {
      const DataLoader loader = core_.loaders.train.with_options(core_.loaders.train.options());
      auto batch = loader.pass(core_.train_position()).next();
      if (!batch) throw Error("data", "there are no training data");
      return core_.transfer(std::move(*batch), 0);
    });
  core_.strategy().setup_module(core_.module());
  if (!path.empty() && !before) checkpoints_.restore_module(weights_only);
  core_.resumed = !path.empty() && !weights_only;
  // All ranks built the model alike; from here on each draws its own random numbers.
  if (core_.data_rank() > 0)
    default_cpu_generator().set_current_seed(mix_seed(core_.data_seed, static_cast<uint64_t>(core_.data_rank())));
}

void Session::tear_down() {
  checkpointing_.reset();
  core_.set_prefetch(nullptr);
  for (const auto& logger : core_.loggers()) logger->flush();
  core_.strategy().collective().barrier();
  if (core_.data != nullptr && !core_.shares_data)
    call_user(core_, "teardown", *core_.data, [this] { core_.data->teardown(core_.stage); });
  hooks_.call("teardown", &Callback::teardown, &Module::teardown, core_.stage);
  finish_profiler();  // while the module has its units
  core_.strategy().release_module();
  core_.strategy().teardown();
  core_.status = SignalScope::received() != 0 ? TrainerStatus::kInterrupted : TrainerStatus::kFinished;
  core_.running = RunningStage::kIdle;
  if (core_.is_global_zero())
    for (const auto& logger : core_.loggers()) logger->finish(core_.status);
}

std::exception_ptr Session::on_error(const std::exception_ptr& thrown) {
  const std::exception_ptr error = with_context(with_memory_summary(core_, thrown), take_error_notes(thrown), core_);
  core_.set_prefetch(nullptr);
  optimization_.end_graphs();
  checkpointing_.reset();
  core_.status = TrainerStatus::kFailed;
  core_.exact_moment = false;
  core_.in_fit_loop = false;  // there is no later moment for which a checkpoint could wait
  std::exception_ptr reported = error;
  if (ControlPlane* control = core_.strategy().control_plane()) {
    control->report_failure(error_message(error));
    // What all ranks run into alike is one failure, which the first of them shows.
    const auto first = control->failure_of_other(std::chrono::seconds(0));
    if (first && core_.rank() > 0 && without_context(first->message) == without_context(error_message(error)))
      reported = std::make_exception_ptr(RankFailedError(*first));
  }
  try {
    finish_profiler();
  } catch (const std::exception& second) {
    log::warning(fmt::format("the profiler failed as well: {}", second.what()));
  }
  checkpoints_.finish_saving_after_failure();
  for (const auto& callback : core_.callbacks) {
    try {
      callback->on_exception(core_.trainer(), core_.module(), error);
    } catch (const std::exception& second) {
      log::warning(fmt::format("a callback's on_exception failed as well: {}", second.what()));
    }
  }
  try {
    core_.strategy().teardown();
  } catch (const std::exception& second) {
    log::warning(fmt::format("the strategy could not be taken down either: {}", second.what()));
  }
  checkpoints_.release();
  core_.active_metrics = nullptr;
  core_.running = RunningStage::kIdle;
  // Last, as in tear_down: a logger may wait for its server longer than the other ranks wait for this one.
  if (core_.is_global_zero())
    for (const auto& logger : core_.loggers()) {
      try {
        logger->finish(core_.status);
      } catch (const std::exception& second) {
        log::warning(fmt::format("a logger could not be ended either: {}", second.what()));
      }
    }
  return reported;
}

/// Manual optimization leaves to the module what some options and strategies want to do.
void Session::check_manual_optimization() const {
  if (!core_.strategy().capabilities().manual_optimization)
    throw ConfigError(
        fmt::format("trainer.strategy '{}' does not work with manual optimization (the module sets "
                    "automatic_optimization = false); valid: {}",
                    core_.strategy().name(), capable_strategies(&StrategyCapabilities::manual_optimization)));
  if (core_.options.gradient_clip_val)
    throw ConfigError(
        "trainer.gradient_clip_val does not work with manual optimization; hint: call clip_gradients() in "
        "training_step");
  if (!core_.options.accumulate_grad_batches.is_off())
    throw ConfigError(
        "trainer.accumulate_grad_batches does not work with manual optimization; hint: count batches in "
        "training_step");
}

void Session::fit(const SessionRequest& request) {
  require_idle(request);
  if (!request.module->automatic_optimization) check_manual_optimization();
  core_.begin_fit();
  launch(request);
}

std::vector<std::string> Session::tune(const SessionRequest& request) {
  require_idle(request);
  core_.begin_fit();
  reports_.clear();
  launch(request);
  return std::move(reports_);
}

void Session::run_tuning(const SessionRequest& request) {
  start_fit(request);
  checkpoints_.release();
  hooks_.call("on_fit_end", &Callback::on_fit_end, &Module::on_fit_end);
  core_.active_metrics = nullptr;
  for (const auto& callback : core_.callbacks)
    if (const auto* finder = dynamic_cast<const Finder*>(callback.get())) reports_.push_back(finder->report());
}

void Session::start_fit(const SessionRequest& request) {
  set_up_weights(request.ckpt, /*weights_only=*/request.tune);
  checkpointing_.emplace(core_.module(), core_.options.activation_checkpointing);
  show_module_to_profiler();
  require_training_data(core_);
  fit_loop_.count_batches();
  {
    const Activity activity(core_, "configure_optimizers");
    optimization_.configure();
  }
  core_.train_metrics.load_state_dict(State());
  core_.evaluation_metrics.load_state_dict(State());
  core_.active_metrics = &core_.train_metrics;
  core_.running = RunningStage::kTrain;
  core_.fit_started = std::chrono::steady_clock::now();
  core_.module().train();
  hooks_.call("on_fit_start", &Callback::on_fit_start, &Module::on_fit_start);
}

void Session::run_fit(const SessionRequest& request) {
  start_fit(request);
  core_.train_metrics.begin({});
  if (core_.resumed) {
    const Activity activity(core_, "restore_optimization");
    checkpoints_.restore_optimization();
  }
  fit_loop_.sanity_check();
  core_.strategy().broadcast_optimizers(optimization_.optimizers());
  {
    std::optional<torch::autograd::DetectAnomalyGuard> anomaly;
    std::optional<AnomalyUnits> anomaly_units;
    if (core_.options.detect_anomaly) {
      anomaly.emplace(/*check_nan=*/true);
      anomaly_units.emplace(core_.module());
    }
    hooks_.call("on_train_start", &Callback::on_train_start, &Module::on_train_start);
    if (core_.resumed) checkpoints_.restore_moment();
    checkpoints_.release();
    optimization_.start_graphs();
    fit_loop_.run([this] { select_loaders(); });
    optimization_.end_graphs();
    core_.exact_moment = true;
    hooks_.call("on_train_end", &Callback::on_train_end, &Module::on_train_end);
    core_.exact_moment = false;
  }
  checkpoints_.save_deferred();
  checkpoints_.finish_saving();
  core_.emit_row();
  core_.progress.elapsed = core_.elapsed_seconds();
  hooks_.call("on_fit_end", &Callback::on_fit_end, &Module::on_fit_end);
  core_.callback_metrics();
  core_.active_metrics = nullptr;
}

void Session::replay_training_data() {
  if (core_.active_metrics != &core_.train_metrics || !core_.module().automatic_optimization)
    throw Error("trainer",
                "the training data can be run again only inside fit, outside of validation, and with automatic "
                "optimization");
  const RngStateGuard keep_random_state;
  const MutedScope muted(core_);
  const at::NoGradGuard no_grad;
  DataLoaderPosition beginning = core_.train_position();
  beginning.batch = beginning.first_example = 0;
  // With threads of its own, so that a pass under way goes on.
  const DataLoader loader = core_.loaders.train.with_options(core_.loaders.train.options());
  auto pass = loader.pass(beginning);
  const bool together = core_.strategy().forwards_together();
  for (int64_t batch_idx = 0; !core_.train_batches || batch_idx < *core_.train_batches; ++batch_idx) {
    auto fetched = pass.next();
    if (together ? !core_.any_rank(fetched.has_value(), false).first : !fetched) break;
    const StandIn stand_in(core_, !fetched);
    const Batch batch = core_.transfer(fetched ? std::move(*fetched) : stand_in_batch(core_, loader), 0);
    const ForwardScope forward(core_.precision());
    {
      const auto scope = core_.strategy().forward_scope();
      core_.module().training_step(batch, batch_idx);
    }
    if (ControlPlane* control = core_.strategy().control_plane()) control->throw_if_failed();
  }
  // Metrics that the steps updated; those of an epoch that is not over have sums to keep.
  if (core_.progress.phase == FitPhase::kEpochDone) core_.train_metrics.reset();
}

std::vector<MetricMap> Session::evaluate(const SessionRequest& request) {
  require_idle(request);
  launch(request);
  return evaluation_.results();
}

void Session::run_evaluation(const SessionRequest& request) {
  const bool test = request.stage == Stage::kTest;
  set_up_weights(request.ckpt, /*weights_only=*/true);
  show_module_to_profiler();
  checkpoints_.release();
  const DataLoaders& loaders = test ? core_.loaders.test : core_.loaders.val;
  const auto batches = limited_batches(loaders, test ? core_.resolved.limit_test : core_.resolved.limit_val,
                                       test ? "limit_test_batches" : "limit_val_batches", core_.data_ranks());
  core_.evaluation = {};
  core_.evaluation_metrics.load_state_dict(State());
  evaluation_.run(test ? RunningStage::kTest : RunningStage::kValidate, loaders, batches, core_.evaluation,
                  /*in_fit=*/false);
}

std::vector<std::vector<Batch>> Session::predict(const SessionRequest& request) {
  require_idle(request);
  predictions_.clear();
  launch(request);
  return std::move(predictions_);
}

void Session::run_prediction(const SessionRequest& request) {
  set_up_weights(request.ckpt, /*weights_only=*/true);
  show_module_to_profiler();
  checkpoints_.release();
  const auto batches =
      limited_batches(core_.loaders.predict, core_.resolved.limit_predict, "limit_predict_batches", core_.data_ranks());
  predictions_ = prediction_.run(core_.loaders.predict, batches);
}

void Session::save_outcome(const SessionRequest& request, const std::string& directory) {
  State outcome = State::map();
  State results = State::list();
  for (const MetricMap& of_loader : evaluation_.results()) {
    State item = State::map();
    for (const auto& [name, value] : of_loader) item[name] = value;
    results.push_back(std::move(item));
  }
  outcome["results"] = std::move(results);
  State predictions = State::list();
  for (const auto& of_loader : predictions_) {
    State list = State::list();
    for (const Batch& batch : of_loader) list.push_back(to_state(batch));
    predictions.push_back(std::move(list));
  }
  outcome["predictions"] = std::move(predictions);
  State reports = State::list();
  for (const std::string& report : reports_) reports.push_back(report);
  outcome["reports"] = std::move(reports);
  outcome["run_directory"] = core_.run_directory();
  outcome["interrupted"] = SignalScope::received();
  if (request.stage == Stage::kFit) outcome["fit"] = checkpoints_.dump_outcome();
  write_checkpoint(directory + "/outcome", outcome, {});
}

void Session::load_outcome(const SessionRequest& request, const std::string& directory) {
  const State outcome = read_checkpoint(directory + "/outcome");
  std::vector<MetricMap> results;
  for (const State& of_loader : outcome.at("results").as_list()) {
    results.emplace_back();
    for (const auto& [name, value] : of_loader.as_map()) results.back()[name] = value.as_double();
  }
  evaluation_.set_results(std::move(results));
  predictions_.clear();
  for (const State& of_loader : outcome.at("predictions").as_list()) {
    predictions_.emplace_back();
    for (const State& batch : of_loader.as_list()) predictions_.back().push_back(to_batch(batch));
  }
  reports_.clear();
  for (const State& report : outcome.at("reports").as_list()) reports_.push_back(report.as_string());
  core_.set_run_directory(outcome.at("run_directory").as_string());
  core_.stage = request.stage;
  core_.data = request.data;
  if (core_.user_module != nullptr) core_.user_module->attach(nullptr);
  core_.user_module = request.module;
  core_.user_module->attach(&core_);
  core_.status = outcome.at("interrupted").as_int() != 0 ? TrainerStatus::kInterrupted : TrainerStatus::kFinished;
  if (request.stage != Stage::kFit) return;
  core_.user_module->configure_model();  // no rank ran here: only theirs have these layers yet
  checkpoints_.load_outcome(outcome.at("fit"));
}

}  // namespace levin
