#pragma once

#include <levin/core/base/config.h>
#include <levin/core/cli/config_names.h>

namespace levin {

/// Gives a configuration that LightningCLI wrote the names of Levin where the meaning is the same: `seed_everything`,
/// `ckpt_path`, and for classes `{class_path: lightning.pytorch.callbacks.EarlyStopping, init_args: {...}}` the name
/// that is registered here. Throws ConfigError with the translation where there is none.
void translate_lightning_config(Config& source, const ConfigNames& names);

}  // namespace levin
