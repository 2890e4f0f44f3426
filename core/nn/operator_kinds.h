#pragma once

#include <initializer_list>
#include <string_view>

namespace levin::detail {

/// Kinds of LibTorch's operators, by their names without "aten::" and without the underscore of those in place.

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names);
/// Treats each element by itself, of several tensors those at the same place.
bool is_element_wise_operator(std::string_view name);
/// Gives a copy, or another tensor of its shape, of the first argument.
bool gives_shape_of_first(std::string_view name);
/// Normalizes over the last dimensions, `normalized_shape`.
bool is_norm_of_features(std::string_view name);
/// Computes nothing, or with sizes alone.
bool is_about_the_tensor(std::string_view name);

}  // namespace levin::detail
