#include "tests/fuzz/fuzz.h"

#include <levin/core/interchange/lightning.h>
#include <levin/core/interchange/unpickler.h>
#include <levin/core/interchange/weights.h>

#include <ATen/ops/zeros.h>

// What a file of torch.save has beside the elements of its tensors. Each storage has 64 bytes.
void levin::fuzzing::fuzz(std::string_view input) {
  reads([&] {
    PickleDocument document;
    Unpickler unpickler(document, input, [&](const PickleValue& /*id*/) {
      PickleValue* storage = document.make(PickleValue::Kind::kStorage);
      storage->text = "torch.FloatStorage";
      storage->tensor = at::zeros({64}, at::kByte);
      return storage;
    });
    const PickleValue* root = unpickler.read();
    for_each_tensor(*root, [](const std::string&, const at::Tensor&) {});
    state_from_pickle(*root);
  });
}
