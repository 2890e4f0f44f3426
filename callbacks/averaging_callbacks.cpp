#include <levin/callbacks/averaging_callbacks.h>

#include <levin/core/base/error.h>
#include <levin/core/interfaces/averages_weights.h>
#include <levin/core/interfaces/callback.h>
#include <levin/core/trainer/trainer.h>

#include <fmt/format.h>

#include <algorithm>

namespace levin {

bool averages_weights(const Callback& callback) { return dynamic_cast<const AveragesWeights*>(&callback) != nullptr; }

void require_one_average(const Trainer& trainer) {
  const auto found =
      std::ranges::count_if(trainer.callbacks(), [](const auto& callback) { return averages_weights(*callback); });
  if (found > 1)
    throw ConfigError(fmt::format(
        "trainer.callbacks has {} callbacks that put an average in the place of the module's weights, and each would "
        "take another one's average for the weights of training; valid: one weight_averaging or "
        "stochastic_weight_averaging; hint: keep a second average in a callback of your own",
        found));
}

}  // namespace levin
