#pragma once

#include <levin/core/base/config.h>
#include <levin/core/base/registry.h>

#include <string>

namespace levin {

class Logger;

/// Rewrites the trainer section of a configuration from the spellings of older versions of such trainers to the present
/// ones, each with a note that names the latter: accelerator: ddp, distributed_backend, replace_sampler_ddp, plugins:
/// ddp_sharded, amp_backend. Throws ConfigError for tpu_cores, and where an old and a present spelling contradict each
/// other.
void translate_compatibility_options(Config& trainer);

/// Returns the strategy that is meant by a name or a mapping with a name; any other as it is.
///
/// - `ddp_sharded` is sharded with stage 2, `fsdp` with stage 3.
/// - `sequential` and `rpc_sequential` are pipeline, with the defaults that they had (`checkpoint: except_last`,
///   `balance_by: memory`) and their options: microbatches (micro_batches), sequential_module (sequential),
///   balance_mode: balance_by_size or balance_by_time (balance_by: memory or time), pipelined_backward (always).
///
/// Throws ConfigError where an old and a present spelling of an option are both given, or a value is not understood.
Config present_strategy(const Config& strategy);

/// Returns the name of the precision that older configurations write as a number ("16") or as "bf16"; any other as it
/// is.
std::string present_precision(const std::string& name);

/// Throws ConfigError, with the loggers to take instead, where a member of `logger:` names one whose service has ended;
/// unless `loggers` has one of that name.
void refuse_ended_logger(const Config& member, const Registry<Logger>& loggers);

}  // namespace levin
