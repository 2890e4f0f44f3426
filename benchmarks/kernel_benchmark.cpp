/// Levin's own kernels against LibTorch's: alone, interleaved in one process, and in whole training steps, which take
/// turns on one core (processor time; see loop_benchmark).
///
///   build/bin/kernel_benchmark [rounds]
///   build/bin/kernel_benchmark --optimizers [rounds]    optimizers alone, for each byte that they move
///   build/bin/kernel_benchmark --variant N [steps]      one variant, 0 to 7: prints its seconds of processor time

#include "measure.h"
#include "run_in_turns.h"

#include <levin/core/base/host_memory.h>
#include <levin/levin.h>

#include <ATen/ops/max_pool2d_with_indices.h>

#include <sys/resource.h>

#include <array>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace {

namespace F = torch::nn::functional;
using levin::benchmarks::median;
using levin::benchmarks::processor_seconds;
using levin::benchmarks::run_in_turns;

// ---- Kernels alone

/// Prints the median of the microseconds that each takes and of their ratios, in rounds of `calls` calls by turns.
/// Returns that of the ratios.
double compare(const char* what, int64_t rounds, int64_t calls, const std::function<void()>& libtorch,
               const std::function<void()>& own) {
  std::array<std::vector<double>, 2> seconds;
  std::vector<double> ratios;
  for (int64_t round = 0; round < rounds + 1; ++round) {
    for (size_t i = 0; i < 2; ++i) {
      const double started = processor_seconds();
      for (int64_t call = 0; call < calls; ++call) i == 0 ? libtorch() : own();
      if (round > 0) seconds.at(i).push_back(processor_seconds() - started);
    }
    if (round > 0) ratios.push_back(seconds[1].back() / seconds[0].back());
  }
  const auto microseconds = [&](size_t i) { return 1e6 * median(seconds.at(i)) / static_cast<double>(calls); };
  std::printf("%.3f  %s: %.1f us / LibTorch's %.1f us\n", median(ratios), what, microseconds(1), microseconds(0));
  std::fflush(stdout);
  return median(ratios);
}

/// Steps of other optimizers against LibTorch's fused AdamW, in memory and in caches. `floats`: read and written for
/// each weight in the fewest passes that the formula allows, of which AdamW has 7.
template <class T>
void compare_optimizer(const char* what, int64_t rounds, int floats, const typename T::Options& options = {}) {
  for (const int64_t size : {100'000, 10'000'000}) {
    const auto make = [&] {
      // Ten matrices.
      std::vector<torch::Tensor> weights;
      for (int i = 0; i < 10; ++i) {
        weights.push_back(torch::randn({size / 1000, 100}).requires_grad_());
        weights.back().mutable_grad() = torch::randn({size / 1000, 100});
      }
      return weights;
    };
    levin::optim::AdamW adamw(make());
    T other(make(), options);
    const double ratio = compare(
        c10::str(what, " of ", size, " weights, ", floats, " floats a weight where AdamW has 7").c_str(), rounds,
        20'000'000 / size, [&] { adamw.step(); }, [&] { other.step(); });
    std::printf("%.3f  for each byte\n", ratio * 7 / floats);
  }
}

void compare_optimizers(int64_t rounds) {
  using namespace levin::optim;
  compare_optimizer<RMSprop>("RMSprop", rounds, 5);
  compare_optimizer<RMSprop>("RMSprop with momentum", rounds, 7, {.momentum = 0.9});
  compare_optimizer<Adamax>("Adamax", rounds, 7);
  compare_optimizer<Adadelta>("Adadelta", rounds, 7);
  compare_optimizer<RAdam>("RAdam", rounds, 7);
  compare_optimizer<NAdam>("NAdam", rounds, 7);
  compare_optimizer<Rprop>("Rprop", rounds, 7);
  compare_optimizer<Lion>("Lion", rounds, 5);
  compare_optimizer<LAMB>("LAMB", rounds, 10);
  compare_optimizer<LARS>("LARS", rounds, 7);
  compare_optimizer<Adafactor>("Adafactor", rounds, 6);
  compare_optimizer<AdamW8bit>("AdamW8bit", rounds, 4);
}

void compare_kernels(int64_t rounds) {
  const torch::NoGradGuard no_grad;
  for (const auto& sizes : std::vector<std::vector<int64_t>>{{64, 16, 28, 28}, {64, 32, 14, 14}, {32, 64, 56, 56}}) {
    const auto images = torch::randn(sizes);
    const auto last = images.contiguous(at::MemoryFormat::ChannelsLast);
    const auto mkldnn = images.to_mkldnn();
    const std::string name = c10::str("max_pool2d of ", images.sizes());
    const auto own = [&] { levin::nn::functional::max_pool2d(images, {2, 2}); };
    compare(
        name.c_str(), rounds, 10,
        [&] {
          torch::max_pool2d(images, {2, 2});
        },
        own);
    compare((name + ", LibTorch with channels_last").c_str(), rounds, 10,
            [&] {
              torch::max_pool2d(last, {2, 2});
            },
            own);
    compare((name + ", oneDNN's without indices").c_str(), rounds, 10,
            [&] {
              at::mkldnn_max_pool2d(mkldnn, {2, 2}, {2, 2}, 0, 1, false);
            },
            own);
  }
  for (const int64_t rows : {32, 512}) {
    const auto logits = torch::randn({rows, 10}).requires_grad_();
    const auto classes = torch::randint(10, {rows});
    const auto run = [&](auto&& cross_entropy) {
      const torch::AutoGradMode with_gradients(true);
      logits.mutable_grad().reset();
      cross_entropy().backward();
    };
    compare(
        c10::str("cross_entropy of ", rows, " rows, 10 classes, with backward").c_str(), rounds, 500,
        [&] { run([&] { return F::cross_entropy(logits, classes); }); },
        [&] { run([&] { return levin::nn::functional::cross_entropy(logits, classes); }); });
  }
  const auto optimizer = [](bool fast) {
    std::vector<torch::Tensor> weights;
    for (const auto& sizes : std::vector<std::vector<int64_t>>{{128, 784}, {128}, {10, 128}, {10}}) {
      weights.push_back(torch::randn(sizes).requires_grad_());
      weights.back().mutable_grad() = torch::randn(sizes);
    }
    return std::make_shared<levin::optim::AdamW>(weights, levin::optim::AdamWOptions{.fast_kernel = fast});
  };
  const auto libtorch = optimizer(false);
  const auto own = optimizer(true);
  compare(
      "AdamW of 100,000 weights", rounds, 500, [&] { libtorch->step(); }, [&] { own->step(); });
  compare_optimizers(rounds);
}

// ---- Whole steps

class Cnn : public levin::Module {
 public:
  Cnn() {
    using torch::nn::Conv2dOptions;
    first_ = register_module("first", torch::nn::Conv2d(Conv2dOptions(1, 16, 3).padding(1)));
    second_ = register_module("second", torch::nn::Conv2d(Conv2dOptions(16, 32, 3).padding(1)));
    head_ = register_module("head", torch::nn::Linear(32 * 7 * 7, 10));
  }
  levin::StepOutput training_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    const auto pool = F::MaxPool2dFuncOptions(2);
    const auto x = F::max_pool2d(first_(batch["x"]).relu(), pool);
    return F::cross_entropy(head_(F::max_pool2d(second_(x).relu(), pool).flatten(1)), batch["y"]);
  }
  levin::OptimizerConfigs configure_optimizers() override {
    return std::make_shared<levin::optim::AdamW>(parameters(), levin::optim::AdamWOptions{});
  }

 private:
  torch::nn::Conv2d first_{nullptr};
  torch::nn::Conv2d second_{nullptr};
  torch::nn::Linear head_{nullptr};
};

struct MlpOptions {
  bool fast_kernel = false;
  static void describe(levin::Schema<MlpOptions>& schema) {
    schema.field("fast_kernel", &MlpOptions::fast_kernel, "of AdamW");
  }
};

class Mlp : public levin::Module {
 public:
  using Options = MlpOptions;
  explicit Mlp(const Options& options) : options_(options) {
    first_ = register_module("first", torch::nn::Linear(784, 128));
    second_ = register_module("second", torch::nn::Linear(128, 10));
  }
  levin::StepOutput training_step(const levin::Batch& batch, int64_t /*batch_idx*/) override {
    return F::cross_entropy(second_(first_(batch["x"].flatten(1)).relu()), batch["y"]);
  }
  levin::OptimizerConfigs configure_optimizers() override {
    return std::make_shared<levin::optim::AdamW>(parameters(),
                                                 levin::optim::AdamWOptions{.fast_kernel = options_.fast_kernel});
  }

 private:
  Options options_;
  torch::nn::Linear first_{nullptr};
  torch::nn::Linear second_{nullptr};
};

/// Seconds of processor time of this process, all threads together, and of its children that have ended.
double processor_seconds_of_all() {
  double seconds = 0;
  for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage usage{};
    getrusage(who, &usage);
    for (const timeval& time : {usage.ru_utime, usage.ru_stime})
      seconds += static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  }
  return seconds;
}

/// Seconds of processor time of a fit's steps, all ranks together.
double fit(const std::shared_ptr<levin::Module>& module, int64_t batch_size, int64_t steps,
           const std::function<void(levin::TrainerOptions&)>& configure) {
  torch::set_num_threads(1);
  levin::seed_everything(1);
  auto data = std::make_shared<levin::data::TensorDataset>(
      levin::Batch{{"x", torch::randn({2048, 1, 28, 28})}, {"y", torch::randint(10, {2048})}});
  const auto run = [&](int64_t count) {
    levin::TrainerOptions options;
    options.max_steps = count;
    options.accelerator = "cpu";
    options.barebones = true;
    configure(options);
    levin::Trainer trainer(options);
    const double started = processor_seconds_of_all();
    trainer.fit(module, levin::DataLoader(data, {.batch_size = batch_size}));
    return processor_seconds_of_all() - started;
  };
  const double start_up = run(20);
  return run(steps + 20) - start_up;
}

struct Variant {
  const char* name;
  std::function<double(int64_t steps)> run;
};

const std::vector<Variant>& variants() {
  const auto cnn = [](bool own) {
    return [own](int64_t steps) {
      return fit(std::make_shared<Cnn>(), 64, steps / 10,
                 [own](levin::TrainerOptions& options) { options.own_kernels = own; });
    };
  };
  const auto mlp = [](bool fast) {
    return [fast](int64_t steps) { return fit(levin::make<Mlp>({.fast_kernel = fast}), 32, steps, [](auto&) {}); };
  };
  // The gradients have 0.39 MiB: no more than fits into the first bucket, which c10d's Reducer fills beyond its limit.
  const auto two_ranks = [](double first_bucket_cap_mb, levin::StartMethod start_method) {
    return [=](int64_t steps) {
      return fit(levin::make<Mlp>({}), 32, steps, [=](levin::TrainerOptions& options) {
        options.devices = 2;
        options.strategy =
            levin::make<levin::Ddp>({.first_bucket_cap_mb = first_bucket_cap_mb, .start_method = start_method});
      });
    };
  };
  constexpr auto kThread = levin::StartMethod::kThread;
  static const std::vector<Variant> all = {
      {"CNN, a tenth of the steps, LibTorch's pooling", cnn(false)},
      {"CNN, a tenth of the steps, own_kernels", cnn(true)},
      {"MLP, LibTorch's AdamW", mlp(false)},
      {"MLP, AdamW's fast_kernel", mlp(true)},
      {"MLP, ddp_threads on 2 ranks, buckets", two_ranks(0.38, kThread)},
      {"MLP, ddp_threads on 2 ranks, in place", two_ranks(1, kThread)},
      {"MLP, ddp_spawn on 2 ranks, buckets", two_ranks(0.38, levin::StartMethod::kFork)},
      {"MLP, ddp_spawn on 2 ranks, in place", two_ranks(1, levin::StartMethod::kFork)},
  };
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  torch::set_num_threads(1);
  levin::keep_freed_memory();  // as a trainer does
  if (argc > 2 && std::string(argv[1]) == "--variant") {
    std::printf("%.6f\n", variants().at(std::stoul(argv[2])).run(argc > 3 ? std::stoll(argv[3]) : 2000));
    return 0;
  }
  if (argc > 1 && std::string(argv[1]) == "--optimizers") {
    compare_optimizers(argc > 2 ? std::stoll(argv[2]) : 7);
    return 0;
  }
  const int64_t rounds = argc > 1 ? std::stoll(argv[1]) : 7;
  compare_kernels(rounds);
  constexpr int64_t kSteps = 3000;
  for (size_t i = 0; i < variants().size(); i += 2) {
    std::array<std::vector<double>, 2> seconds;
    std::vector<double> ratios;
    for (int64_t round = 0; round < rounds; ++round) {
      const auto [own, libtorch] = run_in_turns(argv[0], {i + 1, i}, kSteps);
      seconds[0].push_back(own);
      seconds[1].push_back(libtorch);
      ratios.push_back(own / libtorch);
    }
    const auto microseconds = [&](size_t k) { return 1e6 * median(seconds.at(k)) / static_cast<double>(kSteps); };
    std::printf("%.3f  %s: %.1f us / %s: %.1f us\n", median(ratios), variants()[i + 1].name, microseconds(0),
                variants()[i].name, microseconds(1));
    std::fflush(stdout);
  }
  return 0;
}
