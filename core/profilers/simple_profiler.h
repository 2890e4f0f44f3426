#pragma once

#include <levin/core/base/mutex.h>
#include <levin/core/base/schema.h>
#include <levin/core/interfaces/profiler.h>
#include <levin/core/profilers/span_times.h>
#include <levin/core/profilers/unit_spans.h>

#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace levin {

/// Options of SimpleProfiler, explained in describe().
struct SimpleProfilerOptions {
  bool units = true;
  double least_percent = 0.1;
  static void describe(Schema<SimpleProfilerOptions>& schema);
};

/// Adds up the time of every hook, callback, phase and unit. At the end of the call it prints a table on rank 0's
/// console and writes one on every rank, profile_STAGE_rankN.txt in the run's folder.
///
/// It measures host time and never waits for a GPU, whose time appears in the span in which the host waits for it (the
/// logging boundary, a clipping norm that is read).
class SimpleProfiler final : public Profiler {
 public:
  using Options = SimpleProfilerOptions;
  explicit SimpleProfiler(const Options& options = {});
  ~SimpleProfiler() override;

  void start(const ProfiledCall& call) override;
  void on_model_ready(torch::nn::Module& module) override;
  void begin(const char* name) override { times().begin(name); }
  void end(const char* /*name*/) override { times().end(); }
  void finish() override;

  /// Returns the times of the call under way, or of the last one, the longest total first.
  std::vector<SpanTime> summary() const;
  /// Returns the summary as a table, with the rows that take at least `least_percent` of the whole time.
  std::string table(double least_percent = 0) const;

 private:
  /// Returns the calling thread's times.
  SpanTimes& times() { return std::this_thread::get_id() == rank_thread_ ? own_ : times_of_other_thread(); }
  SpanTimes& times_of_other_thread();

  const Options options_;
  ProfiledCall call_;
  SpanTimes::Clock::time_point started_;
  SpanTimes::Clock::duration whole_{0};
  bool running_ = false;
  std::vector<SpanTime> summary_;  ///< of the last call
  std::thread::id rank_thread_;
  SpanTimes own_;        ///< of the rank's thread
  uint64_t serial_ = 0;  ///< tells the calls of all profilers of the process apart
  mutable Mutex mutex_;  ///< taken when a thread comes that served another profiler last
  std::map<std::thread::id, SpanTimes> others_ LEVIN_GUARDED_BY(mutex_);  ///< units of replicas
  UnitSpans units_{*this};
};

}  // namespace levin
