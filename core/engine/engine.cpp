#include <levin/core/engine/engine.h>

#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/core/base/quiet_scope.h>
#include <levin/core/base/thread_generator.h>
#include <levin/core/connectors/error_context.h>
#include <levin/core/engine/rank_calls.h>
#include <levin/core/interfaces/callback.h>
#include <levin/core/interfaces/cluster_environment.h>
#include <levin/core/interfaces/independent_steps.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/options/registries.h>
#include <levin/core/trainer/trainer.h>
#include <levin/core/trainer/trainer_run.h>

#include <c10/util/ScopeExit.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

namespace levin {
namespace {

bool is_given(const std::vector<Spec<Callback>>& callbacks, const char* name) {
  const auto* registered = registries().callbacks.find(name);
  return std::ranges::any_of(callbacks, [&](const Spec<Callback>& spec) {
    if (spec.object() == nullptr) return spec.name("trainer.callbacks", "callback") == name;
    return registered != nullptr && registered->is_instance(*spec.object());
  });
}

/// Throws ConfigError for options of the loop that an engine does not have; else those that are wanted here.
TrainerOptions without_loop(TrainerOptions options) {
  const TrainerOptions defaults;
  const auto refuse_where = [](bool is_set, const char* option) {
    if (is_set)
      throw ConfigError(
          fmt::format("trainer.{} is an option of the loop over training data, which an engine does not "
                      "have; hint: leave it out, or use Trainer::fit",
                      option));
  };
  refuse_where(options.fast_dev_run.batches() > 0, "fast_dev_run");
  refuse_where(!options.overfit_batches.is_zero(), "overfit_batches");
  refuse_where(!options.limit_train_batches.is_everything(), "limit_train_batches");
  refuse_where(options.val_check_interval.value() != defaults.val_check_interval.value(), "val_check_interval");
  refuse_where(options.check_val_every_n_epoch != defaults.check_val_every_n_epoch, "check_val_every_n_epoch");
  refuse_where(options.reload_dataloaders_every_n_epochs > 0, "reload_dataloaders_every_n_epochs");
  if (!options.max_epochs && options.max_steps < 0 && !options.max_time) options.max_epochs = -1;
  options.enable_progress_bar = is_given(options.callbacks, "progress_bar");
  options.enable_model_summary = is_given(options.callbacks, "model_summary");
  return options;
}

}  // namespace

/// The calls of an engine whose rank is this process.
class Engine::Calls final : public RankCalls {
 public:
  Calls(std::unique_ptr<Trainer> trainer, std::shared_ptr<Module> module)
      : RankCalls(*trainer->components_),
        trainer_(std::move(trainer)),
        request_{.stage = Stage::kFit, .module = std::move(module), .is_driven = true} {
    check();
    parts().context.require_free(*request_.module, "an engine");
    parts().context.attach(request_.module);  // for Rank::module, before the first step
  }

  void load(const std::string& ckpt) {
    require_open("load");
    if (rank_)
      throw Error("engine",
                  "load after the first step; valid: before it; hint: close() this engine and make a new one");
    if (ckpt.empty()) throw Error("engine", "load was given an empty path; valid: a checkpoint, last, best or auto");
    const bool is_path = ckpt != "last" && ckpt != "best" && ckpt != "auto" && ckpt.find("://") == std::string::npos;
    if (is_path && !std::filesystem::exists(ckpt))
      throw Error("engine", fmt::format("load was given a checkpoint that is not there; got '{}'; valid: a path, last, "
                                        "best or auto",
                                        ckpt));
    request_.ckpt = ckpt;
    if (!starts_ranks_) run("load", [] {});
  }

  /// `engine`: of these calls.
  void run_on_ranks(Rank& engine, const std::function<void(Rank&)>& steps) {
    if (is_inside() || is_running_) throw Error("engine", "run inside of run or of a step; valid: one after the other");
    require_open("run");
    if (steps == nullptr) throw Error("engine", "run was given no function");
    is_running_ = true;
    const auto leave = c10::make_scope_exit([this] { is_running_ = false; });
    if (starts_ranks_)
      run_started(steps);
    else
      run_here(engine, steps);
  }

  void close() {
    if (is_inside() || runs_ranks()) require_between_steps("close");
    if (has_ended()) return;
    if (failure() != nullptr || !rank_) return end("close()");
    run(
        "close",
        [this] {
          if (parts().fit.in_epoch())
            throw Error("engine", "close inside of an epoch; valid: after epoch() has returned");
        },
        [this] { rank_->end(); });
    run_->close();
    forget();
    end("close()");
  }

  /// An exception that the engine has not thrown is on its way through the program.
  void abandon() noexcept {
    if (has_ended() || failure() != nullptr || !rank_) return;
    try {
      run("close", [] { throw Error("engine", "an exception of the program ended its loop"); });
    } catch (const std::exception&) {
      return;  // that of the program matters
    }
  }

 private:
  void start(const char* name) override {
    if (rank_) return;
    if (runs_ranks()) require_between_steps(name);
    if (starts_ranks_)
      throw Error("engine", fmt::format("{} of an engine whose ranks run() starts; got strategy '{}' on {} devices; "
                                        "valid: engine.run([&](levin::Rank& rank) {{ ... }}), with rank.{}",
                                        name, trainer_->strategy().name(), trainer_->devices().size(), name));
    const log::QuietScope quiet;
    generator_.emplace();
    run_.emplace(parts(), request_);
    try {
      run_->open();
      rank_.emplace(parts(), request_);
      const RankScopes scopes(parts(), /*is_quiet=*/true);
      rank_->begin();
    } catch (...) {
      fail(std::current_exception());
    }
  }

  std::exception_ptr on_failure(const std::exception_ptr& error) override {
    const std::exception_ptr thrown = without_libtorch_stack(rank_ ? rank_->fail(error) : error);
    if (rank_) run_->close();
    forget();
    return thrown;
  }

  void run_here(Rank& engine, const std::function<void(Rank&)>& steps) {
    run("run", [] {});
    try {
      steps(engine);
    } catch (...) {
      const std::exception_ptr error = std::current_exception();
      if (failure() == nullptr && !has_ended()) run("run", [&] { std::rethrow_exception(error); });
      throw;
    }
    close();
  }

  void run_started(const std::function<void(Rank&)>& steps) {
    RunRequest request = request_;
    request.steps = [&](TrainerComponents& parts) {
      const auto calls = std::make_shared<RankCalls>(parts);
      Rank rank(calls);
      steps(rank);
      // The program may have caught it.
      if (calls->failure() != nullptr) std::rethrow_exception(calls->failure());
      calls->end("run()");
    };
    try {
      trainer_->run(request);
    } catch (...) {
      end("run(), which failed");
      throw;
    }
    end("run()");
  }

  void forget() {
    rank_.reset();
    run_.reset();
    generator_.reset();
  }

  [[noreturn]] void require_between_steps(const char* name) const {
    throw Error("engine", fmt::format("{} of the engine inside of its run() or of a step; valid: the Rank that run() "
                                      "gives, between steps",
                                      name));
  }

  bool runs_ranks() const { return is_running_ && starts_ranks_; }

  void check() {
    Strategy& strategy = trainer_->strategy();
    if (request_.module == nullptr) throw Error("engine", "an engine needs a module; got nullptr");
    const log::QuietScope quiet;
    strategy.prepare(parts().strategy_setup());  // starts no rank yet
    const ClusterEnvironment& ranks = strategy.environment();
    starts_ranks_ = strategy.ranks().are_threads() ? trainer_->devices().size() > 1
                                                   : ranks.world_size() > 1 && !ranks.creates_processes_externally();
    if (dynamic_cast<IndependentSteps*>(&strategy) != nullptr)
      throw ConfigError(
          fmt::format("trainer.strategy '{}' gives its ranks batches of one loader, which an engine does "
                      "not have; valid: ddp, sharded or another strategy of steps taken together",
                      strategy.name()));
  }

  const std::unique_ptr<Trainer> trainer_;
  RunRequest request_;
  bool starts_ranks_ = false;  ///< run() starts the ranks; else this process is one
  bool is_running_ = false;    ///< run()
  std::optional<TrainerCallScope> generator_;
  std::optional<TrainerRun> run_;
  std::optional<RankRun> rank_;  ///< once started
};

Engine::Engine(std::shared_ptr<Module> module, TrainerOptions options)
    : Engine(std::make_shared<Calls>(std::make_unique<Trainer>(without_loop(std::move(options))), std::move(module))) {}

Engine::Engine(std::shared_ptr<Calls> calls)
    : Rank(calls), own_(std::move(calls)), exceptions_(std::uncaught_exceptions()) {}

Engine::~Engine() {
  try {
    if (std::uncaught_exceptions() > exceptions_)
      own_->abandon();
    else
      own_->close();
  } catch (const std::exception& error) {
    log::warning(fmt::format("the engine could not be closed: {}", error.what()));
  }
}

void Engine::load(const std::string& ckpt) { own_->load(ckpt); }
void Engine::run(const std::function<void(Rank& rank)>& steps) { own_->run_on_ranks(*this, steps); }
void Engine::close() { own_->close(); }

}  // namespace levin
