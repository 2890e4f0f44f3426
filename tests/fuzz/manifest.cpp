#include "tests/fuzz/fuzz.h"

#include <levin/core/checkpoint/checkpoint_info.h>
#include <levin/core/checkpoint/checksum.h>
#include <levin/core/checkpoint/manifest.h>

// A manifest, with its own checksum put right and as it comes.
void levin::fuzzing::fuzz(std::string_view input) {
  write_file(kManifestFile, input);
  reads([] { read_manifest(folder()); });
  write_file(kManifestFile, std::string(input) + ",\n  \"manifest_xxh3_128\": \"" + checksum_of(input) + "\"\n}\n");
  reads([] { read_manifest(folder()); });
}
