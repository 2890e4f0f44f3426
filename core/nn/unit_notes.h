#pragma once

namespace torch::nn {
class Module;
}

namespace levin {

struct ErrorNotes;

/// Writes down the path of the unit that was noted, where it is a part of `root`.
void note_unit_path(ErrorNotes& notes, torch::nn::Module& root);

}  // namespace levin
