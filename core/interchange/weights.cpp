#include <levin/core/interchange/weights.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/log.h>
#include <levin/core/base/tree_budget.h>
#include <levin/core/base/utf8.h>
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
#include <array>
#include <filesystem>
#include <mutex>
#include <optional>
#include <set>
#include <tuple>
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
constexpr size_t kShownPlaces = 10;

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

std::string inner_key(const std::string& key, const std::string& name) { return key.empty() ? name : key + "." + name; }

/// Whether a tensor is one as modules have them: no count, no single number, no state of a generator, no array of
/// NumPy.
bool is_weight(const PickleValue& value) {
  if (!value.is(Kind::kTensor) || value.is_array) return false;
  const at::Tensor& tensor = value.tensor;
  return value.is_parameter || (tensor.dim() > 0 && (tensor.is_floating_point() || tensor.is_complex()));
}

/// A place of a file that holds tensors by name.
struct Place {
  std::string key;
  const PickleValue* value;
  bool has_weights;  ///< a module, or a dict with a tensor that is_weight
};

/// Finds the state dicts and modules of a file. Tensors beside one are not weights, unless they are matrices: then they
/// may be, and both places are found.
class PlaceFinder {
 public:
  std::vector<Place> find(const PickleValue& value, const std::string& key = "", int level = 0) {
    // What was seen lies in two places, or inside of itself.
    if (level > kMostLevels || key.size() > kLongestWeightName || !seen_.insert(&value).second) return {};
    if (is_module(value)) return {{key, &value, true}};
    const bool is_optimizer = value.find("param_groups") != nullptr;
    if (!value.is(Kind::kDict) || is_optimizer) return {};
    if (const PickleValue* state_dict = value.find("state_dict")) {
      auto found = find(*state_dict, inner_key(key, "state_dict"), level + 1);
      if (!found.empty()) return found;
    }
    Place here{.key = key, .value = &value, .has_weights = false};
    bool has_tensors = false;
    bool has_matrices = false;
    std::vector<Place> inner;
    for (const auto& [name, item] : value.pairs) {
      if (!name->is(Kind::kText)) continue;
      if (item->is(Kind::kTensor)) {
        has_tensors = true;
        here.has_weights |= is_weight(*item);
        has_matrices |= is_weight(*item) && item->tensor.dim() > 1;
      } else if (!name->text.ends_with("_extra_state")) {  // which modules keep beside their tensors
        for (Place& place : find(*item, inner_key(key, name->text), level + 1)) inner.push_back(std::move(place));
      }
    }
    if (!std::ranges::any_of(inner, &Place::has_weights)) return has_tensors ? std::vector{here} : inner;
    std::erase_if(inner, [](const Place& place) { return !place.has_weights; });
    if (has_matrices) inner.insert(inner.begin(), here);
    return inner;
  }

 private:
  std::set<const PickleValue*> seen_;
};

bool holds_tensors(const PickleValue& value, std::set<const PickleValue*>& seen, int level = 0) {
  if (value.is(Kind::kTensor) || is_module(value)) return true;
  if (level > kMostLevels || !seen.insert(&value).second) return false;
  const auto inner = [&](const PickleValue* item) { return holds_tensors(*item, seen, level + 1); };
  return std::ranges::any_of(value.items, inner) ||
         std::ranges::any_of(value.pairs, [&](const PickleValue::Pair& pair) { return inner(pair.second); });
}

/// Also of what an object keeps in its state.
bool object_holds_tensors(const PickleValue& value, std::set<const PickleValue*>& seen) {
  return holds_tensors(value, seen) || (value.state != nullptr && holds_tensors(*value.state, seen));
}

std::vector<std::string> keys_of_dict(const PickleValue& value) {
  std::vector<std::string> keys;
  for (const auto& [key, item] : value.pairs)
    if (key->is(Kind::kText)) keys.push_back(key->text.substr(0, 80));
  return keys;
}

const PickleValue& value_at(const TorchFile& file, const std::string& key) {
  const PickleValue* value = &file.root();
  if (key == kWholeFile) return *value;
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

Place find_weights(const TorchFile& file, const std::string& key) {
  if (!key.empty()) return {.key = key, .value = &value_at(file, key), .has_weights = true};
  const PickleValue& root = file.root();
  if (root.is(Kind::kTensor))
    throw Error("weights", file.path() + " holds a single tensor without a name; valid: a dict of tensors by name");
  std::vector<Place> found = PlaceFinder().find(root);
  for (Place& place : found)
    if (place.key.empty()) place.key = kWholeFile;
  if (found.empty())
    throw Error("weights", fmt::format("{} holds no tensors by name; got {}", file.path(), root.kind_name()));
  if (found.size() == 1) return found.front();
  std::vector<std::string> keys;
  for (const Place& place : found) keys.push_back(place.key.substr(0, 80));
  if (keys.size() > kShownPlaces) {
    keys.resize(kShownPlaces);
    keys.emplace_back("...");
  }
  throw Error("weights", fmt::format("{} holds tensors in several places; got {}; hint: say which with 'key' (of "
                                     "init_from, or --key of levin-checkpoint); '{}' is the whole file",
                                     file.path(), join(keys), kWholeFile));
}

/// Tensors that PyTorch makes in ways of their own (nested ones, those of wrapper classes or without memory) are not
/// read.
void refuse_other_tensors(const std::string& path, const PickleValue& place) {
  for (const auto& [name, value] : place.pairs)
    if (name->is(Kind::kText) && value->is(Kind::kObject) && value->text.starts_with("torch._utils._rebuild_"))
      throw Error("weights",
                  fmt::format("{}: the tensor '{}' cannot be read; got one made by {}; valid: dense and sparse "
                              "tensors; hint: convert it before it is saved, or leave it out",
                              path, name->text.substr(0, 80), value->text.substr(0, 80)));
}

/// What makes two tensors of a file the same: their elements' place and order.
using Elements = std::tuple<const void*, at::ScalarType, std::vector<int64_t>, std::vector<int64_t>>;

void add_torch_file(Weights& weights, const std::string& path, const std::string& key) {
  const auto file = std::make_shared<const TorchFile>(path);
  weights.torch_file = file;
  const PickleValue& root = file->root();
  if (root.find("pytorch-lightning_version") != nullptr && root.find("state_dict") != nullptr)
    weights.format = WeightsFormat::kLightning;
  const Place found = find_weights(*file, key);
  weights.key = found.key;
  refuse_other_tensors(path, *found.value);
  std::map<Elements, std::shared_ptr<const SavedTensor>> made;
  bool any = false;
  const auto left_out = for_each_tensor(*found.value, [&](const std::string& name, const at::Tensor& tensor) {
    any = true;
    if (tensor.layout() != at::kStrided || tensor.is_conj() || tensor.is_neg() || tensor.numel() == 0)
      return add_tensor(weights, name, std::make_shared<TorchTensor>(file, tensor));
    auto& same = made[{tensor.const_data_ptr(), tensor.scalar_type(), tensor.sizes().vec(), tensor.strides().vec()}];
    if (same == nullptr) same = std::make_shared<TorchTensor>(file, tensor);
    add_tensor(weights, name, same);
  });
  if (any && !left_out.empty())
    log::rank_zero_warning(
        fmt::format("{}: {} left out: tensors are taken by names, from dicts and modules; got lists, keys that are no "
                    "texts, or arrays "
                    "of NumPy that cannot be read",
                    path, shown_names(left_out)));
  if (!any && !key.empty())
    throw Error("weights", fmt::format("'{}' of {} holds no tensors by name; got {}; valid: a dict of tensors, or a "
                                       "module",
                                       key, path, found.value->kind_name()));
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
    const State tree = open_checkpoint(weights.path, {"model", kTiedNames});
    for (const auto& [name, value] : tree.at("model").as_map())
      if (value.is_tensor()) add_tensor(weights, name, value.as_leaf().saved);
    if (const State* tied = tree.find(kTiedNames))
      for (const auto& [name, saved_as] : tied->as_map()) {
        const auto found = weights.tensors.find(saved_as.as_string());
        if (found == weights.tensors.end()) continue;  // a callback took it out
        add_tensor(weights, name, found->second);
        weights.tied_names[name] = found->first;
      }
    return;
  }
  weights.format = WeightsFormat::kHuggingFace;
  // As from_pretrained looks for them.
  if (has(kSafetensorsName)) return add_safetensors(weights, (folder / kSafetensorsName).string());
  if (has(kSafetensorsIndex)) return add_indexed(weights, (folder / kSafetensorsIndex).string());
  if (has(kTorchName)) {
    add_torch_file(weights, (folder / kTorchName).string(), "");
    weights.torch_file = nullptr;
    weights.format = WeightsFormat::kHuggingFace;
    return;
  }
  if (has(kTorchIndex)) return add_indexed(weights, (folder / kTorchIndex).string());
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

/// Names of buffers that a pickled module does not count to its state.
std::set<std::string_view> passing_buffers(const PickleValue& module) {
  std::set<std::string_view> names;
  if (const PickleValue* set = module.state->find("_non_persistent_buffers_set"))
    for (const PickleValue* name : set->items) names.insert(name->text);
  return names;
}

/// Notes what has tensors without names, and arrays that cannot be read.
struct LeftOut {
  std::vector<std::string> names = {};
  std::set<const PickleValue*> seen = {};

  void look_at(const std::string& name, const PickleValue& value) {
    const bool is_array = value.is(Kind::kObject) && (value.text.ends_with("multiarray._reconstruct") ||
                                                      value.text.ends_with("numeric._frombuffer"));
    if (is_array || holds_tensors(value, seen)) names.push_back(name);
  }
};

void visit_tensors(const PickleValue& value, const std::string& prefix, TreeBudget& budget,
                   const std::function<void(const std::string&, const at::Tensor&)>& visit, LeftOut& left_out) {
  const auto level = budget.enter();
  const auto inner = [&](const std::string& name) {
    if (prefix.size() + name.size() + (prefix.empty() ? 0 : 1) > kLongestWeightName)
      throw Error("weights", fmt::format("a tensor's name has more than {} characters", kLongestWeightName));
    return prefix.empty() ? name : prefix + "." + name;
  };
  // Entries are looked through whether they are tensors or not.
  budget.visit(1 + value.pairs.size() + (value.state != nullptr ? value.state->pairs.size() : 0));
  if (is_module(value)) {
    const std::set<std::string_view> passing = passing_buffers(value);
    for (const char* part : {"_parameters", "_buffers"})
      if (const PickleValue* tensors = value.state->find(part))
        for (const auto& [name, tensor] : tensors->pairs)
          if (tensor->is(Kind::kTensor) && !passing.contains(name->text)) visit(inner(name->text), tensor->tensor);
    for (const auto& [name, module] : value.state->find("_modules")->pairs)
      visit_tensors(*module, inner(name->text), budget, visit, left_out);
    return;
  }
  if (!value.is(Kind::kDict)) return;
  for (const auto& [name, item] : value.pairs) {
    // What a module keeps beside its tensors is read by itself.
    const bool is_extra = name->text.ends_with("_extra_state") && !item->is(Kind::kTensor);
    if (name->is(Kind::kText) && item->is(Kind::kTensor))
      visit(inner(name->text), item->tensor);
    else if (name->is(Kind::kText) && !is_extra && (item->is(Kind::kDict) || is_module(*item)))
      visit_tensors(*item, inner(name->text), budget, visit, left_out);
    else
      left_out.look_at(inner(name->is(Kind::kText)  ? name->text
                             : name->is(Kind::kInt) ? std::to_string(name->integer)
                                                    : name->kind_name()),
                       *item);
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

std::vector<std::string> for_each_tensor(const PickleValue& value,
                                         const std::function<void(const std::string& name, const at::Tensor&)>& visit) {
  TreeBudget budget("weights");
  LeftOut left_out;
  visit_tensors(value, "", budget, visit, left_out);
  return left_out.names;
}

namespace {

/// The entries of a torch.save file that are not, or do not hold, the weights that were taken, and that `counts` wants.
template <class Counts>
std::vector<std::string> entries_beside(const Weights& weights, const Counts& counts) {
  if (weights.torch_file == nullptr || weights.key == kWholeFile) return {};
  std::vector<std::string> entries;
  std::set<const PickleValue*> seen{&value_at(*weights.torch_file, weights.key)};
  for (const auto& [name, value] : weights.torch_file->root().pairs) {
    if (!name->is(Kind::kText)) continue;
    const bool is_taken = weights.key == name->text || weights.key.starts_with(name->text + ".");
    if (!is_taken && counts(name->text, *value, seen)) entries.push_back(name->text.substr(0, 80));
  }
  return entries;
}

}  // namespace

std::vector<std::string> entries_passed_over(const Weights& weights) {
  return entries_beside(weights, [](const std::string& /*name*/, const PickleValue& value, auto& seen) {
    return holds_tensors(value, seen);
  });
}

std::vector<std::string> objects_passed_over(const Weights& weights) {
  return entries_beside(weights, [](const std::string& name, const PickleValue& value, auto& seen) {
    if (value.is(Kind::kDict) || value.is(Kind::kTensor) || is_module(value)) return false;
    const bool may_be_weights = std::ranges::any_of(std::array{"state_dict", "model", "module", "net", "weights"},
                                                    [&](const char* word) { return name.find(word) != name.npos; });
    return may_be_weights && object_holds_tensors(value, seen);
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
