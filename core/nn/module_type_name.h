#pragma once

#include <string>

namespace levin {

/// Returns a C++ type's name as users know it, from the name of a torch::nn::Module: "torch::nn::LinearImpl" is
/// "Linear", the unit of a BlockImpl is "Block".
std::string short_type_name(const std::string& demangled);

}  // namespace levin
