#pragma once

#include <levin/core/data/subset.h>

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace levin::data {

/// Sizes of the parts of a data set: numbers of examples, `{800, 200}`, or fractions, `{0.8, 0.2}`. Numbers add up to
/// its size, fractions to 1; each fraction gives its part rounded down, and what is left goes to the first parts, one
/// example each.
class SplitLengths {
 public:
  SplitLengths(std::vector<int64_t> lengths);   // NOLINT(google-explicit-constructor)
  SplitLengths(std::vector<double> fractions);  // NOLINT(google-explicit-constructor)
  template <std::integral T>
  SplitLengths(std::initializer_list<T> lengths)  // NOLINT(google-explicit-constructor)
      : SplitLengths(std::vector<int64_t>(lengths.begin(), lengths.end())) {}
  template <std::floating_point T>
  SplitLengths(std::initializer_list<T> fractions)  // NOLINT(google-explicit-constructor)
      : SplitLengths(std::vector<double>(fractions.begin(), fractions.end())) {}

  /// Returns the numbers of examples of `size`. Throws levin::Error where they do not add up to it, and for a part
  /// without examples.
  std::vector<int64_t> of(int64_t size) const;

 private:
  std::vector<int64_t> lengths_;
  std::vector<double> fractions_;
};

/// Indices of the parts, each in ascending order.
using SplitIndices = std::vector<std::vector<int64_t>>;

/// Divides `size` examples in an order drawn from the seed: a pure function of its arguments. Throws levin::Error; see
/// SplitLengths.
SplitIndices random_split(int64_t size, const SplitLengths& lengths, uint64_t seed = 0);
/// Divides a data set so.
std::vector<std::shared_ptr<Subset>> random_split(const std::shared_ptr<const Dataset>& dataset,
                                                  const SplitLengths& lengths, uint64_t seed = 0);

/// Divides examples with these classes so that each part has the classes as the whole has them, as exactly as whole
/// numbers allow: with the counts of scikit-learn's train_test_split(stratify=labels), called once for each part but
/// the last. `class_names`: for messages; empty: numbers. Throws levin::Error for a class of one example and for a part
/// with fewer examples than there are classes, too.
SplitIndices stratified_split(std::span<const int64_t> labels, const SplitLengths& lengths, uint64_t seed = 0,
                              std::span<const std::string> class_names = {});
/// Divides a data set so. `label`: the tensor of an example that has its class, a whole number; all of them are read.
std::vector<std::shared_ptr<Subset>> stratified_split(const std::shared_ptr<const Dataset>& dataset,
                                                      const SplitLengths& lengths, uint64_t seed = 0,
                                                      const std::string& label = "label");

}  // namespace levin::data
