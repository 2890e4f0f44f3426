#pragma once

#include <levin/core/base/config.h>
#include <levin/core/base/events.h>

#include <string>

/// Hyper-parameters in the forms that TensorBoard shows.
namespace levin::tensorboard {

/// Writes a Markdown table with a row for every leaf of `config`, named by its dotted path.
std::string hyperparameter_table(const Config& config);

// Messages of TensorBoard's hparams plug-in (tensorboard/plugins/hparams/plugin_data.proto) and the tags they go under.
inline constexpr const char* kSessionStartTag = "_hparams_/session_start_info";
inline constexpr const char* kSessionEndTag = "_hparams_/session_end_info";
/// Makes the message that holds every leaf of `config` as a number, a boolean or a string.
std::string session_start(const Config& config);
std::string session_end(TrainerStatus status);

}  // namespace levin::tensorboard
