#pragma once

#include <levin/core/interfaces/callback.h>
#include <levin/core/trainer/error_context.h>
#include <levin/core/trainer/rank_core.h>

#include <atomic>
#include <string>

namespace levin {

/// What the rank does while it lives: a span of the profiler, and what a stall report says.
class Activity {
 public:
  /// `name`: a string literal.
  Activity(RankCore& core, const char* name)
      : span_(core.profiler, name),
        whereabouts_(core.whereabouts),
        former_(whereabouts_.activity.load(std::memory_order_relaxed)) {
    whereabouts_.activity.store(name, std::memory_order_relaxed);
  }
  ~Activity() { whereabouts_.activity.store(former_, std::memory_order_relaxed); }
  Activity(const Activity&) = delete;
  Activity& operator=(const Activity&) = delete;

 private:
  ProfilerSpan span_;
  Whereabouts& whereabouts_;
  const char* former_;
};

/// The one dispatcher of hooks: callbacks in order, then the module. Timing and ranges hang here: a span for the hook,
/// and in it one for each callback and one for the module.
class Hooks {
 public:
  explicit Hooks(RankCore& core) : core_(core) {}

  /// A hook that callbacks and the module have. `name`, here and below: a string literal.
  template <class... CallbackParameters, class... ModuleParameters, class... Arguments>
  void call(const char* name, void (Callback::*of_callback)(Trainer&, Module&, CallbackParameters...),
            void (Module::*of_module)(ModuleParameters...), Arguments&&... arguments) {
    const Activity activity(core_, name);
    run_callbacks(name, of_callback, 0, core_.callbacks.size(), arguments...);
    run_module(name, of_module, arguments...);
  }

  /// A hook of callbacks alone.
  template <class... CallbackParameters, class... Arguments>
  void callbacks(const char* name, void (Callback::*hook)(Trainer&, Module&, CallbackParameters...),
                 Arguments&&... arguments) {
    const Activity activity(core_, name);
    run_callbacks(name, hook, 0, core_.callbacks.size(), arguments...);
  }

  /// A hook of the module alone.
  template <class Result, class... ModuleParameters, class... Arguments>
  Result module(const char* name, Result (Module::*hook)(ModuleParameters...), Arguments&&... arguments) {
    const Activity activity(core_, name);
    return run_module(name, hook, arguments...);
  }

  /// A moment at which metrics are acted on and checkpoints are made: other callbacks, the module, the callbacks that
  /// act on metrics (after `before_acting`), `before_saving`, the checkpointers.
  template <class... CallbackParameters, class... ModuleParameters, class BeforeActing, class BeforeSaving,
            class... Arguments>
  void call_in_stages(const char* name, void (Callback::*of_callback)(Trainer&, Module&, CallbackParameters...),
                      void (Module::*of_module)(ModuleParameters...), BeforeActing&& before_acting,
                      BeforeSaving&& before_saving, Arguments&&... arguments) {
    const Activity activity(core_, name);
    run_callbacks(name, of_callback, 0, core_.first_after_metrics, arguments...);
    run_module(name, of_module, arguments...);
    before_acting();
    run_callbacks(name, of_callback, core_.first_after_metrics, core_.first_checkpointer, arguments...);
    before_saving();
    core_.exact_moment = true;
    run_callbacks(name, of_callback, core_.first_checkpointer, core_.callbacks.size(), arguments...);
    core_.exact_moment = false;
  }

 private:
  template <class... CallbackParameters, class... Arguments>
  void run_callbacks(const char* name, void (Callback::*hook)(Trainer&, Module&, CallbackParameters...), size_t begin,
                     size_t end, Arguments&&... arguments) {
    if (begin == end) return;  // a trial runs without callbacks; names are made of those of the call
    const std::string* spans =
        core_.profiler == nullptr ? nullptr : core_.span_names.of_callbacks(name, core_.callbacks);
    for (size_t i = begin; i < end; ++i) {
      const ProfilerSpan span(core_.profiler, spans == nullptr ? nullptr : spans[i].c_str());
      Callback& callback = *core_.callbacks[i];
      call_user(
          core_, name, callback, [&] { (callback.*hook)(core_.trainer(), core_.module(), arguments...); },
          arguments...);
    }
  }

  template <class Result, class... ModuleParameters, class... Arguments>
  Result run_module(const char* name, Result (Module::*hook)(ModuleParameters...), Arguments&&... arguments) {
    const ProfilerSpan span(core_.profiler,
                            core_.profiler == nullptr ? nullptr : core_.span_names.of_module(name, core_.module()));
    return call_user(
        core_, name, core_.module(), [&] { return (core_.module().*hook)(arguments...); }, arguments...);
  }

  RankCore& core_;
};

}  // namespace levin
