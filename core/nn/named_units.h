#pragma once

#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace levin {

class Unit;

/// A unit and its place in a module.
struct NamedUnit {
  std::string path = {};  ///< dotted, from the module that was asked; empty for that module itself
  std::string type = {};  ///< "Block" for a LEVIN_UNIT(Block), "Linear" for such a member of a levin::Sequential
  Unit* unit = nullptr;
};

/// The units in a module, each once, with its first path: parents before their children, members of a
/// levin::Sequential in their order. A member that is a unit itself is not a second one.
std::vector<NamedUnit> named_units(torch::nn::Module& module);

}  // namespace levin
