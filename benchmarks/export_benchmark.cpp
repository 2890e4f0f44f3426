/// What it takes to export GPT-2 with 124 million random weights, from a batch of 128 tokens, in both formats: seconds
/// on the wall, of the processors, and bytes.
///
///   build/bin/export_benchmark [tokens]

#include "../examples/models/gpt2.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <string>

int main(int argc, char** argv) {
  const int64_t length = argc > 1 ? std::atoll(argv[1]) : 128;
  const example::models::Gpt2Options options;
  example::models::Gpt2 model(options);
  const levin::Batch batch{{"tokens", torch::randint(0, options.vocab_size, {1, length}, torch::kLong)}};
  const auto function = [&](const levin::Batch& given) { return levin::Batch{{"logits", model(given["tokens"])}}; };
  for (const std::string ending : {".pt", ".onnx"}) {
    const std::string path = (std::filesystem::temp_directory_path() / ("levin_gpt2" + ending)).string();
    const auto begin = std::chrono::steady_clock::now();
    const std::clock_t processors = std::clock();
    const auto report = levin::export_model(*model, function, batch, path);
    const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
    std::printf("%-6s %6.1f s, %6.1f s of processors, %ju bytes%s\n", ending.c_str(), wall.count(),
                static_cast<double>(std::clock() - processors) / CLOCKS_PER_SEC,
                static_cast<std::uintmax_t>(std::filesystem::file_size(path)),
                report.fixed.empty() ? "" : ", of a fixed batch size");
    for (const auto& file : report.files) std::filesystem::remove(file);
  }
}
