#pragma once

#include <levin/core/data/batch.h>

#include <string>
#include <vector>

namespace levin {

/// The predictions of all batches as the tensors of one file, without a loss; docs/usage.md, "The predictions' file",
/// has the names and the shapes.
struct JoinedPredictions {
  std::vector<Batch::Item> tensors;
  std::vector<std::string> notes;  ///< for each field that had to be left in batches: which, and why
};

JoinedPredictions join_predictions(const std::vector<Batch>& batches);

/// Whether Batch::concatenate loses nothing of the parts: all have the same names, with rows that differ in number
/// only.
bool are_slices_of_one_batch(const std::vector<Batch>& parts);

}  // namespace levin
