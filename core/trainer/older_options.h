#pragma once

#include <levin/core/base/config.h>

namespace levin {

/// Rewrites the trainer section of a configuration from the spellings of older versions of such trainers to the present
/// ones, each with a note that names the latter: accelerator: ddp, distributed_backend, replace_sampler_ddp, plugins:
/// ddp_sharded, amp_backend. Throws ConfigError where an old and a present spelling contradict each other.
void translate_older_options(Config& trainer);

}  // namespace levin
