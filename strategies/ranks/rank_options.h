#pragma once

#include <levin/core/base/schema.h>
#include <levin/strategies/comm/device_backends.h>

#include <string>

namespace levin {

/// Ways to start the ranks of a host.
enum class StartMethod {
  /// Processes: those that a launcher has started, or further runs of this program, which the first call starts.
  kSubprocess,
  /// Processes forked from the calling one, which end with the call: code after `fit` goes on in one process, to which
  /// weights, results and paths of checkpoints come back.
  kFork,
  /// Threads of the calling process: one copy of the data set, nothing to start, and on CPUs gradients that are
  /// combined in place, in shared memory.
  kThread
};

/// Options of how ranks start and reach each other, and how long they wait. To users these are options of the strategy,
/// beside its own, in YAML and in C++: the options struct of a RankedStrategy has fields of these names and defaults,
/// describes them by describe_rank_options and passes them on by rank_options.
struct RankOptions {
  StartMethod start_method = StartMethod::kSubprocess;
  std::string backend = "auto";  ///< auto, gloo, nccl, shared_memory, or one that DeviceBackends has
  double timeout = 1800;         ///< seconds that a rank waits for the others in a collective
  double start_timeout = 120;    ///< seconds that ranks wait for each other at the start
  double stall_report = 60;      ///< seconds in one collective after which where ranks are is printed
  double hang_timeout = 600;     ///< seconds in one part of a step after which the job ends; 0: never
};

/// Longest wait in seconds, which all clocks and calls that wait can count.
constexpr double kMostSeconds = 1e7;

/// Describes the field `hang_timeout`.
template <class Options>
void describe_hang_timeout(Schema<Options>& schema) {
  schema
      .field("hang_timeout", &Options::hang_timeout,
             "time without progress in a step after which the job ends (s); 0: never")
      .at_least(0)
      .at_most(kMostSeconds);
}

/// Describes the fields of `Options` that are named as those of RankOptions.
template <class Options>
void describe_rank_options(Schema<Options>& schema) {
  using O = Options;
  schema.field(
      "start_method", &O::start_method,
      "kind of ranks; subprocess: of a launcher, or further runs of the program; fork, thread: for one call",
      {{"subprocess", StartMethod::kSubprocess}, {"fork", StartMethod::kFork}, {"thread", StartMethod::kThread}});
  schema
      .field("backend", &O::backend,
             "communication of tensors; auto: nccl for CUDA, shared_memory on one host, else gloo")
      .one_of(DeviceBackends::instance().option_values());
  schema.field("timeout", &O::timeout, "longest wait for other ranks in a collective (s)")
      .above(0)
      .at_most(kMostSeconds);
  schema.field("start_timeout", &O::start_timeout, "longest wait for other ranks at the start (s)")
      .above(0)
      .at_most(kMostSeconds);
  schema.field("stall_report", &O::stall_report, "time in one collective until a report of all ranks (s)")
      .above(0)
      .at_most(kMostSeconds);
  describe_hang_timeout(schema);
}

/// Returns the fields of `options` that are named as those of RankOptions.
template <class Options>
RankOptions rank_options(const Options& options) {
  return {.start_method = options.start_method,
          .backend = options.backend,
          .timeout = options.timeout,
          .start_timeout = options.start_timeout,
          .stall_report = options.stall_report,
          .hang_timeout = options.hang_timeout};
}

}  // namespace levin
