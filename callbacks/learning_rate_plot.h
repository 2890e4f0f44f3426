#pragma once

#include <levin/callbacks/learning_rate_sweep.h>

#include <string>

namespace levin {

/// Draws the sweep as a picture (SVG 1.1): the losses over the learning rate, on a logarithmic axis where the sweep was
/// exponential, and the suggestion. Needs at least two points.
std::string learning_rate_plot(const LearningRateSweep& sweep);

/// Writes the points as a table: "learning_rate,loss,smoothed_loss".
std::string learning_rate_table(const LearningRateSweep& sweep);

}  // namespace levin
