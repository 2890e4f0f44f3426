#include <levin/core/trainer/session.h>

#include <levin/core/base/error.h>
#include <levin/core/base/host_memory.h>
#include <levin/core/base/log.h>
#include <levin/core/base/seed.h>
#include <levin/core/data/sampler.h>
#include <levin/core/interfaces/cluster_environment.h>
#include <levin/core/interfaces/launcher.h>
#include <levin/core/trainer/signals.h>

#include <ATen/Context.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/anomaly_mode.h>

#include <algorithm>
#include <exception>
#include <typeinfo>

namespace levin {

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

void Session::run(const SessionRequest& request, const std::function<void()>& body) {
  keep_freed_memory();
  const SignalScope signals;
  core_.strategy().launcher().launch([&] {
    try {
      set_up(request);
      body();
      tear_down();
    } catch (...) {
      on_error();
      throw;
    }
  });
}

void Session::set_up(const SessionRequest& request) {
  core_.stage = request.stage;
  core_.status = TrainerStatus::kRunning;
  core_.stop_requested = false;
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
  core_.strategy().setup_environment({.devices = core_.resolved.devices, .num_nodes = core_.options.num_nodes});

  // The module's own callbacks replace those of the same type.
  std::vector<std::shared_ptr<Callback>> callbacks = core_.resolved.callbacks;
  for (auto& own : core_.module().configure_callbacks()) {
    std::erase_if(callbacks, [&](const auto& other) { return typeid(*other) == typeid(*own); });
    callbacks.push_back(std::move(own));
  }
  core_.set_callbacks(std::move(callbacks));

  if (core_.data != nullptr) core_.data->prepare_data();
  core_.module().prepare_data();
  if (core_.data != nullptr) core_.data->setup(request.stage);
  hooks_.call("setup", &Callback::setup, &Module::setup, request.stage);
  hooks_.module("configure_model", &Module::configure_model);
  select_loaders();
  core_.start_loggers();
}

DataLoader Session::train_loader() const {
  DataLoader loader = core_.given.train;
  if (!loader && core_.data != nullptr) loader = core_.data->train_dataloader();
  if (!loader) loader = core_.module().train_dataloader();
  return loader;
}

DataLoaders Session::evaluation_loaders(const DataLoaders& given, DataLoaders (DataModule::*of_data)(),
                                        DataLoaders (Module::*of_module)()) const {
  if (!given.empty()) return given;
  if (core_.data != nullptr) {
    DataLoaders loaders = (core_.data.get()->*of_data)();
    if (!loaders.empty()) return loaders;
  }
  return (core_.module().*of_module)();
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
        // Validation sees the very batches that training sees, in order.
        DataLoaderOptions in_order = core_.loaders.train.options();
        in_order.shuffle = false;
        core_.loaders.train = core_.loaders.train.with_options(in_order);
        if (core_.loaders.train.dataset() != nullptr)
          core_.loaders.train = core_.loaders.train.with_sampler(std::make_shared<data::SequentialSampler>());
        core_.loaders.val = DataLoaders(core_.loaders.train.with_options(in_order));
      } else {
        core_.loaders.val = evaluation_loaders(core_.given.val, &DataModule::val_dataloader, &Module::val_dataloader);
      }
      break;
    }
    case Stage::kValidate:
      core_.loaders.val = evaluation_loaders(core_.given.val, &DataModule::val_dataloader, &Module::val_dataloader);
      require(!core_.loaders.val.empty(), "val_dataloader");
      break;
    case Stage::kTest:
      core_.loaders.test = evaluation_loaders(core_.given.test, &DataModule::test_dataloader, &Module::test_dataloader);
      require(!core_.loaders.test.empty(), "test_dataloader");
      break;
    case Stage::kPredict:
      core_.loaders.predict =
          evaluation_loaders(core_.given.predict, &DataModule::predict_dataloader, &Module::predict_dataloader);
      require(!core_.loaders.predict.empty(), "predict_dataloader");
      break;
  }
}

void Session::set_up_weights(const std::string& ckpt, bool weights_only) {
  const std::string path = checkpoints_.find(ckpt);
  if (!path.empty()) checkpoints_.read(path, weights_only);
  core_.precision().convert_module(core_.module());
  const bool before = core_.strategy().loads_weights_before_setup();
  if (!path.empty() && before) checkpoints_.restore_module(weights_only);
  core_.strategy().setup_module(core_.module());
  if (!path.empty() && !before) checkpoints_.restore_module(weights_only);
  core_.resumed = !path.empty() && !weights_only;
}

void Session::tear_down() {
  for (const auto& logger : core_.loggers()) logger->flush();
  if (core_.data != nullptr) core_.data->teardown(core_.stage);
  hooks_.call("teardown", &Callback::teardown, &Module::teardown, core_.stage);
  core_.strategy().teardown();
  core_.status = SignalScope::received() != 0 ? TrainerStatus::kInterrupted : TrainerStatus::kFinished;
  core_.running = RunningStage::kIdle;
  for (const auto& logger : core_.loggers()) logger->finish(core_.status);
}

void Session::on_error() {
  const std::exception_ptr error = std::current_exception();
  core_.status = TrainerStatus::kFailed;
  core_.exact_moment = false;
  core_.in_fit_loop = false;  // there is no later moment for which a checkpoint could wait
  for (const auto& callback : core_.callbacks) {
    try {
      callback->on_exception(core_.trainer(), core_.module(), error);
    } catch (const std::exception& second) {
      log::warning(fmt::format("a callback's on_exception failed as well: {}", second.what()));
    }
  }
  for (const auto& logger : core_.loggers()) logger->finish(core_.status);
  core_.strategy().teardown();
  checkpoints_.release();
  core_.active_metrics = nullptr;
  core_.running = RunningStage::kIdle;
}

void Session::fit(const SessionRequest& request) {
  require_idle(request);
  core_.progress = {};
  core_.elapsed_before = 0;
  core_.accumulate = core_.options.accumulate_grad_batches;
  core_.forget_metrics();
  if (core_.fits++ > 0) core_.forget_run_directory();
  core_.data_seed = global_seed();
  run(request, [&] { run_fit(request); });
}

void Session::run_fit(const SessionRequest& request) {
  set_up_weights(request.ckpt, /*weights_only=*/false);
  if (core_.options.gradient_clip_val && !core_.module().automatic_optimization)
    throw ConfigError(
        "trainer.gradient_clip_val does not work with manual optimization; hint: call clip_gradients() in "
        "training_step");
  if (core_.options.accumulate_grad_batches > 1 && !core_.module().automatic_optimization)
    throw ConfigError(
        "trainer.accumulate_grad_batches does not work with manual optimization; hint: count batches in "
        "training_step");
  fit_loop_.count_batches();
  optimization_.configure();
  core_.train_metrics.load_state_dict(State());
  core_.evaluation_metrics.load_state_dict(State());
  core_.active_metrics = &core_.train_metrics;
  core_.running = RunningStage::kTrain;
  core_.fit_started = std::chrono::steady_clock::now();
  core_.module().train();
  hooks_.call("on_fit_start", &Callback::on_fit_start, &Module::on_fit_start);
  if (core_.resumed) checkpoints_.restore_optimization();
  fit_loop_.sanity_check();
  core_.train_metrics.begin({});
  {
    std::optional<torch::autograd::DetectAnomalyGuard> anomaly;
    if (core_.options.detect_anomaly) anomaly.emplace(/*check_nan=*/true);
    hooks_.call("on_train_start", &Callback::on_train_start, &Module::on_train_start);
    if (core_.resumed) checkpoints_.restore_moment();
    checkpoints_.release();
    fit_loop_.run([this] { select_loaders(); });
    core_.exact_moment = true;
    hooks_.call("on_train_end", &Callback::on_train_end, &Module::on_train_end);
    core_.exact_moment = false;
  }
  checkpoints_.save_deferred();
  core_.emit_row();
  core_.progress.elapsed = core_.elapsed_seconds();
  hooks_.call("on_fit_end", &Callback::on_fit_end, &Module::on_fit_end);
  core_.callback_metrics();
  core_.active_metrics = nullptr;
}

std::vector<MetricMap> Session::evaluate(const SessionRequest& request) {
  require_idle(request);
  const bool test = request.stage == Stage::kTest;
  run(request, [&] {
    set_up_weights(request.ckpt, /*weights_only=*/true);
    checkpoints_.release();
    const DataLoaders& loaders = test ? core_.loaders.test : core_.loaders.val;
    const auto batches =
        limited_batches(loaders, test ? core_.resolved.limit_test : core_.resolved.limit_val,
                        test ? "limit_test_batches" : "limit_val_batches", core_.strategy().environment().world_size());
    core_.evaluation = {};
    core_.evaluation_metrics.load_state_dict(State());
    evaluation_.run(test ? RunningStage::kTest : RunningStage::kValidate, loaders, batches, core_.evaluation,
                    /*in_fit=*/false);
  });
  return evaluation_.results();
}

std::vector<std::vector<Batch>> Session::predict(const SessionRequest& request) {
  require_idle(request);
  std::vector<std::vector<Batch>> predictions;
  run(request, [&] {
    set_up_weights(request.ckpt, /*weights_only=*/true);
    checkpoints_.release();
    const auto batches = limited_batches(core_.loaders.predict, core_.resolved.limit_predict, "limit_predict_batches",
                                         core_.strategy().environment().world_size());
    predictions = prediction_.run(core_.loaders.predict, batches);
  });
  return predictions;
}

}  // namespace levin
