#include <levin/loggers/wandb_artifact_sink.h>

#include <levin/core/base/log.h>
#include <levin/loggers/digest.h>
#include <levin/loggers/random_id.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <protozero/pbf_writer.hpp>

#include <exception>
#include <filesystem>

namespace levin {
namespace {

using Tag = protozero::pbf_tag_type;

// Field numbers of wandb/proto/wandb_internal.proto.
struct ArtifactField {
  static constexpr Tag kRunId = 1, kProject = 2, kEntity = 3, kType = 4, kName = 5, kDigest = 6, kMetadata = 8,
                       kUserCreated = 9, kAliases = 11, kManifest = 12, kFinalize = 14, kClientId = 15,
                       kSequenceClientId = 16;
};
struct ManifestField {
  static constexpr Tag kVersion = 1, kPolicy = 2, kPolicyConfig = 3, kContents = 4;
};
struct EntryField {
  static constexpr Tag kPath = 1, kDigest = 2, kSize = 4, kLocalPath = 6;
};

/// As W&B names artifacts and sequences before a server has numbered them.
constexpr size_t kClientIdLength = 128;

/// The digests of the files and of the artifact are those of wandb/sdk/artifacts.
std::string artifact_message(const nlohmann::json& artifact, const std::atomic<bool>& stop) {
  const std::string directory = artifact["directory"];
  std::string manifest;
  std::string listing = "wandb-artifact-manifest-v1\n";
  {
    protozero::pbf_writer writer(manifest);
    writer.add_int32(ManifestField::kVersion, 1);
    writer.add_string(ManifestField::kPolicy, "wandb-storage-policy-v1");
    {
      constexpr Tag kKey = 1, kJson = 2;
      protozero::pbf_writer layout(writer, ManifestField::kPolicyConfig);
      layout.add_string(kKey, "storageLayout");
      layout.add_string(kJson, "\"V2\"");
    }
    for (const std::string name : artifact["files"]) {
      const std::filesystem::path path = std::filesystem::absolute(fmt::format("{}/{}", directory, name));
      const std::string digest = md5_base64_of_file(path, stop);
      listing += fmt::format("{}:{}\n", name, digest);
      protozero::pbf_writer entry(writer, ManifestField::kContents);
      entry.add_string(EntryField::kPath, name);
      entry.add_string(EntryField::kDigest, digest);
      entry.add_int64(EntryField::kSize, static_cast<int64_t>(std::filesystem::file_size(path)));
      entry.add_string(EntryField::kLocalPath, path.string());
    }
  }
  std::string data;
  protozero::pbf_writer writer(data);
  writer.add_string(ArtifactField::kRunId, artifact.value("run_id", ""));
  writer.add_string(ArtifactField::kProject, artifact.value("project", ""));
  writer.add_string(ArtifactField::kEntity, artifact.value("entity", ""));
  writer.add_string(ArtifactField::kType, "model");
  writer.add_string(ArtifactField::kName, artifact.value("name", ""));
  writer.add_string(ArtifactField::kDigest, md5_hex(listing));
  writer.add_string(ArtifactField::kMetadata, artifact.value("metadata", "{}"));
  writer.add_bool(ArtifactField::kUserCreated, true);
  for (const std::string alias : artifact["aliases"]) writer.add_string(ArtifactField::kAliases, alias);
  writer.add_message(ArtifactField::kManifest, manifest);
  writer.add_bool(ArtifactField::kFinalize, true);
  writer.add_string(ArtifactField::kClientId, random_id(kClientIdLength));
  writer.add_string(ArtifactField::kSequenceClientId, random_id(kClientIdLength));
  return data;
}

}  // namespace

std::string wandb::artifact_request(const Run& run, const Artifact& artifact) {
  const nlohmann::json json{{"run_id", run.id},
                            {"project", run.project},
                            {"entity", run.entity},
                            {"name", artifact.name},
                            {"directory", artifact.directory},
                            {"files", artifact.files},
                            {"aliases", artifact.aliases},
                            {"metadata", artifact.metadata_json}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

size_t WandbArtifactSink::send(std::span<const std::string> requests, const std::atomic<bool>& stop) {
  try {
    run_.push(wandb::artifact_record(artifact_message(nlohmann::json::parse(requests.front()), stop)));
  } catch (const std::exception& error) {
    log::warning(fmt::format("W&B logger: {}; this checkpoint is not logged{}", error.what(),
                             stop ? "; hint: a longer finish_seconds" : ""));
  }
  return 1;
}

}  // namespace levin
