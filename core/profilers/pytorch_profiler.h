#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/interfaces/profiler.h>
#include <levin/core/profilers/profiler_schedule.h>
#include <levin/core/profilers/unit_spans.h>

#include <torch/csrc/profiler/orchestration/observer.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string>

namespace at {
struct RecordFunction;
}
namespace torch::autograd::profiler {
struct ProfilerResult;
}

namespace levin {

/// Options of PyTorchProfiler, explained in describe().
struct PyTorchProfilerOptions {
  ProfilerSchedule schedule = {};
  bool record_shapes = false;
  bool profile_memory = false;
  bool with_flops = false;
  bool units = true;
  bool rank_zero_only = false;
  int64_t row_limit = 20;
  std::string dirpath = {};
  static void describe(Schema<PyTorchProfilerOptions>& schema);
};

/// Records what operators and kernels do in a few steps, with LibTorch's profiler (Kineto), as torch.profiler.profile
/// does: a trace for each window of the schedule, and a table of the operators by self time. In the trace every
/// operator lies in the ranges of its unit, its hook or phase, and its step ("ProfilerStep#3").
///
/// Traces are HOST_PID.TIME.pt.trace.json, which TensorBoard's profiler plugin, chrome://tracing and ui.perfetto.dev
/// show; the table is HOST_PID.TIME.operators.txt beside it. None is ever overwritten.
///
/// LibTorch records once in a process: of ranks that are threads, the first one records its own operators. The threads
/// of replicas and of backward belong to the rank that runs them.
class PyTorchProfiler final : public Profiler {
 public:
  using Options = PyTorchProfilerOptions;
  explicit PyTorchProfiler(const Options& options = {});
  ~PyTorchProfiler() override;

  void start(const ProfiledCall& call) override;
  void on_model_ready(torch::nn::Module& module) override;
  void step() override;
  void begin(const char* name) override;
  void end(const char* name) override;
  void finish() override;

 private:
  /// Changes to the action of `step_`.
  void change_to(ProfilerAction next);
  bool prepare();
  void start_recording();
  void wait_for_kernels() const;
  void stop_recording(int64_t last_step);
  void release_process();
  /// Writes trace and table; returns a message with their paths, or why there are none.
  std::string save(torch::autograd::profiler::ProfilerResult& result, const std::string& table) const;
  void begin_step_range();
  void end_open_ranges();
  /// Gives up for the rest of the call, so that training goes on.
  void give_up(const std::string& why);

  const Options options_;
  ProfiledCall call_;
  torch::profiler::impl::ProfilerConfig config_;
  std::set<torch::profiler::impl::ActivityType> activities_;
  bool takes_part_ = false;
  int64_t step_ = -1;
  ProfilerAction action_ = ProfilerAction::kNone;
  bool holds_process_ = false;  ///< this object has the process's only profiler of LibTorch
  bool recording_ = false;      ///< changes between two steps, when no other thread runs units
  bool has_recorded_ = false;   ///< in this call
  int64_t first_recorded_ = 0;  ///< of the window
  std::string step_name_;
  std::unique_ptr<at::RecordFunction> step_range_;
  UnitSpans units_{*this};
};

}  // namespace levin
