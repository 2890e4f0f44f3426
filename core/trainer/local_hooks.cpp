#include <levin/core/trainer/local_hooks.h>

#include <levin/core/connectors/second_registration.h>
#include <levin/core/trainer/trainer_components.h>

#include <exception>

namespace levin {

void configure_model(TrainerComponents& components) {
  noting_errors(
      [&] {
        explain_second_registration("configure_model", *components.state.module,
                                    [&] { components.callbacks.module("configure_model", &Module::configure_model); });
      },
      [&](ErrorNotes& notes) {
        if (components.data.data_module() == nullptr) notes.place += ", which was given no data module";
      });
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
