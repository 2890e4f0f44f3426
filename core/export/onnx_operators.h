#pragma once

#include <string_view>

namespace levin {

class OnnxNode;

/// Adds what computes the node's results to the graph.
using OnnxConversion = void (*)(OnnxNode& node);

/// The conversion of an operator such as "aten::relu"; nullptr where there is none.
OnnxConversion find_onnx_conversion(std::string_view op);

}  // namespace levin
