#pragma once

#include <levin/core/connectors/error_context.h>
#include <levin/core/connectors/tracer.h>
#include <levin/core/connectors/trainer_state.h>
#include <levin/core/interfaces/callback.h>
#include <levin/core/interfaces/checkpointer.h>
#include <levin/core/interfaces/module.h>

#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace levin {

/// Owns the callbacks of a call and their order, and is the one dispatcher of hooks: callbacks in order, then the
/// module. Each hook is a span of the profiler, and in it each callback and the module.
class CallbackConnector {
 public:
  /// `trainer`: handed to the hooks.
  CallbackConnector(Trainer& trainer, TrainerState& state, Tracer& tracer)
      : trainer_(trainer), state_(state), tracer_(tracer) {}

  /// Takes the callbacks of a call. Those that act on metrics run after the others, checkpointers last; the order is
  /// kept otherwise.
  void set(std::vector<std::shared_ptr<Callback>> callbacks);
  const std::vector<std::shared_ptr<Callback>>& all() const { return callbacks_; }
  const std::vector<Checkpointer*>& checkpointers() const { return checkpointers_; }

  /// Runs a hook that callbacks and the module have. `name`, here and below: a string literal.
  template <class... CallbackParameters, class... ModuleParameters, class... Arguments>
  void call(const char* name, void (Callback::*of_callback)(Trainer&, Module&, CallbackParameters...),
            void (Module::*of_module)(ModuleParameters...), Arguments&&... arguments) {
    const Activity activity(tracer_, name);
    run_callbacks(name, of_callback, 0, callbacks_.size(), arguments...);
    run_module(name, of_module, arguments...);
  }

  /// Runs setup of the callbacks, then of the module.
  void set_up(Stage stage);
  void set_up_module(Stage stage);
  /// Runs teardown, once, of the callbacks and the module whose setup has run. Where one throws, the rest is left for
  /// another call.
  void tear_down();
  /// The same after an error, which matters more: what a hook throws is logged.
  void tear_down_after_failure();

  /// Runs a hook of callbacks alone.
  template <class... CallbackParameters, class... Arguments>
  void callbacks(const char* name, void (Callback::*hook)(Trainer&, Module&, CallbackParameters...),
                 Arguments&&... arguments) {
    const Activity activity(tracer_, name);
    run_callbacks(name, hook, 0, callbacks_.size(), arguments...);
  }

  /// Runs a hook of the module alone.
  template <class Result, class... ModuleParameters, class... Arguments>
  Result module(const char* name, Result (Module::*hook)(ModuleParameters...), Arguments&&... arguments) {
    const Activity activity(tracer_, name);
    return run_module(name, hook, arguments...);
  }

  /// Runs a hook at which metrics are acted on and checkpoints are made: other callbacks, the module, `before_acting`,
  /// the callbacks that act on metrics, `before_saving`, and at the resume point that is reached then the
  /// checkpointers.
  template <class... CallbackParameters, class... ModuleParameters, class BeforeActing, class BeforeSaving,
            class... Arguments>
  void call_in_stages(const char* name, void (Callback::*of_callback)(Trainer&, Module&, CallbackParameters...),
                      void (Module::*of_module)(ModuleParameters...), BeforeActing&& before_acting,
                      BeforeSaving&& before_saving, Arguments&&... arguments) {
    const Activity activity(tracer_, name);
    run_callbacks(name, of_callback, 0, first_after_metrics_, arguments...);
    run_module(name, of_module, arguments...);
    before_acting();
    run_callbacks(name, of_callback, first_after_metrics_, first_checkpointer_, arguments...);
    before_saving();
    state_.at_resume_point = true;
    run_callbacks(name, of_callback, first_checkpointer_, callbacks_.size(), arguments...);
    state_.at_resume_point = false;
  }

  /// Lets the checkpointers save the last state: a signal ends training at this resume point.
  void save_last();
  /// Tells all callbacks of an error. What they throw is logged.
  void on_exception(const std::exception_ptr& error);

 private:
  template <class... CallbackParameters, class... Arguments>
  void run_callbacks(const char* name, void (Callback::*hook)(Trainer&, Module&, CallbackParameters...), size_t begin,
                     size_t end, Arguments&&... arguments) {
    if (begin == end) return;  // a dry run is without callbacks; names are made of those of the call
    Profiler* const profiler = tracer_.profiler();
    const std::string* spans = profiler == nullptr ? nullptr : tracer_.span_names().of_callbacks(name, callbacks_);
    for (size_t i = begin; i < end; ++i) {
      const ProfilerSpan span(profiler, spans == nullptr ? nullptr : spans[i].c_str());
      Callback& callback = *callbacks_[i];
      call_user(
          state_, name, callback, [&] { (callback.*hook)(trainer_, *state_.module, arguments...); }, arguments...);
    }
  }

  template <class Result, class... ModuleParameters, class... Arguments>
  Result run_module(const char* name, Result (Module::*hook)(ModuleParameters...), Arguments&&... arguments) {
    Profiler* const profiler = tracer_.profiler();
    Module& module = *state_.module;
    const ProfilerSpan span(profiler, profiler == nullptr ? nullptr : tracer_.span_names().of_module(name, module));
    return call_user(
        state_, name, module, [&] { return (module.*hook)(arguments...); }, arguments...);
  }

  Trainer& trainer_;
  TrainerState& state_;
  Tracer& tracer_;
  std::vector<std::shared_ptr<Callback>> callbacks_;
  size_t first_after_metrics_ = 0;                 ///< index of the first callback that acts on metrics
  std::vector<Checkpointer*> checkpointers_ = {};  ///< as they were given
  size_t first_checkpointer_ = 0;                  ///< index of the first checkpointer
  std::vector<std::shared_ptr<Callback>> set_up_;  ///< whose setup has run, and teardown has not
  bool module_is_set_up_ = false;                  ///< likewise
  Stage set_up_for_ = Stage::kFit;
};

}  // namespace levin
