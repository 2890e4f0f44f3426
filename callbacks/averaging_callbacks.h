#pragma once

namespace levin {

class Callback;
class Trainer;

/// Whether a callback is an AveragesWeights.
bool averages_weights(const Callback& callback);
/// Throws ConfigError where the trainer has several: each would take another one's average for the weights of training.
void require_one_average(const Trainer& trainer);

}  // namespace levin
