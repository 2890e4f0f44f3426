#pragma once

#include <levin/core/data/batch.h>

#include <string>
#include <vector>

namespace levin {

/// Predictions of all batches as the tensors of one file, without a loss; docs/usage.md, "The predictions' file", has
/// the names and the shapes.
struct JoinedPredictions {
  std::vector<Batch::Item> tensors;
  /// Each with a text for every row, empty where a batch has none of that name.
  std::vector<Batch::TextItem> texts;
  std::vector<std::string> notes;  ///< for each field that had to be left in batches: its name and the reason
};

JoinedPredictions join_predictions(const std::vector<Batch>& batches);

/// Returns texts as a table of comma-separated values with a header.
std::string csv_of_texts(const std::vector<Batch::TextItem>& texts);

/// Returns whether Batch::concatenate loses nothing of the parts: they have the same names, and rows that differ in
/// number only.
bool are_slices_of_one_batch(const std::vector<Batch>& parts);

}  // namespace levin
