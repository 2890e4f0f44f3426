// Made by tests/usage/extract_blocks.py of docs/pipeline.md.

#include <levin/levin.h>

namespace pages::pipeline {

#line 46 "docs/pipeline.md"


struct Regressor : levin::Module {
  Regressor() {
    net_ = register_module("net", levin::Sequential(torch::nn::Linear(64, 256), torch::nn::ReLU(),
                                                    torch::nn::Linear(256, 256), torch::nn::ReLU(),
                                                    [](const torch::Tensor& x) { return x.unflatten(1, {4, 64}); },
                                                    torch::nn::Linear(64, 1), torch::nn::Flatten()));
  }
  levin::StepOutput training_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    return torch::mse_loss(net_(batch["x"]), batch["y"]);
  }
  levin::OptimizerConfigs configure_optimizers() override {
    return std::make_shared<levin::optim::AdamW>(parameters(), levin::optim::AdamWOptions{.lr = 1e-3});
  }

 private:
  levin::Sequential net_{nullptr};
};

void statements_of_line_79();
void statements_of_line_79() {
#line 79 "docs/pipeline.md"
levin::Sequential net([](const torch::Tensor& x) { return std::make_tuple(x.tanh(), x); },
                      [](const torch::Tensor& y, const torch::Tensor& x) { return std::make_tuple(y.sin(), x); },
                      [](const torch::Tensor& y, const torch::Tensor& x) { return y + x; });
}

}  // namespace pages::pipeline
