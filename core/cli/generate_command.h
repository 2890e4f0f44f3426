#pragma once

#include <levin/core/base/schema.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace levin {

class Cli;

/// Options of the command generate: the section `generate`. See GenerateOptions.
struct GenerateCommandOptions {
  std::string prompt = {};
  bool chat = false;
  std::optional<std::string> tokenizer = {};
  int64_t max_new_tokens = 128;
  double temperature = 0;
  int64_t top_k = 0;
  double top_p = 1;
  double min_p = 0;
  double repetition_penalty = 1;
  int64_t beams = 1;
  double length_penalty = 1;
  std::vector<std::string> stop = {};
  std::optional<std::vector<int64_t>> end_tokens = {};

  static void describe(Schema<GenerateCommandOptions>& schema);
};

/// Adds the command `generate` to a program whose model is a CausalLm: it continues a prompt on the terminal, with the
/// weights of --ckpt, which may be a folder of Hugging Face: on the ranks of a strategy that divides layers (`tensor`,
/// `sharded`), else in this process and on one device.
void add_generate_command(Cli& cli);

}  // namespace levin
