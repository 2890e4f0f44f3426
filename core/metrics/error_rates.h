#pragma once

#include <levin/core/metrics/metric.h>

#include <string>
#include <string_view>
#include <vector>

/// Metrics of texts against texts, both in UTF-8.
namespace levin::metrics {

/// Base of those that count edits: the least number of units (words, characters) that are put in, left out or replaced
/// to make each prediction its target, divided by the number of the targets' units (V. Levenshtein, 1966). They count
/// on the CPU.
class EditMetric : public Metric {
 public:
  /// Adds a batch: a prediction for each target. Throws levin::Error when there are more of one than of the other.
  EditMetric& update(const std::vector<std::string>& predictions, const std::vector<std::string>& targets);

  /// Returns a scalar, float64: 0 where all are equal, more than 1 where predictions are much longer than their
  /// targets. NaN when nothing was seen, infinite when all targets are empty and some prediction is not.
  at::Tensor compute() const override;

 protected:
  /// `name` is the metric's name in messages.
  explicit EditMetric(const char* name);
  /// Returns the units of a text in order, parts of it.
  virtual std::vector<std::string_view> units_of(std::string_view text) const = 0;

 private:
  const char* name_;
};

/// Share of words (WER). Words are what white space separates, Unicode's too; case and punctuation count.
class WordErrorRate : public EditMetric {
 public:
  WordErrorRate() : EditMetric("WordErrorRate") {}

 protected:
  std::vector<std::string_view> units_of(std::string_view text) const override;
};

/// Share of characters (CER): Unicode's code points, spaces among them.
class CharacterErrorRate : public EditMetric {
 public:
  CharacterErrorRate() : EditMetric("CharacterErrorRate") {}

 protected:
  std::vector<std::string_view> units_of(std::string_view text) const override;
};

}  // namespace levin::metrics
