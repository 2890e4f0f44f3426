#pragma once

#include <levin/core/comm/rank_status.h>
#include <levin/core/connectors/span_names.h>
#include <levin/core/interfaces/profiler.h>

#include <atomic>
#include <optional>
#include <utility>

namespace levin {

/// Tells the profiler of the call, and the report of a stall, what a rank is doing.
class Tracer {
 public:
  /// Starts a call's profiler and opens the span of the whole call. `profiler`: outlives the call.
  void start(Profiler& profiler, const ProfiledCall& call) {
    span_names_.clear();
    profiler.start(call);
    profiler_ = &profiler;
    whole_call_.emplace(&profiler, to_string(call.stage));
  }
  /// Shows a profiler the module with all its parts: units may be hooked.
  void show_module(torch::nn::Module& module) {
    if (profiler_ != nullptr) profiler_->on_model_ready(module);
  }
  /// Ends the profiler, where one was started.
  void finish() {
    whole_call_.reset();
    if (Profiler* profiler = std::exchange(profiler_, nullptr)) profiler->finish();
  }

  /// The profiler of the call under way; nullptr where it has none.
  Profiler* profiler() const { return profiler_; }
  SpanNames& span_names() { return span_names_; }
  RankStatus& rank_status() { return rank_status_; }

 private:
  Profiler* profiler_ = nullptr;
  SpanNames span_names_;
  std::optional<ProfilerSpan> whole_call_;
  RankStatus rank_status_;
};

/// Scope of something that the rank does: a span of the profiler, and what a stall report says.
class [[nodiscard]] Activity {
 public:
  /// `name`: a string literal.
  Activity(Tracer& tracer, const char* name)
      : span_(tracer.profiler(), name),
        rank_status_(tracer.rank_status()),
        former_(rank_status_.activity.load(std::memory_order_relaxed)) {
    rank_status_.activity.store(name, std::memory_order_relaxed);
  }
  ~Activity() { rank_status_.activity.store(former_, std::memory_order_relaxed); }
  Activity(const Activity&) = delete;
  Activity& operator=(const Activity&) = delete;

 private:
  ProfilerSpan span_;
  RankStatus& rank_status_;
  const char* former_;
};

}  // namespace levin
