/// The cost of the interface for C: the same network trained on the same arrays of the program's by levin_train and by
/// the engine from C++, in turns on one core (processor time). Both read the loss in each step. Prints the median time
/// a step and the median of the ratios round by round.
///
///   build/bin/c_interface_benchmark [rounds] [steps]
///   build/bin/c_interface_benchmark --variant N [steps]      0: engine, 1: from C; 2 and 3: with a wider network

#include "measure.h"
#include "run_in_turns.h"

#include <levin/c/levin.h>
#include <levin/levin.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using levin::benchmarks::median;
using levin::benchmarks::processor_seconds;
using levin::benchmarks::run_in_turns;

constexpr int64_t kRows = 64;
constexpr int64_t kFeatures = 9;

/// The network of examples/heat_equation, and a wider one.
int64_t width_of(int64_t variant) { return variant < 2 ? 32 : 256; }

class Mlp : public levin::Module {
 public:
  explicit Mlp(int64_t width) {
    net_ = register_module(
        "net", levin::Sequential(torch::nn::Linear(kFeatures, width), torch::nn::Tanh(), torch::nn::Linear(width, 1)));
  }
  levin::StepOutput training_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    const auto loss = torch::mse_loss(net_->forward(batch["x"]), batch["y"]);
    log("train_loss", loss);
    return loss;
  }
  levin::OptimizerConfigs configure_optimizers() override {
    return std::make_shared<levin::optim::Adam>(parameters(), levin::optim::AdamOptions{.lr = 1e-3});
  }

 private:
  levin::Sequential net_{nullptr};
};

struct Arrays {
  std::vector<float> x = std::vector<float>(kRows * kFeatures);
  std::vector<float> y = std::vector<float>(kRows);
  Arrays() {
    for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(0.7F * static_cast<float>(i));
    for (size_t i = 0; i < y.size(); ++i) y[i] = x[i * kFeatures] * x[i * kFeatures + 1];
  }
};

double by_engine(int64_t width, int64_t steps) {
  Arrays arrays;
  levin::seed_everything(1);
  levin::Engine engine(std::make_shared<Mlp>(width),
                       {.accelerator = "cpu", .devices = 1, .logger = false, .enable_checkpointing = false});
  double started = 0;
  double loss = 0;
  for (int64_t step = -200; step < steps; ++step) {  // the first ones warm up
    if (step == 0) started = processor_seconds();
    loss += engine
                .train_step({{"x", torch::from_blob(arrays.x.data(), {kRows, kFeatures})},
                             {"y", torch::from_blob(arrays.y.data(), {kRows, 1})}})
                .loss()
                .item<double>();
  }
  const double seconds = processor_seconds() - started;
  if (!(loss > 0)) throw std::runtime_error("no loss");
  return seconds;
}

void check(levin_status status) {
  if (status != LEVIN_OK) throw std::runtime_error(levin_last_error());
}

double from_c(int64_t width, int64_t steps) {
  Arrays arrays;
  const std::string yaml = "seed: 1\nengine: {model: {name: mlp, layers: [" + std::to_string(kFeatures) + ", " +
                           std::to_string(width) +
                           ", 1], activation: tanh}, loss: mse, optimizer: {name: adam, lr: 0.001}}\n"
                           "trainer: {accelerator: cpu, logger: false, enable_checkpointing: false}\n";
  levin_engine* engine = nullptr;
  check(levin_create_from_text(yaml.c_str(), nullptr, &engine));
  const std::array<int64_t, 2> input_shape = {kRows, kFeatures};
  const std::array<int64_t, 2> target_shape = {kRows, 1};
  const levin_array x = {sizeof(x), arrays.x.data(), LEVIN_FLOAT32, 2, input_shape.data(), nullptr};
  const levin_array y = {sizeof(y), arrays.y.data(), LEVIN_FLOAT32, 2, target_shape.data(), nullptr};
  double started = 0;
  for (int64_t step = -200; step < steps; ++step) {
    if (step == 0) started = processor_seconds();
    double loss = 0;
    check(levin_train(engine, &x, 1, &y, 1, &loss));
  }
  const double seconds = processor_seconds() - started;
  check(levin_close(engine));
  return seconds;
}

double run_variant(int64_t variant, int64_t steps) {
  torch::set_num_threads(1);
  return variant % 2 == 0 ? by_engine(width_of(variant), steps) : from_c(width_of(variant), steps);
}

}  // namespace

int main(int argc, char** argv) {
  constexpr int64_t kDefaultSteps = 10'000;
  if (argc > 2 && std::string(argv[1]) == "--variant") {
    std::printf("%.6f\n", run_variant(std::stoll(argv[2]), argc > 3 ? std::stoll(argv[3]) : kDefaultSteps));
    return 0;
  }
  const int64_t rounds = argc > 1 ? std::stoll(argv[1]) : 7;
  const int64_t steps = argc > 2 ? std::stoll(argv[2]) : kDefaultSteps;
  for (const size_t variant : {size_t{0}, size_t{2}}) {
    std::vector<double> engine;
    std::vector<double> c;
    std::vector<double> ratios;
    for (int64_t round = 0; round < rounds; ++round) {
      const std::array<double, 2> seconds = run_in_turns(argv[0], {variant, variant + 1}, steps);
      engine.push_back(seconds[0]);
      c.push_back(seconds[1]);
      ratios.push_back(seconds[1] / seconds[0]);
    }
    std::printf(
        "9-%lld-1, batch %lld, %lld rounds of %lld steps: engine %.2f us a step, from C %.2f us, ratio %.3f   "
        "(target 1.02)\n",
        static_cast<long long>(width_of(static_cast<int64_t>(variant))), static_cast<long long>(kRows),
        static_cast<long long>(rounds), static_cast<long long>(steps),
        1e6 * median(engine) / static_cast<double>(steps), 1e6 * median(c) / static_cast<double>(steps),
        median(ratios));
  }
  return 0;
}
