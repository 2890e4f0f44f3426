#pragma once

#include <string_view>
#include <vector>

namespace levin {

class OnnxNode;

/// Adds what computes the node's results to the graph.
using OnnxConversion = void (*)(OnnxNode& node);

/// The conversion of an operator such as "aten::relu"; nullptr where there is none.
OnnxConversion find_onnx_conversion(std::string_view op);
/// The names of all operators that have one.
std::vector<std::string_view> onnx_operators();

}  // namespace levin
