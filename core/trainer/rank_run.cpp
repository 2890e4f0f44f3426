#include <levin/core/trainer/rank_run.h>

#include <levin/core/accelerators/device_failure.h>
#include <levin/core/base/log.h>
#include <levin/core/base/released_storage.h>
#include <levin/core/base/seed.h>
#include <levin/core/base/signals.h>
#include <levin/core/base/slurm_job.h>
#include <levin/core/base/thread_generator.h>
#include <levin/core/checkpoint/state_bytes.h>
#include <levin/core/comm/control_plane.h>
#include <levin/core/comm/rank_failure.h>
#include <levin/core/connectors/error_context.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/interfaces/tuner.h>
#include <levin/core/nn/adapters.h>
#include <levin/core/options/registries.h>
#include <levin/core/precision/precision.h>
#include <levin/core/trainer/local_hooks.h>
#include <levin/core/trainer/memory_summary.h>

#include <ATen/Context.h>
#include <fmt/format.h>

#include <chrono>
#include <string>
#include <typeinfo>
#include <utility>

namespace levin {
namespace {

/// Returns why an earlier call left parameters of a module without values; empty where it did not.
std::string message_of_absent_values(const Module& module) {
  for (const auto& [name, tensor] : named_tensors(module))
    if (tensor.defined() && is_released(tensor)) return released_message(tensor);
  return "";
}

/// Has what a strategy left without values say why, when it is read. `former`: the message of an earlier call, whose
/// values this one did not have either; empty: none.
void explain_absent_values(const Module& module, const std::string& former, const std::string& why) {
  const std::string message = !former.empty()
                                  ? former
                                  : fmt::format(
                                        "[trainer] the module has parameters or buffers without values: {}; hint: give "
                                        "the next call a checkpoint, or make a new module",
                                        why);
  for (const auto& [name, tensor] : named_tensors(module))
    if (tensor.defined() && is_released(tensor)) set_released_message(tensor, message);
}

}  // namespace

RankScopes::RankScopes(TrainerComponents& components, bool is_quiet)
    : rank_(components.options.strategy->rank(), components.options.strategy->world_size()),
      kernels_(components.options.given.own_kernels) {
  if (is_quiet) quiet_.emplace();
  if (const at::Device& device = components.options.strategy->root_device(); !device.is_cpu())
    device_.reset_device(device);
}

RunResult RankRun::run() {
  const RankScopes scopes(parts_, request_.is_driven);
  try {
    set_up();
    switch (request_.stage) {
      case Stage::kFit:
        request_.tune ? tune() : fit();
        break;
      case Stage::kPredict:
        predict();
        break;
      default:
        evaluate();
    }
    tear_down();
  } catch (...) {
    std::rethrow_exception(fail(std::current_exception()));
  }
  return std::move(result_);
}

void RankRun::begin() {
  set_up();
  begin_fit();
  parts_.fit.begin_steps();
  current_device_.reset();  // another thread may go on
}

void RankRun::end() {
  parts_.fit.end_steps();
  end_fit();
  tear_down();
}

std::exception_ptr RankRun::fail(const std::exception_ptr& thrown) {
  return on_error(root_cause(thrown, *parts_.options.strategy));
}

// ---- Set-up

void RankRun::set_up() {
  TrainerState& state = parts_.state;
  Strategy& strategy = *parts_.options.strategy;
  state.stage = request_.stage;
  state.status = TrainerStatus::kRunning;
  state.joining = false;
  state.resumed = false;
  if (parts_.options.given.detect_anomaly) debug_checks_.emplace();
  parts_.stop.begin_call(/*heeds_signals=*/!request_.is_driven);
  parts_.data.begin_call(request_.data, request_.loaders);
  parts_.context.attach(request_.module);
  set_up_backends();
  strategy.setup_environment(parts_.strategy_setup());
  if (const at::Device& device = strategy.root_device(); !device.is_cpu()) current_device_.emplace(device);
  follow_seed(strategy.root_device());
  parts_.options.precision->set_up(strategy.root_device());
  parts_.data.set_prefetch(BatchPrefetch::for_device(strategy.root_device()));
  parts_.data.set_seed(std::stoull(strategy.broadcast(std::to_string(parts_.data.seed()))));
  share_generators();
  const bool is_bare = request_.is_driven && request_.stage == Stage::kPredict;  // it leaves nothing in a run's folder
  if (!is_bare) parts_.logger.share_run_directory();

  parts_.callbacks.set(callbacks());
  if (Profiler* profiler = parts_.options.profiler.get(); profiler != nullptr && !request_.tune && !is_bare)
    parts_.tracer.start(*profiler, {.stage = state.stage,
                                    .rank = strategy.rank(),
                                    .world_size = strategy.world_size(),
                                    .is_first_in_process = !parts_.data.shares_data_module(),
                                    .directory = parts_.logger.run_directory()});
  parts_.data.set_up();
  parts_.callbacks.set_up(request_.stage);
  configure_model();
  if (!request_.is_driven) parts_.data.select_loaders();
  if (request_.tune || is_bare) return;
  const bool resumes = request_.stage == Stage::kFit && !request_.ckpt.empty();
  parts_.logger.start(resumes ? parts_.checkpoints.find_on_rank_zero(request_.ckpt) : "", parts_.data.data_module());
}

/// Every rank draws what rank 0 does, however it was started and whatever earlier calls drew.
void RankRun::share_generators() {
  Strategy& strategy = *parts_.options.strategy;
  if (strategy.world_size() == 1) return;
  const at::Device& device = strategy.root_device();
  restore_rng_state(state_from_bytes(strategy.broadcast(state_to_bytes(capture_rng_state(device)))), device);
}

void RankRun::set_up_backends() const {
  using Level = Determinism::Level;
  const TrainerOptions& options = parts_.options.given;
  const Level level = options.deterministic.level();
  at::globalContext().setDeterministicAlgorithms(level != Level::kOff, level == Level::kWarn);
  at::globalContext().setBenchmarkCuDNN(options.benchmark.value_or(false));
  if (const auto& precision = options.float32_matmul_precision)
    at::globalContext().setFloat32MatmulPrecision(*precision);
}

void RankRun::configure_model() {
  Strategy& strategy = *parts_.options.strategy;
  const auto scope = strategy.divided_model().build_scope(
      [precision = parts_.options.precision](torch::nn::Module& part) { precision->convert_module(part); });
  if (scope != nullptr) share_generators();  // parts of one model
  levin::configure_model(parts_);
}

std::vector<std::shared_ptr<Callback>> RankRun::callbacks() const {
  Module& module = *parts_.state.module;
  std::vector<std::shared_ptr<Callback>> callbacks = parts_.options.callbacks;
  for (auto& own :
       call_user(parts_.state, "configure_callbacks", module, [&] { return module.configure_callbacks(); })) {
    const Callback& replacement = *own;
    std::erase_if(callbacks, [&](const auto& item) {
      const Callback& other = *item;
      return typeid(other) == typeid(replacement);
    });
    callbacks.push_back(std::move(own));
  }
  if (request_.is_driven && request_.stage == Stage::kFit)
    for (const auto& callback : callbacks)
      if (const Callback& item = *callback; dynamic_cast<const Tuner*>(&item) != nullptr)
        throw Error("engine", fmt::format("the callback {} needs a loop over training data, which an engine does not "
                                          "have; hint: Trainer::tune before, and its result in the options",
                                          detail::demangled(typeid(item).name())));
  if (!request_.tune) return callbacks;
  std::erase_if(callbacks, [](const auto& other) { return dynamic_cast<Tuner*>(other.get()) == nullptr; });
  if (callbacks.empty()) callbacks.push_back(registries().callbacks.make("learning_rate_finder", Config::null(), ""));
  return callbacks;
}

void RankRun::set_up_weights(bool weights_only) {
  TrainerState& state = parts_.state;
  Strategy& strategy = *parts_.options.strategy;
  CheckpointConnector& checkpoints = parts_.checkpoints;
  Module& module = *state.module;
  {
    const Activity activity(parts_.tracer, "set_up_model");
    const std::string path = checkpoints.find_on_rank_zero(request_.ckpt);
    if (!path.empty()) checkpoints.read(path, weights_only);
    // What this trainer has trained is not to be undone by a validation that follows.
    const bool initial = path.empty() && takes_initial_weights(parts_) &&
                         (state.stage == Stage::kFit || state.progress.total_batches == 0);
    if (initial) checkpoints.open_initial_weights();
    if (path.empty() && !initial) absent_ = message_of_absent_values(module);
    parts_.options.precision->convert_module(module);
    if (parts_.options.channels_last)
      for (auto& [name, parameter] : named_unique_parameters(module))
        parameter.set_data(parts_.data.in_memory_format(parameter.detach()));
    reattach_adapters(module);
    const bool before = strategy.divided_model().loads_weights_before_setup();
    if (!path.empty() && before) checkpoints.restore_module(weights_only);
    if (initial && before) checkpoints.load_initial_weights();
    if (state.stage == Stage::kFit && !request_.is_driven)
      strategy.divided_model().set_sample([this] { return parts_.data.sample(); });
    strategy.setup_module(module);
    if (!path.empty() && !before) checkpoints.restore_module(weights_only);
    if (initial && !before) checkpoints.load_initial_weights();
    state.resumed = !path.empty() && !weights_only;
  }
  // All ranks built the model alike; from here on each draws its own random numbers.
  if (const int64_t data_rank = strategy.data_parallel_rank().rank; data_rank > 0)
    seed_generators(strategy.root_device(), mix_seed(parts_.data.seed(), static_cast<uint64_t>(data_rank)));
}

// ---- The stages

void RankRun::start_fit() {
  set_up_weights(/*weights_only=*/request_.tune);
  Module& module = *parts_.state.module;
  checkpointing_.emplace(module, parts_.options.given.activation_checkpointing);
  parts_.tracer.show_module(module);
  if (!request_.is_driven) {
    parts_.data.require_training_data();
    parts_.data.count_batches();
  }
  {
    const Activity activity(parts_.tracer, "configure_optimizers");
    parts_.optimizers.configure([this](OptimizerHandle& optimizer, const OptimizerHandle::Closure& closure) {
      parts_.step.drive_optimizer(optimizer, closure);
    });
  }
  parts_.logger.train_metrics().load_state_dict(State());
  parts_.logger.evaluation_metrics().load_state_dict(State());
  parts_.logger.set_active({.collector = &parts_.logger.train_metrics()});
  parts_.state.running = RunningStage::kTrain;
  parts_.stop.start_clock();
  // Parts that the user has put into evaluation mode stay so: they are frozen.
  if (!module.is_training()) module.train();
  parts_.callbacks.call("on_fit_start", &Callback::on_fit_start, &Module::on_fit_start);
}

void RankRun::fit() {
  begin_fit();
  if (request_.is_driven) {
    parts_.fit.begin_steps();
    request_.steps(parts_);
    parts_.fit.end_steps();
  } else {
    parts_.fit.run();
  }
  end_fit();
}

void RankRun::begin_fit() {
  start_fit();
  CallbackConnector& callbacks = parts_.callbacks;
  CheckpointConnector& checkpoints = parts_.checkpoints;
  TrainerState& state = parts_.state;
  parts_.logger.train_metrics().begin({.training_batches = state.progress.moment()});
  if (state.resumed) {
    const Activity activity(parts_.tracer, "restore_optimization");
    checkpoints.restore_optimization(/*stays_ended=*/request_.ckpt == "auto");
  } else if (request_.ckpt == "auto") {
    checkpoints.restart_loggers();
  }
  parts_.fit.sanity_check();
  parts_.optimizers.broadcast();
  if (parts_.options.given.detect_anomaly) {
    anomaly_.emplace(/*check_nan=*/true);
    anomaly_units_.emplace(*state.module);
  }
  callbacks.call("on_train_start", &Callback::on_train_start, &Module::on_train_start);
  if (state.resumed) {
    checkpoints.restore_gradients_and_generators();
    checkpoints.upload_kept();
  }
  checkpoints.release();
  parts_.step.start_recording();
}

void RankRun::end_fit() {
  CallbackConnector& callbacks = parts_.callbacks;
  CheckpointConnector& checkpoints = parts_.checkpoints;
  TrainerState& state = parts_.state;
  parts_.step.end_recording();
  parts_.logger.set_over(true);
  state.at_resume_point = true;
  callbacks.call("on_train_end", &Callback::on_train_end, &Module::on_train_end);
  state.at_resume_point = false;
  anomaly_units_.reset();
  anomaly_.reset();
  checkpoints.save_deferred();
  checkpoints.finish_saving();
  parts_.logger.emit_row();
  state.progress.elapsed = parts_.stop.elapsed_seconds();
  callbacks.call("on_fit_end", &Callback::on_fit_end, &Module::on_fit_end);
  parts_.logger.callback_metrics();
  parts_.logger.set_active({});
}

void RankRun::tune() {
  start_fit();
  parts_.checkpoints.release();
  parts_.callbacks.call("on_fit_end", &Callback::on_fit_end, &Module::on_fit_end);
  parts_.logger.set_active({});
  for (const auto& callback : parts_.callbacks.all())
    if (const auto* tuner = dynamic_cast<const Tuner*>(callback.get())) result_.reports.push_back(tuner->report());
}

void RankRun::evaluate() {
  const bool test = request_.stage == Stage::kTest;
  set_up_weights(/*weights_only=*/true);
  parts_.tracer.show_module(*parts_.state.module);
  parts_.checkpoints.release();
  parts_.state.evaluation = {};
  parts_.logger.evaluation_metrics().load_state_dict(State());
  const StageLoaders& loaders = parts_.data.loaders();
  parts_.evaluation.run(test ? RunningStage::kTest : RunningStage::kValidate, test ? loaders.test : loaders.val,
                        parts_.data.evaluation_batches(), parts_.state.evaluation);
  result_.metrics = parts_.evaluation.results();
}

void RankRun::predict() {
  set_up_weights(/*weights_only=*/true);
  parts_.tracer.show_module(*parts_.state.module);
  parts_.checkpoints.release();
  if (request_.steps) {
    const auto forwards = parts_.options.strategy->divided_model().forward_scope();
    return request_.steps(parts_);
  }
  result_.predictions = parts_.evaluation.predict(parts_.data.loaders().predict, parts_.data.evaluation_batches(),
                                                  request_.return_predictions);
}

// ---- The end

void RankRun::tear_down() {
  TrainerState& state = parts_.state;
  Strategy& strategy = *parts_.options.strategy;
  checkpointing_.reset();
  parts_.data.set_prefetch(nullptr);
  parts_.logger.end_metrics();
  parts_.logger.flush();
  strategy.collective().barrier();
  parts_.stop.any_rank_signalled();  // one that came after the last batch
  const bool requeues = is_asked_to_requeue();
  parts_.data.tear_down();
  parts_.callbacks.tear_down();
  parts_.tracer.finish();  // while the module has its units
  strategy.divided_model().release_module();
  strategy.teardown();
  explain_absent_values(*state.module, absent_,
                        fmt::format("{} left them with its ranks (gather_after_fit: false)", to_string(state.stage)));
  state.status = parts_.stop.status(request_.stage == Stage::kFit && !request_.tune);
  state.running = RunningStage::kIdle;
  parts_.checkpoints.finish_uploads();
  parts_.logger.finish(state.status);
  if (requeues && strategy.is_global_zero()) requeue();
}

bool RankRun::is_asked_to_requeue() const {
  if (request_.stage != Stage::kFit || request_.tune || !parts_.stop.is_interrupted()) return false;
  // The signal reaches the hosts of a job at different times: it may not have come to rank 0 yet.
  for (const std::string& signal :
       parts_.options.strategy->collective().gather_bytes(std::to_string(SignalScope::received())))
    if (signal == std::to_string(SIGUSR1)) return true;
  return false;
}

void RankRun::requeue() const {
  if (request_.ckpt != "auto" || parts_.callbacks.checkpointers().empty()) {
    log::warning("the job is not requeued: the next run would begin anew; hint: --ckpt=auto, and a model_checkpoint");
    return;
  }
  try {
    requeue_slurm_job();
    log::info("SLURM has requeued the job, which goes on from what was saved");
  } catch (const Error& error) {
    log::warning(error.what());
  }
}

std::exception_ptr RankRun::on_error(const std::exception_ptr& thrown) {
  TrainerState& state = parts_.state;
  Strategy& strategy = *parts_.options.strategy;
  anomaly_units_.reset();
  anomaly_.reset();
  const auto checkpointers = parts_.callbacks.checkpointers();
  const std::exception_ptr explained = explain_device_failure(
      with_memory_summary(strategy, state.module.get(), parts_.optimizers, thrown), strategy.root_device(),
      checkpointers.empty() ? "" : checkpointers.front()->last_model_path());
  const std::exception_ptr error = with_context(explained, take_error_notes(thrown), state, strategy);
  parts_.data.set_prefetch(nullptr);
  parts_.step.end_recording();
  checkpointing_.reset();
  state.status = TrainerStatus::kFailed;
  state.at_resume_point = false;
  state.in_fit_loop = false;  // there is no later resume point for which a checkpoint could wait
  std::exception_ptr reported = error;
  if (ControlPlane* control = strategy.control_plane()) {
    control->report_failure(error_message(error));
    // What all ranks run into alike is one failure, which the first of them shows.
    const auto first = control->failure_of_other(std::chrono::seconds(0));
    if (first && strategy.rank() > 0 && without_context(first->message) == without_context(error_message(error)))
      reported = std::make_exception_ptr(RankFailedError(*first));
  }
  log_further_error("the profiler", [this] { parts_.tracer.finish(); });
  parts_.checkpoints.finish_saving_after_failure();
  parts_.callbacks.on_exception(error);
  // Threads share the data module: the last of them may still read from it. TrainerRun tears it down.
  if (!strategy.ranks().are_threads()) parts_.data.tear_down_after_failure();
  parts_.callbacks.tear_down_after_failure();
  log_further_error("teardown of the strategy", [&] { strategy.teardown(); });
  if (state.module != nullptr)
    explain_absent_values(*state.module, absent_,
                          fmt::format("{} failed while its ranks had parts of the model", to_string(state.stage)));
  parts_.checkpoints.release();
  log_further_error("the reset of the metrics", [this] { parts_.logger.forget_epochs(); });
  parts_.logger.set_active({});
  state.running = RunningStage::kIdle;
  // Last, as in tear_down: a server may be waited for longer than the other ranks wait for this one.
  parts_.checkpoints.finish_uploads();
  parts_.logger.finish_after_failure(state.status);
  return reported;
}

}  // namespace levin
