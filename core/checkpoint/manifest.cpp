#include <levin/core/checkpoint/manifest.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/state.h>
#include <levin/core/checkpoint/state_json.h>

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace levin {
namespace {

constexpr const char* kFormat = "levin-checkpoint";
/// A checkpoint whose files all belong to one rank, and one with files of several ranks.
constexpr int64_t kPlainVersion = 1;
constexpr int64_t kShardedVersion = 2;

/// How every manifest ends; the checksum is that of all the text before this.
std::string ending_of(std::string_view body) {
  return fmt::format(",\n  \"manifest_xxh3_128\": \"{}\"\n}}\n", checksum_of(body));
}

State tree_of(const Manifest& manifest) {
  State tree = State::map();
  tree["format"] = kFormat;
  tree["format_version"] = manifest.save_id.empty() ? kPlainVersion : kShardedVersion;
  tree["epoch"] = manifest.info.epoch;
  tree["global_step"] = manifest.info.global_step;
  tree["world_size"] = manifest.info.world_size;
  tree["levin_version"] = manifest.info.levin_version;
  tree["created"] = manifest.info.created;
  tree["monitor"] = manifest.info.monitor;
  tree["score"] = manifest.info.score ? State(*manifest.info.score) : State();
  if (!manifest.save_id.empty()) tree["save_id"] = manifest.save_id;
  tree["files"] = State::map();
  for (const auto& [name, summary] : manifest.files) {
    State& file = tree["files"][name];
    file["size"] = static_cast<int64_t>(summary.size);
    file["xxh3_128"] = summary.checksum;
  }
  return tree;
}

Manifest manifest_of(const State& tree, const std::string& path) {
  if (tree.at("format").as_string() != kFormat)
    throw Error("checkpoint", fmt::format("{} has an unknown format; got '{}'; valid: '{}'", path,
                                          tree.at("format").as_string(), kFormat));
  const int64_t version = tree.at("format_version").as_int();
  if (version != kPlainVersion && version != kShardedVersion)
    throw Error("checkpoint",
                fmt::format("{} has an unknown format version; got {}; valid: {}, {}; hint: Levin {} wrote it", path,
                            version, kPlainVersion, kShardedVersion, tree.at("levin_version").as_string()));
  Manifest manifest;
  manifest.info = {.epoch = tree.at("epoch").as_int(),
                   .global_step = tree.at("global_step").as_int(),
                   .world_size = tree.at("world_size").as_int(),
                   .monitor = tree.at("monitor").as_string(),
                   .score = {},
                   .levin_version = tree.at("levin_version").as_string(),
                   .created = tree.at("created").as_string()};
  if (version == kShardedVersion) manifest.save_id = tree.at("save_id").as_string();
  if (!tree.at("score").is_null()) manifest.info.score = tree.at("score").as_double();
  for (const auto& [name, file] : tree.at("files").as_map()) {
    if (name.empty() || name.starts_with('.') || name.find('/') != std::string::npos)
      throw Error("checkpoint", fmt::format("{} lists '{}', which is no file of its folder", path, name));
    manifest.files[name] = {static_cast<uint64_t>(file.at("size").as_int()), file.at("xxh3_128").as_string()};
  }
  return manifest;
}

}  // namespace

std::string manifest_text(const Manifest& manifest) {
  TensorsByFile no_tensors;
  std::string text = encode_state(tree_of(manifest), no_tensors);
  constexpr std::string_view kClosing = "\n}";
  LEVIN_CHECK(text.ends_with(kClosing), "the manifest's text does not end as expected");
  text.resize(text.size() - kClosing.size());
  return text + ending_of(text);
}

Manifest parse_manifest(const std::string& text, const std::string& path) {
  const size_t ending_size = ending_of("").size();
  const std::string_view body = std::string_view(text).substr(0, text.size() - std::min(text.size(), ending_size));
  if (std::string_view(text).substr(body.size()) != ending_of(body))
    throw Error("checkpoint", fmt::format("{} is damaged; got a text that its own checksum does not match", path));
  return manifest_of(decode_state(text, path,
                                  [&](const TensorReference&) -> State {
                                    throw Error("checkpoint", fmt::format("{} holds a tensor", path));
                                  }),
                     path);
}

Manifest read_manifest(const std::string& checkpoint) {
  FileSystem& files = FileSystem::current();
  const std::string path = checkpoint + "/" + kManifestFile;
  if (!files.exists(checkpoint)) throw Error("checkpoint", fmt::format("there is no checkpoint at {}", checkpoint));
  if (!files.exists(path))
    throw Error("checkpoint",
                fmt::format("{} is not a whole checkpoint; got a folder without {}", checkpoint, kManifestFile));
  return parse_manifest(files.read_file(path), path);
}

bool looks_like_checkpoint(const std::string& folder) {
  FileSystem& files = FileSystem::current();
  for (const char* name : {kManifestFile, kStateFile, kModelFile})
    if (files.exists(folder + "/" + name)) return true;
  return false;
}

}  // namespace levin
