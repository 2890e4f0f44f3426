#pragma once

#include <levin/core/interfaces/callback.h>
#include <levin/core/trainer/rank_core.h>

#include <atomic>
#include <string_view>

namespace levin {

/// What the rank does while it lives: a span of the profiler, and what a stall report says.
class Activity {
 public:
  /// `name`: a string literal.
  Activity(RankCore& core, std::string_view name)
      : span_(core.profiler, name),
        whereabouts_(core.whereabouts),
        former_(whereabouts_.activity.load(std::memory_order_relaxed)) {
    whereabouts_.activity.store(name.data(), std::memory_order_relaxed);
  }
  ~Activity() { whereabouts_.activity.store(former_, std::memory_order_relaxed); }
  Activity(const Activity&) = delete;
  Activity& operator=(const Activity&) = delete;

 private:
  ProfilerSpan span_;
  Whereabouts& whereabouts_;
  const char* former_;
};

/// The one dispatcher of hooks: callbacks in order, then the module. Timing and ranges hang here.
class Hooks {
 public:
  explicit Hooks(RankCore& core) : core_(core) {}

  /// A hook that callbacks and the module have.
  template <class... CallbackParameters, class... ModuleParameters, class... Arguments>
  void call(std::string_view name, void (Callback::*of_callback)(Trainer&, Module&, CallbackParameters...),
            void (Module::*of_module)(ModuleParameters...), Arguments&&... arguments) {
    callbacks(name, of_callback, arguments...);
    module(name, of_module, arguments...);
  }

  /// A hook of callbacks alone.
  template <class... CallbackParameters, class... Arguments>
  void callbacks(std::string_view name, void (Callback::*hook)(Trainer&, Module&, CallbackParameters...),
                 Arguments&&... arguments) {
    const Activity activity(core_, name);
    for (const auto& callback : core_.callbacks) (callback.get()->*hook)(core_.trainer(), core_.module(), arguments...);
  }

  /// A hook of the module alone.
  template <class Result, class... ModuleParameters, class... Arguments>
  Result module(std::string_view name, Result (Module::*hook)(ModuleParameters...), Arguments&&... arguments) {
    const Activity activity(core_, name);
    return (core_.module().*hook)(arguments...);
  }

  /// A moment at which metrics are acted on and checkpoints are made: other callbacks, the module, the callbacks that
  /// act on metrics (after `before_acting`), `before_saving`, the checkpointers.
  template <class... CallbackParameters, class... ModuleParameters, class BeforeActing, class BeforeSaving,
            class... Arguments>
  void call_in_stages(std::string_view name, void (Callback::*of_callback)(Trainer&, Module&, CallbackParameters...),
                      void (Module::*of_module)(ModuleParameters...), BeforeActing&& before_acting,
                      BeforeSaving&& before_saving, Arguments&&... arguments) {
    const auto run = [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i)
        (core_.callbacks[i].get()->*of_callback)(core_.trainer(), core_.module(), arguments...);
    };
    const Activity activity(core_, name);
    run(0, core_.first_after_metrics);
    module(name, of_module, arguments...);
    before_acting();
    run(core_.first_after_metrics, core_.first_checkpointer);
    before_saving();
    core_.exact_moment = true;
    run(core_.first_checkpointer, core_.callbacks.size());
    core_.exact_moment = false;
  }

 private:
  RankCore& core_;
};

}  // namespace levin
