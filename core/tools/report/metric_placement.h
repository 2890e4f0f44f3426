#pragma once

#include <string>
#include <string_view>

namespace levin::report {

/// The parts of a report, in their order on the page.
enum class Group { kTraining, kValidation, kTest, kLearningRate, kThroughput, kHardware, kOther };
inline constexpr int kGroups = 7;

/// "training", "learning rate", ...
const char* to_string(Group group);

/// Where a metric's curve is drawn.
struct Placement {
  Group group = Group::kOther;
  std::string chart;  ///< the chart's title; curves of one chart are of one kind and unit
  std::string line;   ///< what tells the curve from others of its chart, such as "gpu0"; empty for a chart's only one
  std::string unit;   ///< of the values, such as "%"; empty when the name does not say
  /// What is measured, whatever the data: "loss" of train_loss_epoch and of val_loss; empty in other groups.
  std::string quantity;
};

/// Tells by the name alone. `rank1/gpu0/power_watts` is the line "rank 1, gpu0" of the chart "GPU power" in W;
/// `lr-AdamW/pg1` the line "AdamW/pg1" of "Learning rate"; of two loaders' `val_loss/dataloader_idx_1` the line "loader
/// 1".
Placement place_metric(std::string_view name);

/// Which values of a metric are the good ones, as far as its name says: those of a loss or an error are small, those of
/// an accuracy large.
enum class Direction { kUnknown, kDown, kUp };
Direction better_direction(std::string_view name);

}  // namespace levin::report
