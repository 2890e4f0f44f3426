#include "tests/fuzz/fuzz.h"

#include <levin/core/checkpoint/checkpoint.h>
#include <levin/core/checkpoint/checkpoint_info.h>
#include <levin/core/checkpoint/consolidate.h>
#include <levin/core/checkpoint/inspect.h>
#include <levin/core/checkpoint/manifest.h>

#include <algorithm>

// A crafted checkpoint, whose checksums are right: a byte that says how many ranks it has, two for the length of
// state.json, that, and a file of tensors.
void levin::fuzzing::fuzz(std::string_view input) {
  if (input.size() < 3) return;
  const bool is_sharded = (input[0] & 1) != 0;
  const size_t length = static_cast<uint8_t>(input[1]) | size_t{static_cast<uint8_t>(input[2])} << 8;
  input.remove_prefix(3);
  const std::string_view state = input.substr(0, length);
  const std::string_view tensors = input.substr(state.size());
  const std::string tensors_file = is_sharded ? "model.rank-00000.safetensors" : kModelFile;

  Manifest manifest;
  manifest.info.world_size = is_sharded ? 2 : 1;
  if (is_sharded) manifest.save_id = "fuzz";
  for (const auto& [name, bytes] : {std::pair{std::string(kStateFile), state}, {tensors_file, tensors}}) {
    write_file(name, bytes);
    manifest.files[name] = {.size = bytes.size(), .checksum = checksum_of(bytes)};
  }
  write_file(kManifestFile, manifest_text(manifest));

  reads([] { read_checkpoint(folder()); });
  reads([] { read_outline(folder()); });
  reads([] { describe_checkpoint(folder(), /*with_tensors=*/true); });
  const std::string consolidated = folder() + "-consolidated";
  reads([&] { consolidate_checkpoint(folder(), consolidated); });
  std::filesystem::remove_all(consolidated);
  for (const char* name : {kModelFile, "model.rank-00000.safetensors"}) std::filesystem::remove(folder() + "/" + name);
}
