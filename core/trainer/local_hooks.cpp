#include <levin/core/trainer/local_hooks.h>

#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/core/connectors/second_registration.h>
#include <levin/core/interfaces/load_weights.h>
#include <levin/core/nn/adapters.h>
#include <levin/core/trainer/trainer_components.h>

#include <fmt/format.h>

#include <cstdint>
#include <exception>

namespace levin {
namespace {

/// Adapters of a call before are there already. Initial weights are those from before the adapters.
void add_configured_adapters(TrainerComponents& components) {
  const TrainerOptions& given = components.options.given;
  Module& module = *components.state.module;
  if (!asks_for_adapters(given.adapters)) return;
  if (has_adapter(module, given.adapters)) return;
  if (!given.init_from.path.empty())
    log::rank_zero_info(
        fmt::format("init_from {}: {}", given.init_from.path, load_weights(module, given.init_from).text()));
  const auto layers = add_adapters(module, given.adapters);
  int64_t all = 0, trained = 0;
  for (const auto& [name, parameter] : named_unique_parameters(module)) {
    all += parameter.numel();
    if (parameter.requires_grad()) trained += parameter.numel();
  }
  log::rank_zero_info(fmt::format("adapters of {}: {} of {} parameters are trained",
                                  counted(static_cast<int64_t>(layers.size()), "layer"), trained, all));
}

}  // namespace

void configure_model(TrainerComponents& components) {
  noting_errors(
      [&] {
        explain_second_registration("configure_model", *components.state.module,
                                    [&] { components.callbacks.module("configure_model", &Module::configure_model); });
      },
      [&](ErrorNotes& notes) {
        if (components.data.data_module() == nullptr) notes.place += ", which was given no data module";
      });
  add_configured_adapters(components);
}

bool takes_initial_weights(const TrainerComponents& components) {
  return !components.options.given.init_from.path.empty() && components.options.given.adapters.name.empty();
}

void run_local_hooks(TrainerComponents& components, const std::function<void()>& hooks) {
  try {
    hooks();
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    std::rethrow_exception(
        with_context(error, take_error_notes(error), components.state, *components.options.strategy));
  }
}

}  // namespace levin
