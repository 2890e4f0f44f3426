#pragma once

namespace levin {

class Callback;
class Trainer;

/// What a callback also derives from that puts an average in the place of the module's weights.
class AveragesWeights {
 public:
  virtual ~AveragesWeights() = default;
};

/// Whether a callback does so.
bool averages_weights(const Callback& callback);
/// Throws ConfigError where the trainer has several: each would take another one's average for the weights of training.
void require_one_average(const Trainer& trainer);

}  // namespace levin
