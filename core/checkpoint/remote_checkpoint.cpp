#include <levin/core/checkpoint/remote_checkpoint.h>

#include <levin/core/base/file_system.h>
#include <levin/core/base/log.h>
#include <levin/core/checkpoint/checkpoint.h>
#include <levin/core/checkpoint/checkpoint_files.h>
#include <levin/core/checkpoint/checkpoint_info.h>
#include <levin/core/checkpoint/checksum.h>
#include <levin/core/checkpoint/pending_directory.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <system_error>
#include <tuple>
#include <utility>

namespace levin {
namespace {

/// The name of the n-th checkpoint of one name.
std::string numbered(const std::string& name, int64_t number) {
  return number == 0 ? name : fmt::format("{}~{}", name, number);
}

/// The name without a number.
std::string plain_name(const std::string& name) {
  const size_t mark = name.find_last_not_of("0123456789");
  const bool is_numbered = mark != std::string::npos && mark > 0 && mark + 1 < name.size() && name[mark] == '~';
  return is_numbered ? name.substr(0, mark) : name;
}

std::string key_of(const RemoteUrl& checkpoint, const std::string& file) { return (checkpoint / file).key; }

/// Checkpoints of one name that a list may lack; where there are more, what answers says so of every name.
constexpr int kMostUnlisted = 100;

/// What stands in the manifest's place where a server does not remove it.
constexpr const char* kRemoved = "removed\n";

/// The manifest of a checkpoint, damaged or not; nothing where there is no checkpoint.
std::optional<std::string> find_manifest(ObjectStore& store, const RemoteUrl& checkpoint) {
  auto text = store.get(key_of(checkpoint, kManifestFile));
  return text == kRemoved ? std::nullopt : std::move(text);
}

/// The checkpoints of one name that have a manifest, damaged or not.
std::vector<RemoteUrl> versions_of(ObjectStore& store, const RemoteUrl& folder, const std::string& name) {
  std::vector<RemoteUrl> versions;
  for (const std::string& found : store.folders(folder.key)) {
    const bool is_version = found == name || (found != plain_name(found) && plain_name(found) == name);
    if (is_version && find_manifest(store, folder / found)) versions.push_back(folder / found);
  }
  return versions;
}

/// Which of two checkpoints of one name was saved later.
bool is_newer(const RemoteCheckpoint& a, const RemoteCheckpoint& b) {
  const auto age = [](const CheckpointInfo& info) { return std::tie(info.created, info.global_step, info.epoch); };
  return age(a.manifest.info) > age(b.manifest.info);
}

void remove_objects(ObjectStore& store, const RemoteUrl& checkpoint) {
  const std::string manifest = key_of(checkpoint, kManifestFile);
  const auto text = find_manifest(store, checkpoint);
  if (!text) return;
  store.remove(manifest);
  if (store.get(manifest)) {
    store.put_text(manifest, kRemoved);
    log::warning_once(
        fmt::format("the store of {}://{} keeps objects that it was asked to remove: those of superseded checkpoints "
                    "stay there, under manifests that say 'removed'; hint: the server, or a proxy before it, ignores "
                    "DELETE",
                    checkpoint.scheme, checkpoint.bucket));
  }
  try {
    for (const auto& file : parse_manifest(*text, checkpoint.text()).files)
      store.remove(key_of(checkpoint, file.first));
  } catch (const StoreUnavailable&) {
    throw;
  } catch (const Error& error) {
    log::warning(fmt::format("what is left of {} was not removed: {}", checkpoint.text(), error.what()));
  }
}

/// Throws where what is at the store is not what the manifest says, or has no room here: nothing is fetched in vain.
void check_sizes(ObjectStore& store, const RemoteCheckpoint& checkpoint, const std::string& into) {
  uint64_t total = 0;
  for (const auto& [name, summary] : checkpoint.manifest.files) {
    const auto object = store.find(key_of(checkpoint.url, name));
    if (object && object->size.value_or(summary.size) != summary.size)
      throw Error("checkpoint", fmt::format("{} is damaged; got {} bytes; valid: {}", (checkpoint.url / name).text(),
                                            *object->size, summary.size));
    if (__builtin_add_overflow(total, summary.size, &total)) total = std::numeric_limits<uint64_t>::max();
  }
  std::error_code ignored;
  const auto disk = std::filesystem::space(into, ignored);
  if (!ignored && total > disk.available)
    throw Error("checkpoint", fmt::format("{} has {} bytes, for which there is no room in {}; got {} bytes that are "
                                          "free; hint: another default_root_dir",
                                          checkpoint.url.text(), total, into, disk.available));
}

/// An upload that was cut short may have left files, which could pass for those that are stored now.
void remove_leftovers(ObjectStore& store, const RemoteUrl& url, const Manifest& manifest) {
  try {
    for (const auto& file : manifest.files)
      if (store.find(key_of(url, file.first))) store.remove(key_of(url, file.first));
  } catch (const StoreUnavailable&) {
    throw;
  } catch (const Error&) {
    // Keys that may not remove: they are written over.
  }
}

/// Throws where a server that said that it has stored these files has not, or not all bytes of them.
void require_stored(ObjectStore& store, const RemoteUrl& url, const Manifest& manifest) {
  for (const auto& [name, summary] : manifest.files) {
    const auto object = store.find(key_of(url, name));
    if (object && object->size.value_or(summary.size) == summary.size) continue;
    throw StoreUnavailable(
        "checkpoint",
        fmt::format("cannot write to {}: the server said that it has stored {}; got {}; valid: {} bytes; hint: what "
                    "answers may be no store of objects",
                    url.text(), name, object ? fmt::format("{} bytes", *object->size) : "no object", summary.size));
  }
}

void write_synced(const std::string& path, const std::string& content) {
  const auto file = FileSystem::current().create(path);
  file->append(content);
  file->sync();
  file->close();
}

void sync_file(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open() || ::fsync(file.number()) != 0) throw Error("checkpoint", fmt::format("cannot write {}", path));
}

}  // namespace

void upload_checkpoint(ObjectStore& store, const RemoteUrl& folder, const std::string& name, const std::string& path) {
  const Manifest manifest = read_manifest(path);
  std::vector<RemoteUrl> former = versions_of(store, folder, name);
  RemoteUrl url;
  int unlisted = 0;
  for (int64_t number = 0;; ++number) {
    url = folder / numbered(name, number);
    if (std::any_of(former.begin(), former.end(), [&](const RemoteUrl& version) { return version.key == url.key; }))
      continue;
    // A list may lag behind: what it lacks is not overwritten either.
    if (!find_manifest(store, url)) break;
    if (++unlisted > kMostUnlisted)
      throw StoreUnavailable(
          "checkpoint",
          fmt::format("cannot write to {}: {} and {} names after it are taken, of which the list has none; "
                      "hint: what answers may be no store of objects",
                      folder.text(), name, kMostUnlisted));
    former.push_back(url);
  }
  remove_leftovers(store, url, manifest);
  for (const auto& file : manifest.files) store.put(key_of(url, file.first), path + "/" + file.first);
  require_stored(store, url, manifest);
  store.put(key_of(url, kManifestFile), path + "/" + kManifestFile);
  // Before the former ones are removed: the new one is there.
  if (store.get(key_of(url, kManifestFile)) != FileSystem::current().read_file(path + "/" + kManifestFile))
    throw StoreUnavailable("checkpoint",
                           fmt::format("cannot write to {}: {} is read back as something else; hint: what answers may "
                                       "be no store of objects",
                                       folder.text(), (url / kManifestFile).text()));
  try {
    for (const RemoteUrl& version : former) remove_objects(store, version);
  } catch (const Error& error) {
    // The upload is done. The next one of this name tries again.
    log::warning_once(fmt::format("what the upload of '{}' supersedes stays in the store: {}", name, error.what()));
  }
}

void upload_newer_checkpoint(ObjectStore& store, const RemoteUrl& folder, const std::string& name,
                             const std::string& path) {
  const std::string created = read_manifest(path).info.created;
  for (const RemoteUrl& version : versions_of(store, folder, name)) {
    try {
      const auto there = find_remote_checkpoint(store, version);
      if (there && there->manifest.info.created >= created) return;
    } catch (const StoreUnavailable&) {
      throw;
    } catch (const Error&) {
      // It is damaged.
    }
  }
  upload_checkpoint(store, folder, name, path);
}

void remove_remote_checkpoint(ObjectStore& store, const RemoteUrl& folder, const std::string& name) {
  for (const RemoteUrl& version : versions_of(store, folder, name)) remove_objects(store, version);
}

std::optional<RemoteCheckpoint> find_remote_checkpoint(ObjectStore& store, const RemoteUrl& url) {
  auto text = find_manifest(store, url);
  if (!text) return {};
  Manifest manifest = parse_manifest(*text, (url / kManifestFile).text());
  return RemoteCheckpoint{.url = url, .manifest = std::move(manifest), .manifest_text = std::move(*text)};
}

std::vector<RemoteCheckpoint> remote_checkpoints(ObjectStore& store, const RemoteUrl& folder,
                                                 std::vector<std::string>* damaged) {
  std::vector<RemoteCheckpoint> found;
  for (const std::string& name : store.folders(folder.key)) {
    try {
      if (auto checkpoint = find_remote_checkpoint(store, folder / name)) found.push_back(std::move(*checkpoint));
    } catch (const StoreUnavailable&) {
      throw;
    } catch (const Error& error) {
      log::warning(error.what());
      if (damaged != nullptr) damaged->emplace_back(error.what());
    }
  }
  std::map<std::string, const RemoteCheckpoint*> newest;
  const auto name_of = [&](const RemoteCheckpoint& checkpoint) {
    return plain_name(checkpoint.url.key.substr(checkpoint.url.key.rfind('/') + 1));
  };
  for (const RemoteCheckpoint& checkpoint : found) {
    const RemoteCheckpoint*& known = newest[name_of(checkpoint)];
    if (known == nullptr || is_newer(checkpoint, *known)) known = &checkpoint;
  }
  std::set<std::string> superseded;
  for (const RemoteCheckpoint& checkpoint : found)
    if (newest.at(name_of(checkpoint)) != &checkpoint) superseded.insert(checkpoint.url.key);
  const auto age = [&](const RemoteCheckpoint& checkpoint) {
    const CheckpointInfo& info = checkpoint.manifest.info;
    return std::tuple(!superseded.contains(checkpoint.url.key), info.global_step, info.epoch, info.created);
  };
  std::stable_sort(found.begin(), found.end(), [&](const auto& a, const auto& b) { return age(a) > age(b); });
  return found;
}

namespace {

/// The newest upload of the name that an address ends with, `known` among them; nothing where there is none.
std::optional<RemoteCheckpoint> newest_upload(ObjectStore& store, const RemoteUrl& url,
                                              std::optional<RemoteCheckpoint> known) {
  const size_t slash = url.key.rfind('/');
  const RemoteUrl folder{url.scheme, url.bucket, slash == std::string::npos ? "" : url.key.substr(0, slash)};
  std::vector<RemoteUrl> versions;
  try {
    versions = versions_of(store, folder, url.key.substr(slash + 1));
  } catch (const StoreUnavailable&) {
    throw;
  } catch (const Error&) {
    return known;  // keys that may read and not list
  }
  for (const RemoteUrl& version : versions) {
    try {
      auto other = find_remote_checkpoint(store, version);
      if (other && (!known || is_newer(*other, *known))) known = std::move(other);
    } catch (const StoreUnavailable&) {
      throw;
    } catch (const Error& error) {
      log::warning(error.what());
    }
  }
  return known;
}

}  // namespace

std::string download_checkpoint(ObjectStore& store, const RemoteCheckpoint& checkpoint, const std::string& into) {
  const std::string& key = checkpoint.url.key;
  constexpr size_t kDigits = 8;
  const std::string path = fmt::format("{}/{}-{}", into, key.substr(key.rfind('/') + 1),
                                       checksum_of(checkpoint.manifest_text).substr(0, kDigits));
  FileSystem& files = FileSystem::current();
  if (files.exists(path + "/" + kManifestFile) &&
      files.read_file(path + "/" + kManifestFile) == checkpoint.manifest_text) {
    std::string damaged;
    for (const auto& [name, summary] : checkpoint.manifest.files)
      if (damaged.empty()) damaged = problem_of_file(path, checkpoint.manifest, name);
    if (damaged.empty()) return path;
    log::warning(fmt::format("the copy {} of a checkpoint is damaged ({}): it is downloaded again", path, damaged));
    std::error_code error;
    std::filesystem::remove_all(path, error);
    if (error) throw Error("checkpoint", fmt::format("cannot remove {}: {}", path, error.message()));
  }
  log::info(fmt::format("downloading the checkpoint {}", checkpoint.url.text()));
  PendingDirectory pending(path);
  check_sizes(store, checkpoint, pending.path());
  for (const auto& [name, summary] : checkpoint.manifest.files) {
    const std::string file = pending.path() + "/" + name;
    // A server that did not say its size: one that is somewhat longer is damaged, one without an end no answer.
    constexpr uint64_t kMore = uint64_t{64} << 20;
    const bool is_there = store.download(key_of(checkpoint.url, name), file, summary.size + kMore);
    const std::string problem =
        is_there ? problem_of_file(pending.path(), checkpoint.manifest, name) : std::string("is missing");
    if (!problem.empty()) throw Error("checkpoint", fmt::format("{} {}", (checkpoint.url / name).text(), problem));
    sync_file(file);
  }
  write_synced(pending.path() + "/" + kManifestFile, checkpoint.manifest_text);
  pending.commit();
  return path;
}

std::string fetch_checkpoint(const std::string& url, const std::string& into) {
  const RemoteUrl place = parse_remote_url(url, "the checkpoint");
  ObjectStore store(place);
  if (!place.key.empty())
    if (auto checkpoint = find_remote_checkpoint(store, place))
      return download_checkpoint(store, *newest_upload(store, place, std::move(checkpoint)), into);
  std::vector<std::string> problems;
  std::vector<std::string> damaged;
  for (const RemoteCheckpoint& checkpoint : remote_checkpoints(store, place, &damaged)) {
    try {
      std::string path = download_checkpoint(store, checkpoint, into);
      for (const auto& problem : problems)
        log::warning(fmt::format("falling back to {}: {}", checkpoint.url.text(), problem));
      return path;
    } catch (const StoreUnavailable&) {
      throw;
    } catch (const Error& error) {
      problems.emplace_back(error.what());
    }
  }
  problems.insert(problems.end(), damaged.begin(), damaged.end());
  if (problems.empty() && !place.key.empty())
    if (const auto checkpoint = newest_upload(store, place, std::nullopt))
      return download_checkpoint(store, *checkpoint, into);
  throw Error("checkpoint", fmt::format("there is no whole checkpoint at {} nor in a folder below it{}", place.text(),
                                        problems.empty() ? "" : "; got " + join(problems, "; ")));
}

}  // namespace levin
