#pragma once

#include <levin/core/nn/named_units.h>

#include <string>
#include <vector>

namespace levin {

/// Selects the units of a module that match patterns, in the order of named_units, each once. A pattern is compared
/// with the type ("Block") and the dotted path ("encoder.blocks.0") of each unit; `*` stands for any characters. One
/// with `*` takes only the outermost of units that are inside one another, so that "blocks.*" is the blocks and not
/// what they are made of. Throws ConfigError, led by the option's name, for a pattern that meets no unit, saying which
/// there are.
std::vector<NamedUnit> select_units(torch::nn::Module& module, const std::vector<std::string>& patterns,
                                    const std::string& option);

}  // namespace levin
