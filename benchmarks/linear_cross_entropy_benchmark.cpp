/// The loss of a head, with its gradients: linear_cross_entropy against linear and cross_entropy, in turns on one core
/// (processor time), and the most memory beyond inputs and the gradient of the weight.
///
///   build/bin/linear_cross_entropy_benchmark [rounds] [tokens] [width] [words]

#include "measure.h"
#include "run_in_turns.h"

#include <levin/core/devices/accounting_allocator.h>
#include <levin/core/nn/linear_cross_entropy.h>

#include <ATen/Parallel.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

namespace {

using levin::benchmarks::median;
using levin::benchmarks::processor_seconds;

int64_t argument(int argc, char** argv, int index, int64_t otherwise) {
  return argc > index ? std::atoll(argv[index]) : otherwise;
}

}  // namespace

int main(int argc, char** argv) {
  levin::AccountingAllocator::install();
  at::set_num_threads(1);
  const int64_t rounds = argument(argc, argv, 1, 7);
  const int64_t tokens = argument(argc, argv, 2, 2048);
  const int64_t width = argument(argc, argv, 3, 512);
  const int64_t words = argument(argc, argv, 4, 32'000);
  const at::Tensor input = at::randn({tokens, width}).requires_grad_();
  const at::Tensor weight = (at::randn({words, width}) * 0.02).requires_grad_();
  const at::Tensor target = at::randint(words, {tokens}, at::kLong);
  const std::array<std::function<at::Tensor()>, 2> losses{
      [&] { return at::cross_entropy_loss(at::linear(input, weight), target); },
      [&] { return levin::nn::functional::linear_cross_entropy(input, weight, target); }};

  std::array<std::vector<double>, 2> seconds;
  std::array<double, 2> bytes{};
  std::vector<double> ratios;
  for (int64_t round = 0; round < rounds + 1; ++round) {
    for (size_t i = 0; i < losses.size(); ++i) {
      const double started = processor_seconds();
      bytes.at(i) = static_cast<double>(levin::AccountingAllocator::of_all_threads().peak_of([&] {
                      torch::autograd::grad({losses.at(i)()}, {input, weight});
                    })) -
                    static_cast<double>(weight.nbytes());
      if (round > 0) seconds.at(i).push_back(processor_seconds() - started);
    }
    if (round > 0) ratios.push_back(seconds[1].back() / seconds[0].back());
  }
  std::printf("%ld tokens, width %ld, %ld words\n", tokens, width, words);
  std::printf("%.3f  time: %.0f ms / %.0f ms\n", median(ratios), 1e3 * median(seconds[1]), 1e3 * median(seconds[0]));
  std::printf("%.3f  memory: %.1f MiB / %.1f MiB\n", bytes[1] / bytes[0], bytes[1] / 1048576, bytes[0] / 1048576);
  return 0;
}
