#pragma once

#include <string>

namespace levin {

/// Copies a checkpoint of any number of ranks as one that a single rank wrote: a folder with one model.safetensors,
/// which is again a checkpoint to resume from; or, where `target` ends with ".safetensors", that file alone with the
/// model's tensors. Tensors pass through a buffer of 16 MiB, however large they are. The source is checked; the target
/// appears at once and whole. Throws levin::Error, also when the target's name is taken by something else than a
/// checkpoint.
void consolidate_checkpoint(const std::string& source, const std::string& target);

}  // namespace levin
