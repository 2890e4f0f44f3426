#include "tests/fuzz/fuzz.h"

#include <levin/core/interchange/torch_file.h>
#include <levin/core/interchange/weights.h>

// A whole file of torch.save, of either format.
void levin::fuzzing::fuzz(std::string_view input) {
  const std::string path = write_file("model.pt", input);
  reads([&] {
    const TorchFile file(path);
    for_each_tensor(file.root(), [](const std::string&, const at::Tensor& tensor) { tensor.clone(); });
  });
  reads([&] { open_weights(path); });
}
