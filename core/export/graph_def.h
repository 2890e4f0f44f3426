#pragma once

#include <levin/core/export/exported_function.h>

#include <string>

namespace torch::nn {
class Module;
}

namespace levin {

/// Returns what a function computes of an example in evaluation mode as a serialised GraphDef, the picture of a model
/// that TensorBoard draws: an operator a node, inside of its unit ("net.0" is the group net, and in it 0), parameters
/// where the module has them. The module runs once, where it is, and is afterwards as it was. Throws levin::Error.
std::string graph_def(torch::nn::Module& module, const ExportedFunction& function, const Batch& example);

}  // namespace levin
