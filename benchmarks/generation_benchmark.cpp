/// Greedy generation against transformers' `generate`, in turns on one core: processor time of texts of a model of 10
/// million parameters, whose folder the Python program makes where there is none.
///
///   build/bin/generation_benchmark FOLDER "PYTHON benchmarks/peers/generate.py" [rounds] [tokens]
///
/// Without the second word, or with "", Levin alone.

#include "measure.h"
#include "run_in_turns.h"

#include <levin/core/models/generate.h>
#include <levin/core/models/language_model_files.h>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using levin::benchmarks::median;
using levin::benchmarks::processor_seconds;

constexpr int64_t kPrompt = 32;

std::string output_of(const std::string& command) {
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot run " + command);
  std::string text;
  for (int c; (c = fgetc(pipe)) != EOF;) text.push_back(static_cast<char>(c));
  if (pclose(pipe) != 0) throw std::runtime_error("failed: " + command);
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: generation_benchmark FOLDER [PEER] [rounds] [tokens]\n");
    return 2;
  }
  at::set_num_threads(1);
  const std::string folder = argv[1];
  const std::string peer = argc > 2 ? argv[2] : "";
  const int64_t rounds = argc > 3 ? std::atoll(argv[3]) : 5;
  const int64_t tokens = argc > 4 ? std::atoll(argv[4]) : 200;
  if (!std::filesystem::exists(folder + "/config.json")) output_of(peer + " " + folder + " 0 0");
  const levin::nn::CausalLanguageModel model = levin::load_language_model(folder);
  for (const int64_t batch : {1, 8}) {
    std::vector<std::vector<int64_t>> prompts(static_cast<size_t>(batch));
    for (int64_t row = 0; row < batch; ++row)
      for (int64_t i = 0; i < kPrompt; ++i)
        prompts[static_cast<size_t>(row)].push_back((17 * i + 101 * row + 3) % model->options().vocabulary);
    const auto run = [&](int64_t count) {
      return levin::generate(model, prompts, {.max_new_tokens = count, .end_tokens = std::vector<int64_t>()});
    };
    run(8);
    std::vector<double> own;
    std::vector<double> others;
    std::vector<double> ratios;
    for (int64_t round = 0; round < rounds; ++round) {
      const double started = processor_seconds();
      run(tokens);
      own.push_back(processor_seconds() - started);
      if (peer.empty()) continue;
      others.push_back(std::stod(output_of(fmt::format("{} {} {} {}", peer, folder, batch, tokens))));
      ratios.push_back(others.back() / own.back());
    }
    const auto rate = [&](double seconds) { return static_cast<double>(batch * tokens) / seconds; };
    std::printf("batch %ld: %.0f tokens a second", batch, rate(median(own)));
    if (!peer.empty())
      std::printf(", %.2f times as many as transformers' %.0f (%.2f to %.2f)", median(ratios), rate(median(others)),
                  *std::min_element(ratios.begin(), ratios.end()), *std::max_element(ratios.begin(), ratios.end()));
    std::printf("\n");
    std::fflush(stdout);
  }
  return 0;
}
