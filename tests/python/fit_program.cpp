// Trains as tests/python/python_test.py does, without Python, and writes the bytes of its state, by name:
//   python_fit_program FILE

#include "models.h"

#include <levin/core/base/seed.h>
#include <levin/core/data/tensor_dataset.h>
#include <levin/core/trainer/trainer.h>

#include <fstream>
#include <map>
#include <string>

using namespace levin;

int main(int, char** argv) {
  seed_everything(7);
  const at::Tensor x = torch::rand({64, 4});
  const at::Tensor y = x.sum(1, /*keepdim=*/true);
  auto net = make<levin::testing::Net>({.hidden = 16});
  const auto data = std::make_shared<data::TensorDataset>(Batch{{"x", x}, {"y", y}});
  Trainer trainer({.max_epochs = 3,
                   .accelerator = "cpu",
                   .gradient_clip_val = 0.5,
                   .logger = false,
                   .enable_checkpointing = false,
                   .enable_progress_bar = false});
  trainer.fit(net, DataLoader(data, {.batch_size = 10, .shuffle = true, .num_workers = 2}));
  std::ofstream file(argv[1], std::ios::binary);
  std::map<std::string, at::Tensor> state;
  for (const auto& [name, tensor] : named_tensors(*net)) state[name] = tensor;
  for (const auto& [name, tensor] : state) {
    const at::Tensor values = tensor.detach().contiguous();
    file.write(static_cast<const char*>(values.data_ptr()), static_cast<std::streamsize>(values.nbytes()));
  }
  return file.good() ? 0 : 1;
}
