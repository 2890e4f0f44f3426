#include <levin/core/trainer/trainer_run.h>

#include <levin/core/base/error.h>
#include <levin/core/base/host_memory.h>
#include <levin/core/base/quiet_scope.h>
#include <levin/core/base/seed.h>
#include <levin/core/base/signals.h>
#include <levin/core/base/thread_generator.h>
#include <levin/core/checkpoint/checkpoint.h>
#include <levin/core/connectors/error_context.h>
#include <levin/core/interfaces/cluster_environment.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/nn/saved_tensor_scope.h>
#include <levin/core/options/capable_strategies.h>
#include <levin/core/precision/precision.h>
#include <levin/core/trainer/local_hooks.h>
#include <levin/core/trainer/rank_run.h>
#include <levin/core/trainer/thread_advice.h>

#include <fmt/format.h>

#include <optional>
#include <utility>

namespace levin {
namespace {

constexpr const char* kGenerators = "/generators";

struct EndOfCall {
  StopController& stop;
  bool is_fit;
  ~EndOfCall() { stop.end_call(/*takes_requests=*/is_fit); }
};

}  // namespace

RunResult TrainerRun::launch(RunThreadRank run_thread_rank) {
  const TrainerCallScope generator;
  run_thread_rank_ = std::move(run_thread_rank);
  seed_ = global_seed();
  start_anew();
  const SignalScope signals(parts_.options.given.handle_signals && !request_.is_driven);
  std::optional<log::QuietScope> quiet;
  if (request_.is_driven) quiet.emplace();
  const EndOfCall end{.stop = parts_.stop, .is_fit = request_.stage == Stage::kFit && !request_.tune};
  const auto token = parts_.stop.follow_token(end.is_fit);
  try {
    prepare();
    parts_.options.strategy->launcher().launch(*this);
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    parts_.state.status = TrainerStatus::kFailed;  // of ranks in other processes, or that were never started, too
    // What no rank of this process has torn down: what load_outcome set up, and the data module that threads share.
    parts_.callbacks.tear_down_after_failure();
    parts_.data.tear_down_after_failure();
    std::rethrow_exception(without_libtorch_stack(error));
  }
  return std::move(result_);
}

void TrainerRun::open() {
  call_.emplace(parts_.at_work, to_string(request_.stage));
  signals_.emplace(/*handles=*/false);  // those that came before are none of this call's
  try {
    start_anew();
    using Token = decltype(parts_.stop.follow_token(true));
    token_ = std::shared_ptr<Token>(new Token(parts_.stop.follow_token(/*is_fit=*/true)));
    prepare();
    Strategy& strategy = *parts_.options.strategy;
    strategy.ranks().enter(strategy.environment().local_rank());
  } catch (...) {
    parts_.state.status = TrainerStatus::kFailed;
    close();
    throw;
  }
}

void TrainerRun::close() {
  token_.reset();
  parts_.stop.end_call(/*takes_requests=*/true);
  signals_.reset();
  call_.reset();
}

void TrainerRun::start_anew() {
  parts_.context.require_free(*request_.module, request_.tune ? "tune" : to_string(request_.stage));
  if (request_.stage == Stage::kFit) {
    if (!request_.tune && !request_.module->automatic_optimization) check_manual_optimization();
    parts_.begin_fit();
  }
  keep_freed_memory();
  install_autograd_engine();
}

void TrainerRun::prepare() {
  parts_.state.stage = request_.stage;
  parts_.state.status = TrainerStatus::kRunning;
  const StrategySetup setup = parts_.strategy_setup();
  Strategy& strategy = *parts_.options.strategy;
  strategy.prepare(setup);
  advise_on_threads(strategy, setup);
}

void TrainerRun::check_manual_optimization() const {
  const ResolvedOptions& options = parts_.options;
  if (!options.strategy->capabilities().manual_optimization)
    throw ConfigError(fmt::format(
        "trainer.strategy '{}' does not work with manual optimization (the module sets "
        "automatic_optimization = false); valid: {}; hint: one optimizer, with parameter groups, and one sum "
        "of losses do without it",
        options.strategy->name(), capable_strategies(&StrategyCapabilities::manual_optimization)));
  if (options.given.gradient_clip_val)
    throw ConfigError(
        "trainer.gradient_clip_val does not work with manual optimization; hint: call clip_gradients() in "
        "training_step");
  if (!options.given.accumulate_grad_batches.is_off())
    throw ConfigError(
        "trainer.accumulate_grad_batches does not work with manual optimization; hint: count batches in "
        "training_step");
}

void TrainerRun::run(int64_t local_rank) {
  Strategy& strategy = *parts_.options.strategy;
  if (local_rank > 0)
    if (const auto of_thread = strategy.for_thread_rank(local_rank)) {
      // Its copy of the module is made of the numbers that a program draws first, as in a process of its own.
      const ThreadGeneratorScope generator(seed_);
      return run_thread_rank_(of_thread, request_, local_rank);
    }
  strategy.ranks().enter(local_rank);
  result_ = RankRun(parts_, request_).run();
}

void TrainerRun::save_outcome(const std::string& directory) {
  result_.run_directory = parts_.logger.run_directory();
  result_.signal = SignalScope::received();
  result_.is_interrupted = parts_.state.status == TrainerStatus::kInterrupted;
  result_.stop_reason = parts_.stop.reason();
  if (request_.stage == Stage::kFit) result_.fit = parts_.checkpoints.dump_outcome();
  result_.write(directory);
  write_checkpoint(directory + kGenerators, capture_rng_state(), {});
}

void TrainerRun::load_outcome(const std::string& directory) {
  result_ = RunResult::read(directory);
  parts_.logger.set_run_directory(result_.run_directory);
  parts_.state.stage = request_.stage;
  parts_.data.begin_call(request_.data, request_.loaders);
  parts_.context.attach(request_.module);
  if (result_.signal != 0) SignalScope::adopt(result_.signal);
  parts_.state.status = result_.is_interrupted ? TrainerStatus::kInterrupted : TrainerStatus::kFinished;
  parts_.stop.adopt(result_.stop_reason);
  if (request_.stage == Stage::kFit) {
    if (result_.is_interrupted && result_.signal != 0) parts_.stop.interrupt();
    run_local_hooks(parts_, [this] {
      // No rank ran here: the module gets its layers, in the run's precision, as theirs did.
      parts_.data.set_up_data_module();
      parts_.callbacks.set_up_module(request_.stage);
      configure_model(parts_);
      parts_.options.precision->convert_module(*request_.module);
      parts_.checkpoints.load_outcome(result_.fit);
      parts_.data.tear_down();
      parts_.callbacks.tear_down();
    });
  }
  // What is drawn next goes on after rank 0's numbers, as where that is this process.
  restore_rng_state(read_checkpoint(directory + kGenerators));
}

}  // namespace levin
