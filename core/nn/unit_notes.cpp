#include <levin/core/nn/unit_notes.h>

#include <levin/core/base/error_notes.h>
#include <levin/core/nn/named_units.h>

namespace levin {
void note_unit_path(ErrorNotes& notes, torch::nn::Module& root) {
  if (notes.unit == nullptr || !notes.unit_path.empty()) return;
  for (const NamedUnit& named : named_units(root))
    if (named.unit == notes.unit) notes.unit_path = named.path;
}

}  // namespace levin
