#pragma once

#include <functional>

namespace levin {

struct TrainerComponents;

/// Has the module of the call make its layers, and adds the adapters that options name. An error also says where there
/// was no data module that it could read.
void configure_model(TrainerComponents& components);

/// Whether weights of `init_from` are still to be loaded after configure_model.
bool takes_initial_weights(const TrainerComponents& components);

/// Runs hooks in a process that is not a rank. An error also says where it happened, as one of a rank does.
void run_local_hooks(TrainerComponents& components, const std::function<void()>& hooks);

}  // namespace levin
