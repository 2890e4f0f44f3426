#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace levin {

// The files of a checkpoint's folder; docs/checkpoint-format.md describes them.
inline constexpr const char* kModelFile = "model.safetensors";          ///< the tensors of the module
inline constexpr const char* kOptimizerFile = "optimizer.safetensors";  ///< the tensors of the optimizers
inline constexpr const char* kTensorsFile = "state.safetensors";        ///< all other tensors
inline constexpr const char* kStateFile = "state.json";                 ///< everything else
inline constexpr const char* kManifestFile = "manifest.json";           ///< written last; vouches for the others

// Entries of the metadata of a sharded checkpoint's tensor files.
inline constexpr const char* kSaveIdKey = "levin_save_id";  ///< Manifest::save_id
inline constexpr const char* kPiecesKey = "levin_pieces";   ///< the parts of tensors that the file holds, as JSON

/// Summary of a checkpoint in its manifest, readable without opening any other file.
struct CheckpointInfo {
  int64_t epoch = 0;
  int64_t global_step = 0;
  int64_t world_size = 1;
  std::string monitor = {};          ///< the monitored metric, empty when there is none
  std::optional<double> score = {};  ///< its value
  std::string levin_version = {};    ///< of the program that wrote it
  /// Time of writing, UTC: "2026-01-31T12:00:00.000000Z". Filled in by write_checkpoint when empty.
  std::string created = {};
};

}  // namespace levin
