#include <levin/core/interchange/write_weights.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/log.h>
#include <levin/core/checkpoint/checkpoint.h>
#include <levin/core/checkpoint/safetensors.h>
#include <levin/core/interchange/lightning.h>
#include <levin/core/interchange/pickler.h>
#include <levin/core/interchange/weight_plan.h>

#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <unistd.h>

#include <filesystem>
#include <map>
#include <memory>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace levin {
namespace {

/// A tensor in memory, for what takes those in files.
class TensorInMemory final : public SavedTensor {
 public:
  explicit TensorInMemory(const at::Tensor& tensor)
      : tensor_(dense(tensor.detach()).to(at::kCPU).resolve_conj().resolve_neg()), shape_(tensor.sizes().vec()) {}
  at::ScalarType dtype() const override { return tensor_.scalar_type(); }
  const std::vector<int64_t>& shape() const override { return shape_; }
  const std::vector<int64_t>& dimension_order() const override { return order_; }
  void read(int64_t offset, at::Tensor target) const override {
    target.view({-1}).copy_(tensor_.reshape({-1}).narrow(0, offset, target.numel()));
  }
  at::Tensor read_whole() const override { return tensor_.clone(at::MemoryFormat::Contiguous); }
  const at::Tensor& whole() const override { return tensor_; }

 private:
  static at::Tensor dense(const at::Tensor& tensor) {
    return tensor.layout() == at::kStrided ? tensor : tensor.to_dense();
  }

  at::Tensor tensor_;
  std::vector<int64_t> shape_;
  std::vector<int64_t> order_;
};

uint64_t bytes_of(const SavedTensor& tensor) {
  return static_cast<uint64_t>(c10::multiply_integers(tensor.shape())) * c10::elementSize(tensor.dtype());
}

/// Replaces a file when the new one is on the disk.
template <class Write>
void write_whole(const std::string& path, const Write& write) {
  FileSystem& files = FileSystem::current();
  const auto parent = std::filesystem::path(path).parent_path();
  if (!parent.empty()) files.create_directories(parent.string());
  files.replace_file(path, [&](WritableFile& file) {
    write(file);
    file.sync();
  });
}

void write_safetensors_file(const std::string& path, const std::vector<NamedLeaf>& tensors) {
  write_whole(path, [&](WritableFile& file) { write_safetensors(file, tensors, {{"format", "pt"}}); });
}

/// Whether a file of a Hugging Face folder has weights, or says which file has which: `model.safetensors`,
/// `model.safetensors.index.json`, `model-00001-of-00002.safetensors`.
bool is_of_weights(const std::string& name) {
  static const std::regex kNames(R"(model(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index\.json)");
  return std::regex_match(name, kNames);
}

/// Files that take their names together, when all are written.
class RenamedFiles {
 public:
  explicit RenamedFiles(std::filesystem::path folder) : folder_(std::move(folder)) {}
  RenamedFiles(const RenamedFiles&) = delete;
  RenamedFiles& operator=(const RenamedFiles&) = delete;
  ~RenamedFiles() {
    for (const auto& name : names_) ::unlink(unnamed(name).c_str());
  }
  /// Returns the path to write the file to.
  std::string add(const std::string& name) {
    names_.insert(name);
    return unnamed(name);
  }
  bool contains(const std::string& name) const { return names_.contains(name); }
  void rename() {
    for (const auto& name : names_) FileSystem::current().rename(unnamed(name), (folder_ / name).string());
    names_.clear();
  }

 private:
  std::string unnamed(const std::string& name) const { return (folder_ / (name + ".new")).string(); }

  std::filesystem::path folder_;
  std::set<std::string> names_;
};

void write_hugging_face(const std::string& folder, const std::vector<NamedLeaf>& tensors,
                        const WriteWeightsOptions& options) {
  FileSystem& files = FileSystem::current();
  const std::filesystem::path root = folder;
  if (options.config.empty() && !files.exists((root / "config.json").string()))
    throw Error("weights",
                fmt::format("a folder of Hugging Face needs the model's config.json; got none for {}; hint: give "
                            "one, as save_pretrained or the model's page has it",
                            folder));
  files.create_directories(folder);
  if (!options.config.empty()) {
    const std::string config = files.read_file(options.config);
    write_whole((root / "config.json").string(), [&](WritableFile& file) { file.append(config); });
  }
  std::vector<std::vector<NamedLeaf>> shards(1);
  uint64_t total = 0;
  uint64_t in_shard = 0;
  for (const auto& item : tensors) {
    const uint64_t bytes = bytes_of(*item.second.saved);
    if (in_shard > 0 && in_shard + bytes > static_cast<uint64_t>(options.max_shard_bytes)) {
      shards.emplace_back();
      in_shard = 0;
    }
    in_shard += bytes;
    total += bytes;
    shards.back().push_back(item);
  }
  RenamedFiles written(root);
  nlohmann::json index;
  index["metadata"]["total_size"] = total;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shards.size() == 1 ? "model.safetensors"
                                                : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    write_safetensors_file(written.add(name), shards[i]);
    for (const auto& [tensor, leaf] : shards[i]) index["weight_map"][tensor] = name;
  }
  if (shards.size() > 1)
    write_whole(written.add("model.safetensors.index.json"),
                [&](WritableFile& file) { file.append(index.dump(2) + "\n"); });
  // What an earlier save left would be read in place of this one.
  std::vector<std::string> former;
  for (const auto& name : files.list(folder))
    if (is_of_weights(name) && !written.contains(name)) former.push_back((root / name).string());
  written.rename();
  for (const auto& path : former) files.remove_all(path);
}

void write_state_dict(const std::string& path, const std::vector<NamedLeaf>& tensors) {
  PickleDocument document;
  Pickler pickler;
  PickleValue* const root = document.ordered_dict();
  std::map<const SavedTensor*, PickleValue*> values;
  for (const auto& [name, leaf] : tensors) {
    PickleValue*& value = values[leaf.saved.get()];
    if (value == nullptr) {
      value = document.tensor(
          at::empty(leaf.saved->shape(), at::TensorOptions().dtype(leaf.saved->dtype()).device(at::kMeta)));
      pickler.defer(value, leaf.saved);
    }
    document.put(root, name, value);
  }
  write_torch_file(path, *root, std::move(pickler));
}

/// The entries `model` and, where tensors have several names, `tied_names` of a checkpoint's tree.
State model_tree(const std::vector<NamedLeaf>& tensors) {
  State tree = State::map();
  State& model = tree["model"] = State::map();
  State tied = State::map();
  std::map<const SavedTensor*, std::string> names;
  for (const auto& [name, leaf] : tensors) {
    const auto [first, is_new] = names.emplace(leaf.saved.get(), name);
    if (is_new)
      model[name] = leaf;
    else
      tied[name] = first->second;
  }
  if (!tied.as_map().empty()) tree[kTiedNames] = std::move(tied);
  return tree;
}

/// The tree from which a Lightning checkpoint of weights is made.
State tree_of_weights(const std::vector<NamedLeaf>& tensors) {
  State tree = model_tree(tensors);
  State& loops = tree["loops"] = State::map();
  for (const char* name : {"epoch", "global_step", "batch", "total_batches", "phase"}) loops[name] = 0;
  loops["last_batch_done"] = false;
  return tree;
}

void write_lightning(const std::string& path, const State& tree, bool weights_only) {
  PickleDocument document;
  Pickler pickler;
  const PickleValue* const root = lightning_checkpoint(document, pickler, tree, weights_only);
  write_torch_file(path, *root, std::move(pickler));
}

}  // namespace

WeightsFormat weights_format_of(const std::string& path) {
  const std::string suffix = std::filesystem::path(path).extension().string();
  if (suffix == ".safetensors") return WeightsFormat::kSafetensors;
  if (suffix == ".pth" || suffix == ".pt" || suffix == ".bin") return WeightsFormat::kPyTorch;
  if (suffix == ".ckpt") return WeightsFormat::kLightning;
  return WeightsFormat::kHuggingFace;
}

WeightsFormat weights_format_of_name(const std::string& name) {
  std::vector<std::string> names;
  for (const auto format : {WeightsFormat::kLevin, WeightsFormat::kSafetensors, WeightsFormat::kPyTorch,
                            WeightsFormat::kLightning, WeightsFormat::kHuggingFace}) {
    if (name == weights_format_name(format)) return format;
    names.emplace_back(weights_format_name(format));
  }
  throw Error("weights", fmt::format("unknown format; got '{}'{}", name, valid_names_hint(name, names)));
}

bool keeps_tied_names(WeightsFormat format) {
  return format == WeightsFormat::kPyTorch || format == WeightsFormat::kLightning || format == WeightsFormat::kLevin;
}

void write_weights(const std::string& path, WeightsFormat format, const std::vector<NamedLeaf>& tensors,
                   const WriteWeightsOptions& options) {
  SavedTensors saved;
  std::map<const void*, std::shared_ptr<const SavedTensor>> in_memory;
  for (const auto& [name, leaf] : tensors) {
    auto tensor = leaf.saved;
    if (tensor == nullptr) {
      auto& same = in_memory[leaf.value.unsafeGetTensorImpl()];
      if (same == nullptr) same = std::make_shared<TensorInMemory>(leaf.value);
      tensor = same;
    }
    if (!saved.emplace(name, std::move(tensor)).second)
      throw Error("weights", fmt::format("cannot save two tensors of the name '{}'", name));
  }
  std::vector<NamedLeaf> mapped;
  for (const auto& [name, tensor] : map_weights(saved, {.rules = options.rules}).tensors)
    mapped.emplace_back(name, TensorLeaf{.saved = tensor});
  switch (format) {
    case WeightsFormat::kSafetensors:
      return write_safetensors_file(path, mapped);
    case WeightsFormat::kPyTorch:
      return write_state_dict(path, mapped);
    case WeightsFormat::kLightning:
      return write_lightning(path, tree_of_weights(mapped), /*weights_only=*/true);
    case WeightsFormat::kHuggingFace:
      return write_hugging_face(path, mapped, options);
    case WeightsFormat::kLevin:
      break;
  }
  write_checkpoint(path, model_tree(mapped), {});
}

void convert_weights(const std::string& source, const std::string& target, WeightsFormat format,
                     const WriteWeightsOptions& options, bool weights_only) {
  const Weights weights = open_weights(source, options.key);
  if (weights.format == WeightsFormat::kLevin && format == WeightsFormat::kLightning) {
    const State tree = open_checkpoint(source);
    const bool goes_on = tree.find("loops") != nullptr;
    if (goes_on && options.rules.empty()) return write_lightning(target, tree, weights_only);
    if (goes_on && !weights_only)
      throw Error("weights",
                  fmt::format("rules rename weights, and the optimizers' state of {} knows them by their names; "
                              "hint: --weights-only",
                              source));
  }
  std::vector<NamedLeaf> tensors;
  for (const auto& [name, tensor] : weights.tensors)
    if (keeps_tied_names(format) || !weights.tied_names.contains(name))
      tensors.emplace_back(name, TensorLeaf{.saved = tensor});
  if (const auto others = entries_passed_over(weights); options.key.empty() && !others.empty())
    log::rank_zero_info(fmt::format("the weights of {} are those of '{}'; other entries with tensors are left out: {}",
                                    source, weights.key, join(others)));
  if (const auto objects = objects_passed_over(weights); options.key.empty() && !objects.empty())
    log::rank_zero_warning(
        fmt::format("{}: {} of a class that is not read as a dict, and passed over; '{}' was taken; "
                    "hint: --key says which, or save a plain dict of tensors",
                    source, join(objects), weights.key));
  WriteWeightsOptions with_config = options;
  const std::string config = source + "/config.json";
  if (format == WeightsFormat::kHuggingFace && options.config.empty() && FileSystem::current().exists(config))
    with_config.config = config;
  write_weights(target, format, tensors, with_config);
}

}  // namespace levin
