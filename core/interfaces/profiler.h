#pragma once

#include <levin/core/base/events.h>
#include <levin/core/base/registry.h>

#include <cstdint>
#include <string>

namespace torch::nn {
class Module;
}

namespace levin {

/// The call that a profiler watches, on one rank.
struct ProfiledCall {
  Stage stage = Stage::kFit;
  int64_t rank = 0;
  int64_t world_size = 1;
  /// Whether it is the first rank of its process: ranks may be threads, which share what a process has once.
  bool is_first_in_process = true;
  std::string directory = {};  ///< the run's folder, shared by all ranks; empty where the run writes nothing
};

/// Sees every hook and every phase of a call begin and end, on one rank. Without one, nothing is called.
///
/// Each rank has its own; a trainer's serves one call after the other: start, on_model_ready, then the steps, finish.
/// start, on_model_ready, step and finish come from the rank's own thread; begin and end too, but for what replicas of
/// `dp` and recomputation in backward run: that comes from other threads, at the same time, and nests within each
/// thread. Implementations must not throw for a passing fault (a full disk): they warn and go on.
class Profiler : public Configurable {
 public:
  /// Called when a call begins, before any hook of it.
  virtual void start(const ProfiledCall& /*call*/) {}
  /// Called when the module has all its parts, on its device: from here to `finish` units may be hooked (see
  /// UnitSpans).
  virtual void on_model_ready(torch::nn::Module& /*module*/) {}
  /// Called when a batch of the call's own kind begins: a training batch in fit, but none of the validation inside of
  /// it. In fit it has been fetched already, because the loop looks one batch ahead; elsewhere it is fetched now, or
  /// was so together with the one before it.
  virtual void step() {}
  /// Called when a span begins inside of those that are open. `name` ends in a null, and neither moves nor changes
  /// until `finish`: one address is one name, though one name may come from several addresses.
  virtual void begin(const char* name) = 0;
  /// Called when the innermost open span ends, also by an exception.
  virtual void end(const char* name) = 0;
  /// Called when the call is over, or has failed. No span is open.
  virtual void finish() {}
};

/// A span of a profiler that may be absent. Users name parts of their own code with it:
///
///     const levin::ProfilerSpan span(trainer().profiler(), "augmentation");
class ProfilerSpan {
 public:
  /// `name`: a string literal, or what lives as long; see Profiler::begin.
  ProfilerSpan(Profiler* profiler, const char* name) : profiler_(profiler), name_(name) {
    if (profiler_ != nullptr) profiler_->begin(name_);
  }
  ~ProfilerSpan() {
    if (profiler_ != nullptr) profiler_->end(name_);
  }
  ProfilerSpan(const ProfilerSpan&) = delete;
  ProfilerSpan& operator=(const ProfilerSpan&) = delete;

 private:
  Profiler* profiler_;
  const char* name_;
};

}  // namespace levin
