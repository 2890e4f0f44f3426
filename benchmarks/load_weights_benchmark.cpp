/// What it takes to load weights into a module, beside reading the same file into memory that is there, both from the
/// page cache: seconds on the wall and of the processors, medians of rounds whose order changes, and the memory that
/// loading takes beside the module at its highest. The module is cleared before each load and compared after the last.
/// Then a language model of the same size is made of its folder, beside reading the folder's weights into memory that
/// is new too.
///
///   build/bin/load_weights_benchmark [megabytes] [rounds]

#include "measure.h"

#include <levin/core/checkpoint/safetensors.h>
#include <levin/core/interchange/write_weights.h>
#include <levin/core/interfaces/load_weights.h>
#include <levin/core/models/language_model_files.h>
#include <levin/core/nn/transformer/language_model_config.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>

#include <fcntl.h>
#include <malloc.h>
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

void run_language_model(int64_t megabytes, int64_t rounds) {
  mallopt(M_MMAP_THRESHOLD, 1 << 20);  // what a round frees goes back to the system: each takes new memory
  const std::string folder = (std::filesystem::temp_directory_path() / "levin_language_model").string();
  std::filesystem::create_directories(folder);
  const std::string config = folder + "/config.json";
  // 64 MiB of weights a layer.
  std::ofstream(config) << R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 8192,
"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "num_key_value_heads": 16,
"max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
"tie_word_embeddings": true, "num_hidden_layers": )"
                        << std::max<int64_t>(1, megabytes / 64) << "}";
  levin::save_language_model(levin::nn::CausalLanguageModel(levin::nn::language_model_options(folder)), folder, config);
  const std::string path = folder + "/model.safetensors";
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(path));
  Times reading;
  Times loading;
  for (int64_t round = 0; round < rounds; ++round) {
    const auto read_new = [&] { read_file(path, at::empty({bytes + 1}, at::kByte)); };
    if (round % 2 == 0) reading.add(read_new);
    loading.add([&] { levin::load_language_model(folder); });
    if (round % 2 != 0) reading.add(read_new);
  }
  std::filesystem::remove_all(folder);
  std::printf("%-20s %.2f GB: read in %.2f s, %.2f s of processors; made and loaded in %.2f s, %.2f s of processors\n",
              "language model", static_cast<double>(bytes) / 1e9, median(reading.wall), median(reading.processors),
              median(loading.wall), median(loading.processors));
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t megabytes = argc > 1 ? std::atoll(argv[1]) : 1024;
  const int64_t rounds = argc > 2 ? std::atoll(argv[2]) : 7;
  if (const int status = run(megabytes, rounds); status != 0) return status;
  run_language_model(megabytes, rounds);
}
