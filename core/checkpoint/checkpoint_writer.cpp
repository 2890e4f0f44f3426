#include <levin/core/checkpoint/checkpoint_writer.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/checkpoint/checksum.h>
#include <levin/core/checkpoint/manifest.h>
#include <levin/core/checkpoint/pending_directory.h>
#include <levin/core/checkpoint/safetensors.h>
#include <levin/core/checkpoint/shard_index.h>
#include <levin/core/checkpoint/state_bytes.h>
#include <levin/core/checkpoint/state_json.h>
#include <levin/core/checkpoint/state_path.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace levin {
namespace {

std::string now_utc() {
  const auto now = std::chrono::time_point_cast<std::chrono::microseconds>(std::chrono::system_clock::now());
  const auto day = std::chrono::floor<std::chrono::days>(now);
  const std::chrono::year_month_day date(day);
  const std::chrono::hh_mm_ss time(now - day);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()), time.hours().count(),
                     time.minutes().count(), time.seconds().count(), time.subseconds().count());
}

/// A folder that holds something else is not ours to replace.
void check_replaceable(const std::string& path) {
  const FileSystem& files = FileSystem::current();
  if (!files.exists(path)) return;
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(path, ignored);
  // Weights alone may be those of Hugging Face, beside files of others.
  if (is_folder &&
      (files.list(path).empty() || files.exists(path + "/" + kManifestFile) || files.exists(path + "/" + kStateFile)))
    return;
  throw Error("checkpoint",
              fmt::format("cannot save {}: the name is taken; got a {} that is no checkpoint; valid: a new name "
                          "or a checkpoint to replace",
                          path, is_folder ? "folder" : "file"));
}

/// The files of one folder. They are synced together after the last one is written: file systems with a journal then
/// pay for one commit instead of one for each file.
class FileGroup {
 public:
  explicit FileGroup(std::string folder) : folder_(std::move(folder)) {}

  FileSummary write(const std::string& name, const std::function<void(WritableFile&)>& write) {
    files_.push_back(std::make_unique<ChecksumFile>(FileSystem::current().create(folder_ + "/" + name)));
    write(*files_.back());
    files_.back()->flush();
    return files_.back()->summary();
  }

  void sync_and_close() {
    for (const auto& file : files_) {
      file->sync();
      file->close();
    }
  }

 private:
  std::string folder_;
  std::vector<std::unique_ptr<ChecksumFile>> files_;
};

// Without this entry some readers of model files refuse them.
constexpr const char* kFormatKey = "format";
constexpr const char* kFormatValue = "pt";

/// "[files] cannot write FILE: No space left on device" as the failure of the whole; other errors say enough.
std::string explanation(const std::string& path, const Error& cause) {
  std::string_view message = cause.what();
  message.remove_prefix(std::min(message.size(), cause.component().size() + 3));
  if (cause.component() == "checkpoint") return std::string(message);
  const bool is_of_the_system = cause.component() == "files" && message.find("; valid: ") == std::string_view::npos;
  if (!is_of_the_system) return fmt::format("cannot save {}: {}", path, cause.what());
  const size_t colon = message.rfind(": ");
  const std::string_view reason = colon == std::string_view::npos ? message : message.substr(colon + 2);
  const std::string_view action = message.substr(0, colon);
  return fmt::format("cannot save {}: {}; got '{}'; hint: the last good checkpoint is untouched", path, reason, action);
}

/// Of a rank that writes its shards, in the plan of a save.
constexpr char kWrites = 'w';

/// One save as one rank sees it.
class Save {
 public:
  Save(SaveChannel& channel, const std::string& path, const State& tree, const CheckpointInfo& info)
      : channel_(channel), path_(path), tree_(tree), info_(info) {
    if (info_.created.empty()) info_.created = now_utc();
  }

  void run() {
    // Everything that a rank may fail at is in attempt(), so that all come to the next message.
    const auto signatures = gather(attempt([&] { return prepare(); }));
    const State plan = broadcast(attempt([&] { return is_first() ? make_plan(signatures) : State::map(); }));
    const auto files = gather(attempt([&] { return write_own_files(plan); }));
    const State outcome = attempt([&] { return is_first() ? finish(plan, files) : State::map(); });
    folder_.reset();
    broadcast(outcome);
  }

 private:
  bool is_first() const { return channel_.rank() == 0; }

  // ---- What ranks tell each other: mappings, of which one with the key "error" says that a rank failed.

  State attempt(const std::function<State()>& action) const {
    State failure = State::map();
    try {
      return action();
    } catch (const Error& error) {
      failure["error"] = explanation(path_, error);
    } catch (const std::exception& error) {
      if (channel_.world_size() == 1) throw;
      failure["error"] = fmt::format("cannot save {}: {}", path_, error.what());
    }
    return failure;
  }

  static void throw_if_failed(const State& message) {
    if (const State* error = message.find("error")) throw Error("checkpoint", error->as_string());
  }

  State broadcast(const State& message) {
    const State first = state_from_bytes(channel_.broadcast(state_to_bytes(message)));
    throw_if_failed(first);
    return first;
  }

  std::vector<State> gather(const State& message) {
    std::vector<State> all;
    try {
      for (const std::string& bytes : channel_.gather(state_to_bytes(message))) all.push_back(state_from_bytes(bytes));
    } catch (const std::exception& error) {
      give_up(error.what());
      throw;
    }
    return all;
  }

  /// Tells ranks that wait for rank 0 not to wait any longer, if they can still be reached.
  void give_up(const std::string& reason) {
    if (!is_first()) return;
    State failure = State::map();
    failure["error"] = fmt::format("cannot save {}: {}", path_, reason);
    try {
      channel_.broadcast(state_to_bytes(failure));
    } catch (const std::exception&) {
      // The error that came first is the one to show.
    }
  }

  // ---- The steps.

  State prepare() {
    shards_ = shards_of(tree_);
    State message = State::map();
    message["signature"] = signature_of(shards_);
    return message;
  }

  /// Where to write, and which ranks do: of several that hold the same parts the lowest.
  State make_plan(const std::vector<State>& signatures) {
    State plan = State::map();
    plan["is_sharded"] = false;
    std::string writes;  // a letter for each rank
    std::set<std::string> seen;
    for (const State& message : signatures) {
      throw_if_failed(message);
      const std::string& signature = message.at("signature").as_string();
      if (!signature.empty()) plan["is_sharded"] = true;
      writes += seen.insert(signature).second ? kWrites : '-';
    }
    plan["writes"] = std::move(writes);
    check_replaceable(path_);
    folder_.emplace(path_);
    plan["folder"] = folder_->path();
    plan["save_id"] = random_token();
    return plan;
  }

  State write_own_files(const State& plan) {
    const std::string& folder = plan.at("folder").as_string();
    State files = State::map();
    if (!plan.at("is_sharded").as_bool()) {
      if (is_first()) write_plain(folder);
      return files;
    }
    const bool writes_shards = plan.at("writes").as_string()[static_cast<size_t>(channel_.rank())] == kWrites;
    FileGroup group(folder);
    for (const char* kind : {kModelFile, kOptimizerFile, kTensorsFile}) {
      std::vector<Shard> shards;
      std::vector<NamedLeaf> items = is_first() ? replicated(kind) : std::vector<NamedLeaf>{};
      for (const Shard& shard : shards_) {
        if (!writes_shards || shard.kind != kind || shard.elements.numel() == 0) continue;
        shards.push_back(shard);
        items.emplace_back(shard.name, TensorLeaf{shard.elements});
      }
      if (items.empty()) continue;
      const std::map<std::string, std::string> metadata{{kFormatKey, kFormatValue},
                                                        {kSaveIdKey, plan.at("save_id").as_string()},
                                                        {kPiecesKey, describe_shards(shards)}};
      const std::string name = rank_file(kind, channel_.rank());
      const FileSummary summary =
          group.write(name, [&](WritableFile& file) { write_safetensors(file, items, metadata); });
      State& entry = files["files"][name];
      entry["kind"] = kind;
      entry["size"] = static_cast<int64_t>(summary.size);
      entry["checksum"] = summary.checksum;
    }
    group.sync_and_close();
    return files;
  }

  std::vector<NamedLeaf> replicated(const std::string& kind) const {
    std::vector<NamedLeaf> items;
    for_each_leaf(tree_, [&](const std::string& path, const State& node) {
      if (!node.is_tensor()) return;
      const TensorLeaf& leaf = node.as_leaf();
      if (leaf.placement.kind == Placement::Kind::kSharded || (!leaf.value.defined() && leaf.saved == nullptr)) return;
      if (const TensorReference place = usual_place("/" + path); place.file == kind)
        items.emplace_back(place.name, leaf);
    });
    return items;
  }

  void write_plain(const std::string& folder) const {
    // All three are written even when they hold nothing, so that every reader finds them.
    TensorsByFile tensors{{kModelFile, {}}, {kOptimizerFile, {}}, {kTensorsFile, {}}};
    const std::string state = encode_state(tree_, tensors);
    Manifest manifest{.info = info_};
    FileGroup group(folder);
    for (const auto& [name, items] : tensors)
      manifest.files[name] = group.write(name, [&](WritableFile& file) {
        write_safetensors(file, items, {{kFormatKey, kFormatValue}});
      });
    write_ending(group, state, manifest);
  }

  static void write_ending(FileGroup& group, const std::string& state, Manifest& manifest) {
    manifest.files[kStateFile] = group.write(kStateFile, [&](WritableFile& file) { file.append(state + "\n"); });
    group.write(kManifestFile, [&](WritableFile& file) { file.append(manifest_text(manifest)); });
    group.sync_and_close();
  }

  State finish(const State& plan, const std::vector<State>& files_of_ranks) {
    for (const State& message : files_of_ranks) throw_if_failed(message);
    if (plan.at("is_sharded").as_bool()) write_sharded_ending(plan, files_of_ranks);
    folder_->commit();
    return State::map();
  }

  void write_sharded_ending(const State& plan, const std::vector<State>& files_of_ranks) const {
    const std::string& folder = plan.at("folder").as_string();
    Manifest manifest{.info = info_, .save_id = plan.at("save_id").as_string()};
    ShardIndex index;
    for (const State& message : files_of_ranks) {
      const State* files = message.find("files");
      if (files == nullptr) continue;
      for (const auto& [name, entry] : files->as_map()) {
        manifest.files[name] = {static_cast<uint64_t>(entry.at("size").as_int()), entry.at("checksum").as_string()};
        index.add(entry.at("kind").as_string(), name, SafetensorsFile(folder + "/" + name));
      }
    }
    const auto place = [&](const TensorLeaf& leaf, const TensorReference& usual) {
      if (leaf.placement.kind == Placement::Kind::kSharded) return index.place(leaf, usual);
      return TensorReference{.file = rank_file(usual.file, 0), .name = usual.name};
    };
    TensorsByFile written;
    const std::string state = encode_state(tree_, written, place);
    index.require_all_placed();
    FileGroup group(folder);
    write_ending(group, state, manifest);
  }

  SaveChannel& channel_;
  const std::string& path_;
  const State& tree_;
  CheckpointInfo info_;
  std::vector<Shard> shards_;
  std::optional<PendingDirectory> folder_;  ///< on rank 0; not put in place, it is removed
};

}  // namespace

void write_through(SaveChannel& channel, const std::string& path, const State& tree, const CheckpointInfo& info) {
  Save(channel, path, tree, info).run();
}

}  // namespace levin
