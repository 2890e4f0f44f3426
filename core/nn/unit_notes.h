#pragma once

namespace torch::nn {
class Module;
}

namespace levin {

class Unit;
struct ErrorNotes;

/// Writes down the unit whose forward an error leaves, unless an inner one was. `module`: nullptr for a function.
void note_unit(ErrorNotes& notes, const Unit& unit, const torch::nn::Module* module);

/// Writes down the path of the unit that was noted, where it is a part of `root`.
void note_unit_path(ErrorNotes& notes, torch::nn::Module& root);

}  // namespace levin
