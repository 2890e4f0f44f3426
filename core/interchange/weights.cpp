#include <levin/core/interchange/weights.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/checkpoint/checkpoint.h>
#include <levin/core/checkpoint/checkpoint_info.h>
#include <levin/core/checkpoint/input_file.h>
#include <levin/core/checkpoint/safetensors.h>
#include <levin/core/interchange/other_formats.h>
#include <levin/core/interchange/torch_file.h>

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

namespace levin {
namespace {

using Kind = PickleValue::Kind;
using Json = nlohmann::json;

constexpr const char* kSafetensorsName = "model.safetensors";
constexpr const char* kSafetensorsIndex = "model.safetensors.index.json";
constexpr const char* kTorchName = "pytorch_model.bin";
constexpr const char* kTorchIndex = "pytorch_model.bin.index.json";
constexpr int kMostLevels = 100;

/// A tensor of a file, of which `Source` says what it is and how to read it.
class TensorOfFile : public SavedTensor {
 public:
  TensorOfFile(at::ScalarType dtype, std::vector<int64_t> shape) : dtype_(dtype), shape_(std::move(shape)) {}

  at::ScalarType dtype() const override { return dtype_; }
  const std::vector<int64_t>& shape() const override { return shape_; }
  const std::vector<int64_t>& dimension_order() const override { return dimension_order_; }

  at::Tensor read_whole() const override {
    const c10::InferenceMode ordinary(false);
    at::Tensor whole = at::empty(shape_, at::TensorOptions().dtype(dtype_));
    read(0, whole);
    return whole;
  }
  const at::Tensor& whole() const override {
    std::call_once(once_, [this] { whole_ = read_whole(); });
    return whole_;
  }

 protected:
  /// Calls `read` with memory of the host.
  static void on_host(const at::Tensor& target, const std::function<void(const at::Tensor&)>& read) {
    if (target.device().is_cpu()) return read(target);
    const c10::InferenceMode ordinary(false);
    const at::Tensor host = at::empty(target.sizes(), target.options().device(at::kCPU));
    read(host);
    at::Tensor(target).copy_(host);
  }

 private:
  at::ScalarType dtype_;
  std::vector<int64_t> shape_;
  std::vector<int64_t> dimension_order_;
  mutable std::once_flag once_;
  mutable at::Tensor whole_;
};

class SafetensorsTensor final : public TensorOfFile {
 public:
  SafetensorsTensor(std::shared_ptr<const SafetensorsFile> file, std::string name)
      : TensorOfFile(file->dtype(name), file->shape(name)), file_(std::move(file)), name_(std::move(name)) {}

  void read(int64_t offset, at::Tensor target) const override {
    on_host(target, [&](const at::Tensor& host) { file_->read_elements(name_, offset, host); });
  }

 private:
  std::shared_ptr<const SafetensorsFile> file_;
  std::string name_;
};

class TorchTensor final : public TensorOfFile {
 public:
  TorchTensor(std::shared_ptr<const TorchFile> file, at::Tensor tensor)
      : TensorOfFile(tensor.scalar_type(), tensor.sizes().vec()), file_(std::move(file)), tensor_(std::move(tensor)) {}

  void read(int64_t offset, at::Tensor target) const override {
    on_host(target, [&](const at::Tensor& host) {
      const bool plain =
          tensor_.layout() == at::kStrided && tensor_.is_contiguous() && !tensor_.is_conj() && !tensor_.is_neg();
      if (plain) return file_->read_elements(tensor_, offset, host);
      const at::Tensor dense = tensor_.layout() == at::kStrided ? tensor_ : tensor_.to_dense();
      at::Tensor(host).view({-1}).copy_(
          dense.resolve_conj().resolve_neg().reshape({-1}).narrow(0, offset, host.numel()));
    });
  }

 private:
  std::shared_ptr<const TorchFile> file_;
  at::Tensor tensor_;
};

void add_tensor(Weights& weights, const std::string& name, std::shared_ptr<const SavedTensor> tensor) {
  if (name.size() > kLongestWeightName)
    throw Error("weights", fmt::format("{} holds a tensor whose name has {} characters; valid: at most {}",
                                       weights.path, name.size(), kLongestWeightName));
  if (!weights.tensors.emplace(name, std::move(tensor)).second)
    throw Error("weights", fmt::format("{} holds two tensors of the name '{}'", weights.path, name));
}

/// A file whose header does not begin as one of safetensors does is often another by mistake.
void refuse_other_formats(const std::string& path) {
  const InputFile file(path);
  std::string start(std::min<uint64_t>(file.size(), 512), '\0');
  file.read(0, start.data(), start.size());
  if (start.size() > 8 && start[8] == '{') return;
  const std::string other = other_format_of(path, start);
  if (!other.empty()) throw Error("weights", fmt::format("{} is {}", path, other));
}

void add_safetensors(Weights& weights, const std::string& path, const std::set<std::string>* names = nullptr) {
  refuse_other_formats(path);
  const auto file = std::make_shared<const SafetensorsFile>(path);
  if (names != nullptr)
    for (const auto& name : *names)
      if (!file->contains(name))
        throw Error("weights", fmt::format("{} lacks the tensor '{}', which its index promises", path, name));
  for (const auto& name : file->names()) add_tensor(weights, name, std::make_shared<SafetensorsTensor>(file, name));
}

// ---- Files of torch.save

bool is_module(const PickleValue& value) {
  return value.is(Kind::kObject) && value.state != nullptr && value.state->find("_modules") != nullptr &&
         value.state->find("_parameters") != nullptr;
}

bool holds_tensors(const PickleValue& value) {
  if (is_module(value)) return true;
  return value.is(Kind::kDict) &&
         std::any_of(value.pairs.begin(), value.pairs.end(), [](const PickleValue::Pair& pair) {
           return pair.first->is(Kind::kText) && pair.second->is(Kind::kTensor);
         });
}

std::vector<std::string> keys_of_dict(const PickleValue& value) {
  std::vector<std::string> keys;
  for (const auto& [key, item] : value.pairs)
    if (key->is(Kind::kText)) keys.push_back(key->text.substr(0, 80));
  return keys;
}

const PickleValue& value_at(const TorchFile& file, const std::string& key) {
  const PickleValue* value = &file.root();
  std::string_view rest = key;
  while (!rest.empty()) {
    // A key may itself have dots.
    size_t end = rest.size();
    const PickleValue* inner = value->find(rest);
    while (inner == nullptr && (end = rest.rfind('.', end - 1)) != std::string_view::npos && end > 0)
      inner = value->find(rest.substr(0, end));
    if (inner == nullptr)
      throw Error("weights", fmt::format("{} has no '{}'{}", file.path(), key,
                                         valid_names_hint(std::string(rest), keys_of_dict(*value))));
    rest = end >= rest.size() ? std::string_view() : rest.substr(end + 1);
    value = inner;
  }
  return *value;
}

const PickleValue& find_weights(const TorchFile& file, const std::string& key) {
  const PickleValue& root = file.root();
  if (!key.empty()) return value_at(file, key);
  if (root.is(Kind::kTensor))
    throw Error("weights", file.path() + " holds a single tensor without a name; valid: a dict of tensors by name");
  if (holds_tensors(root)) return root;
  std::vector<std::string> found;
  for (const auto& [name, value] : root.pairs)
    if (name->is(Kind::kText) && holds_tensors(*value)) found.push_back(name->text);
  if (std::find(found.begin(), found.end(), "state_dict") != found.end()) return *root.find("state_dict");
  if (found.size() == 1) return *root.find(found.front());
  if (found.size() > 1)
    throw Error("weights", fmt::format("{} holds tensors in several places; got {}; hint: say which with 'key'",
                                       file.path(), join(found)));
  bool any = false;
  for_each_tensor(root, [&](const std::string&, const at::Tensor&) { any = true; });
  if (any) return root;
  throw Error("weights", fmt::format("{} holds no tensors by name; got {}", file.path(), root.kind_name()));
}

void add_torch_file(Weights& weights, const std::string& path, const std::string& key) {
  const auto file = std::make_shared<const TorchFile>(path);
  weights.torch_file = file;
  const PickleValue& root = file->root();
  if (root.find("pytorch-lightning_version") != nullptr && root.find("state_dict") != nullptr)
    weights.format = WeightsFormat::kLightning;
  const PickleValue& found = find_weights(*file, key);
  for_each_tensor(found, [&](const std::string& name, const at::Tensor& tensor) {
    add_tensor(weights, name, std::make_shared<TorchTensor>(file, tensor));
  });
}

// ---- Folders

void add_indexed(Weights& weights, const std::string& index) {
  const std::filesystem::path folder = std::filesystem::path(index).parent_path();
  std::map<std::string, std::set<std::string>> names_by_file;
  try {
    const Json tree = Json::parse(FileSystem::current().read_file(index));
    for (const auto& [name, file] : tree.at("weight_map").items()) names_by_file[file.get<std::string>()].insert(name);
  } catch (const Json::exception& error) {
    throw Error("weights", fmt::format("{} is no index of weights: {}", index, error.what()));
  }
  std::vector<std::string> missing;
  for (const auto& [file, names] : names_by_file) {
    // An index names files beside it, nothing elsewhere.
    if (file.empty() || std::filesystem::path(file).filename() != file)
      throw Error("weights", fmt::format("{} names a file outside of its folder; got '{}'", index, file));
    if (!FileSystem::current().exists((folder / file).string())) missing.push_back(file);
  }
  if (!missing.empty())
    throw Error("weights", fmt::format("{} names files that are missing: {}; hint: download the whole folder", index,
                                       join(missing)));
  if (names_by_file.empty()) throw Error("weights", fmt::format("{} names no tensors", index));
  for (const auto& [file, names] : names_by_file) {
    const std::string path = (folder / file).string();
    if (path.ends_with(".safetensors"))
      add_safetensors(weights, path, &names);
    else
      add_torch_file(weights, path, "");
  }
  for (const auto& [file, names] : names_by_file)
    for (const auto& name : names)
      if (!weights.tensors.contains(name))
        throw Error("weights", fmt::format("{} lacks the tensor '{}', which its index promises", file, name));
  weights.torch_file = nullptr;
  weights.format = WeightsFormat::kHuggingFace;
}

void add_folder(Weights& weights) {
  const std::filesystem::path folder = weights.path;
  const auto has = [&](const char* name) { return FileSystem::current().exists((folder / name).string()); };
  if (is_levin_checkpoint(weights.path)) {
    weights.format = WeightsFormat::kLevin;
    // All or nothing: a file that is damaged is found before the first tensor is used.
    verify_checkpoint(weights.path);
    const State tree = open_checkpoint(weights.path, {"model"});
    for (const auto& [name, value] : tree.at("model").as_map())
      if (value.is_tensor()) add_tensor(weights, name, value.as_leaf().saved);
    return;
  }
  weights.format = WeightsFormat::kHuggingFace;
  for (const char* index : {kSafetensorsIndex, kTorchIndex}) {
    if (std::string_view(index) == kTorchIndex && has(kSafetensorsName)) break;
    if (has(index)) return add_indexed(weights, (folder / index).string());
  }
  if (has(kSafetensorsName)) return add_safetensors(weights, (folder / kSafetensorsName).string());
  if (has(kTorchName)) {
    add_torch_file(weights, (folder / kTorchName).string(), "");
    weights.torch_file = nullptr;
    weights.format = WeightsFormat::kHuggingFace;
    return;
  }
  std::vector<std::string> parts;
  for (const auto& name : FileSystem::current().list(weights.path))
    if (name.ends_with(".safetensors") || name.ends_with(".bin")) parts.push_back(name);
  if (!parts.empty())
    throw Error("weights", fmt::format("{} has parts of a model but no index of them; got {}; valid: {} or {}",
                                       weights.path, join(parts), kSafetensorsIndex, kSafetensorsName));
  std::string others;
  for (const char* other : {"flax_model.msgpack", "tf_model.h5", "saved_model.pb", "model.onnx"})
    if (has(other)) others += fmt::format("{} {}", others.empty() ? "; got" : ",", other);
  throw Error("weights",
              fmt::format("{} holds no weights that can be read{}; valid: a folder with manifest.json (Levin) or with "
                          "{}, {} or {} (Hugging Face)",
                          weights.path, others, kSafetensorsIndex, kSafetensorsName, kTorchName));
}

void visit_tensors(const PickleValue& value, const std::string& prefix, int level,
                   const std::function<void(const std::string&, const at::Tensor&)>& visit) {
  // A value may lie inside of itself; one that is shared so often that the visit would not end is no state dict either.
  if (level > kMostLevels) throw Error("weights", "dicts of tensors lie too deep inside of each other");
  const auto inner = [&](const std::string& name) { return prefix.empty() ? name : prefix + "." + name; };
  if (is_module(value)) {
    for (const char* part : {"_parameters", "_buffers"})
      if (const PickleValue* tensors = value.state->find(part)) visit_tensors(*tensors, prefix, level + 1, visit);
    for (const auto& [name, module] : value.state->find("_modules")->pairs)
      visit_tensors(*module, inner(name->text), level + 1, visit);
    return;
  }
  if (!value.is(Kind::kDict)) return;
  for (const auto& [name, item] : value.pairs) {
    if (!name->is(Kind::kText)) continue;
    if (inner(name->text).size() > kLongestWeightName && (item->is(Kind::kTensor) || item->is(Kind::kDict)))
      throw Error("weights", fmt::format("a tensor's name has more than {} characters", kLongestWeightName));
    if (item->is(Kind::kTensor))
      visit(inner(name->text), item->tensor);
    else
      visit_tensors(*item, inner(name->text), level + 1, visit);
  }
}

}  // namespace

const char* weights_format_name(WeightsFormat format) {
  switch (format) {
    case WeightsFormat::kLevin:
      return "levin";
    case WeightsFormat::kSafetensors:
      return "safetensors";
    case WeightsFormat::kHuggingFace:
      return "huggingface";
    case WeightsFormat::kPyTorch:
      return "pytorch";
    case WeightsFormat::kLightning:
      break;
  }
  return "lightning";
}

bool is_levin_checkpoint(const std::string& folder) {
  // Folders of Hugging Face have a model.safetensors too.
  return FileSystem::current().exists(folder + "/" + kManifestFile) ||
         FileSystem::current().exists(folder + "/" + kStateFile);
}

void for_each_tensor(const PickleValue& value,
                     const std::function<void(const std::string& name, const at::Tensor&)>& visit) {
  constexpr int64_t kMostTensors = 10'000'000;
  int64_t count = 0;
  visit_tensors(value, "", 0, [&](const std::string& name, const at::Tensor& tensor) {
    if (++count > kMostTensors) throw Error("weights", fmt::format("more than {} tensors", kMostTensors));
    visit(name, tensor);
  });
}

Weights open_weights(const std::string& path, const std::string& key) {
  if (!FileSystem::current().exists(path))
    throw Error("weights", fmt::format("there is no '{}'; valid: a file or folder of weights", path));
  Weights weights{.path = path};
  const bool is_folder = std::filesystem::is_directory(path);
  if (!key.empty() && (is_folder || path.ends_with(".safetensors")))
    throw Error("weights",
                fmt::format("'key' says where a torch.save file holds the weights; {} is none; got '{}'", path, key));
  if (is_folder)
    add_folder(weights);
  else if (path.ends_with(".index.json"))
    add_indexed(weights, path);
  else if (path.ends_with(".safetensors"))
    add_safetensors(weights, path);
  else {
    weights.format = WeightsFormat::kPyTorch;
    add_torch_file(weights, path, key);
  }
  return weights;
}

}  // namespace levin
