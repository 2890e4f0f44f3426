#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

/// Code shared by the metrics over classes: reading a batch, counting a class's hits, averaging over classes.
namespace levin::metrics::detail {

enum class Average {
  kMicro,     ///< over all samples, whatever their class
  kMacro,     ///< the mean over classes
  kWeighted,  ///< the mean over classes, weighted by how many samples each has
  kNone,      ///< one value a class
};

/// Parses "micro", "macro", "weighted" or "none", already checked by the options.
Average parse_average(std::string_view name);

/// Predicted and true class of each sample of a batch.
struct ClassPairs {
  at::Tensor predictions;  ///< [samples], int64
  at::Tensor labels;       ///< [samples], int64
};

/// Sets both classes of samples with a class outside [0, num_classes) to `num_classes`, without waiting for a device.
void set_outside_apart(ClassPairs& pairs, int64_t num_classes);

/// Reads predictions, logits [N, C, ...] or class indices [N, ...], and labels [N, ...]. With `top_k` above 1 a sample
/// whose label is among its k best classes counts as predicted right, any other as its best class.
/// Throws levin::Error when shapes or types do not fit, and for classes outside [0, num_classes) where it may look at
/// them; on a device both classes of such a sample become `num_classes`, which a count keeps apart.
ClassPairs read_classes(std::string_view metric, const at::Tensor& predictions, const at::Tensor& labels,
                        int64_t num_classes, int64_t top_k = 1);

/// Numbers of samples for each class: predicted right, predicted as it, labelled as it, and neither. [classes],
/// float64.
struct ClassCounts {
  at::Tensor hits;
  at::Tensor predicted;
  at::Tensor labelled;
  at::Tensor neither;
};

/// Returns the state of ClassCounts before any sample: [3, num_classes + 1], int64; the last column counts the samples
/// outside the classes.
at::Tensor empty_class_counts(int64_t num_classes);
/// Says in words what such a state holds, for Metric::update_key.
std::string class_counts_key(int64_t num_classes, int64_t top_k = 1);
/// Adds a batch to the state.
void add_class_counts(at::Tensor& counts, const ClassPairs& pairs);
/// Reads the state; waits for the device. Throws levin::Error when there were samples outside the classes.
ClassCounts read_class_counts(std::string_view metric, const at::Tensor& counts);

/// Function that returns a value for each class from its counts; 0 when the count that it divides by is 0.
using ClassScore = std::function<at::Tensor(const ClassCounts&)>;
at::Tensor precision_score(const ClassCounts& counts);
at::Tensor recall_score(const ClassCounts& counts);
at::Tensor f1_score(const ClassCounts& counts);
at::Tensor f_beta_score(const ClassCounts& counts, double beta);
at::Tensor specificity_score(const ClassCounts& counts);
at::Tensor jaccard_score(const ClassCounts& counts);
at::Tensor hamming_score(const ClassCounts& counts);

/// Averages a score over classes. Macro leaves out the classes that were neither predicted nor labelled, or with
/// `labelled_only` those that were not labelled. NaN when there were no samples.
at::Tensor average_score(const ClassScore& score, const ClassCounts& counts, Average average,
                         bool labelled_only = false);

}  // namespace levin::metrics::detail
