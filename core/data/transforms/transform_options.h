#pragma once

#include <levin/core/data/generator.h>
#include <levin/core/data/transforms/image_operations.h>
#include <levin/core/data/transforms/one_or_more.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

// What the options of several transforms share.
namespace levin::data {

/// Returns the options of a transform of that name. Throws ConfigError where one that has no default is missing or one
/// is out of range.
template <class Options>
const Options& checked(const Options& options, const std::string& name) {
  schema_of<Options>().validate(options, name);
  return options;
}

/// Names of the values of `interpolation`.
const std::vector<std::pair<std::string, operations::Interpolation>>& interpolation_names();
/// Names of the values of `padding_mode`.
const std::vector<std::pair<std::string, operations::PaddingMode>>& padding_mode_names();

/// Returns whether they are one or two positive numbers.
bool is_size(const OneOrMore<int64_t>& size);
/// Returns whether they are a smaller and a larger number, both at least `least` and at most `most`.
bool is_range(const std::vector<double>& range, double least, double most);
/// Returns the padding of one number for all sides, of two (left and right, top and bottom) or of four (left, top,
/// right, bottom).
operations::Padding to_padding(const OneOrMore<int64_t>& padding);

/// Draws a number between two.
double uniform(Generator& generator, double low, double high);

}  // namespace levin::data
