/// What it takes to load weights into a module, beside reading the same file into memory that is there, both from the
/// page cache: seconds on the wall and of the processors, medians of rounds whose order changes, and the memory that
/// loading takes beside the module at its highest. The module is cleared before each load and compared after the last.
///
///   build/bin/load_weights_benchmark [megabytes] [rounds]

#include "measure.h"

#include <levin/core/checkpoint/safetensors.h>
#include <levin/core/interchange/write_weights.h>
#include <levin/core/interfaces/load_weights.h>

#include <ATen/ops/ones.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace {

using levin::benchmarks::Clock;
using levin::benchmarks::median;
using levin::benchmarks::seconds_since;

/// Bytes of the process's own memory; pages of mapped files do not count.
int64_t own_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("RssAnon:")) return std::atoll(line.c_str() + std::strlen("RssAnon:")) * 1024;
  return 0;
}

/// The most that own_memory() was while a function ran, beyond what it was before.
template <class Function>
int64_t peak_of(const Function& function) {
  const int64_t before = own_memory();
  std::atomic<bool> done = false;
  int64_t peak = before;
  std::thread watch([&] {
    while (!done) {
      peak = std::max(peak, own_memory());
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  });
  function();
  done = true;
  watch.join();
  return peak - before;
}

void read_file(const std::string& path, const at::Tensor& memory) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const auto size = static_cast<size_t>(memory.numel());
  auto* const target = static_cast<char*>(memory.mutable_data_ptr());
  size_t done = 0;
  for (ssize_t got = 1; got > 0; done += static_cast<size_t>(got)) {
    got = read(file, target + done, std::min<size_t>(size - done, 16 << 20));
    if (got < 0) break;
  }
  close(file);
}

/// Seconds that a function took.
struct Times {
  std::vector<double> wall;
  std::vector<double> processors;
  template <class Function>
  void add(const Function& function) {
    const auto begin = Clock::now();
    const std::clock_t processor = std::clock();
    function();
    wall.push_back(seconds_since(begin));
    processors.push_back(static_cast<double>(std::clock() - processor) / CLOCKS_PER_SEC);
  }
};

int run(int64_t megabytes, int64_t rounds) {
  // Layers of 16 MiB each.
  torch::nn::ModuleList module;
  for (int64_t i = 0; i < std::max<int64_t>(1, megabytes / 16); ++i) module->push_back(torch::nn::Linear(2048, 2048));
  std::vector<levin::NamedLeaf> tensors;
  for (const auto& item : module->named_parameters())
    tensors.emplace_back(item.key(), levin::TensorLeaf{item.value().detach().clone()});
  const auto clear = [&] {
    const at::NoGradGuard no_grad;
    for (const auto& parameter : module->parameters()) at::Tensor(parameter).zero_();
  };
  for (const std::string name : {"weights.safetensors", "weights.pth"}) {
    const std::string path = (std::filesystem::temp_directory_path() / ("levin_" + name)).string();
    levin::write_weights(path, levin::weights_format_of(path), tensors);
    const size_t bytes = std::filesystem::file_size(path);
    Times reading;
    Times loading;
    {
      // Aligned as the module's tensors are, and touched.
      const at::Tensor memory = at::ones({static_cast<int64_t>(bytes) + 1}, at::kByte);
      for (int64_t round = 0; round < rounds; ++round) {
        clear();
        if (round % 2 == 0) reading.add([&] { read_file(path, memory); });
        loading.add([&] { levin::load_weights(*module, path); });
        if (round % 2 != 0) reading.add([&] { read_file(path, memory); });
      }
    }
    clear();
    const int64_t peak = peak_of([&] { levin::load_weights(*module, path); });
    std::filesystem::remove(path);
    for (const auto& [key, leaf] : tensors)
      if (!at::equal(module->named_parameters()[key], leaf.value)) {
        std::fprintf(stderr, "%s: %s is not what was saved\n", name.c_str(), key.c_str());
        return 1;
      }
    std::printf(
        "%-20s %.2f GB: read in %.2f s, %.2f s of processors; loaded in %.2f s, %.2f s of processors; "
        "%.1f MiB beside the module\n",
        name.c_str(), static_cast<double>(bytes) / 1e9, median(reading.wall), median(reading.processors),
        median(loading.wall), median(loading.processors), static_cast<double>(peak) / (1 << 20));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return run(argc > 1 ? std::atoll(argv[1]) : 1024, argc > 2 ? std::atoll(argv[2]) : 7);
}
