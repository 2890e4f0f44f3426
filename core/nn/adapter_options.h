#pragma once

#include <levin/core/base/schema.h>

#include <cstdint>
#include <string>
#include <vector>

namespace levin {

/// Low-rank adapters: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021, arXiv:2106.09685.
struct AdapterOptions {
  std::string name = {};  ///< "lora", "rslora"; empty: no adapters
  int64_t rank = 8;
  double alpha = 16;
  double dropout = 0;
  std::vector<std::string> targets = {};          ///< paths of layers; `*` stands for any characters
  std::vector<std::string> modules_to_save = {};  ///< paths of modules and parameters that are trained whole
  std::string quantize = {};        ///< how the other linear layers are held: "nf4", "int8"; empty: as they are
  bool save_adapters_only = false;  ///< checkpoints leave out what is frozen
  std::string adapter = "default";  ///< its own name, where a module has several

  static void describe(Schema<AdapterOptions>& schema);
  bool operator==(const AdapterOptions&) const = default;
};

}  // namespace levin
