#pragma once

#include <levin/core/base/state.h>
#include <levin/core/interchange/pickle_value.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace levin {

class TorchFile;

/// Formats in which weights are saved.
enum class WeightsFormat {
  kLevin,        ///< a checkpoint's folder
  kSafetensors,  ///< one file
  kHuggingFace,  ///< a folder with config.json and one or more safetensors (or, as older ones, torch.save) files
  kPyTorch,      ///< a file of torch.save
  kLightning,    ///< a checkpoint of PyTorch Lightning, also a file of torch.save
};

/// Returns "levin", "safetensors", "huggingface", "pytorch", "lightning".
const char* weights_format_name(WeightsFormat format);

/// Tensors by name, read on demand.
using SavedTensors = std::map<std::string, std::shared_ptr<const SavedTensor>>;

/// What a file or folder of weights holds.
struct Weights {
  std::string path = {};
  WeightsFormat format = WeightsFormat::kSafetensors;
  /// A tensor that a file has under several names (tied weights) is one SavedTensor under each.
  SavedTensors tensors = {};
  /// Of kLevin: the further names of tensors in the checkpoint, each with the name that it is saved under.
  std::map<std::string, std::string> tied_names = {};
  /// Of kPyTorch and kLightning the whole file; else nullptr.
  std::shared_ptr<const TorchFile> torch_file = nullptr;
  /// Of a torch_file: where in it the weights are, as `key` says it.
  std::string key = {};
};

/// The `key` of a whole torch.save file.
inline constexpr const char* kWholeFile = ".";
/// The entry of a Levin checkpoint's tree that has Weights::tied_names, where there are some.
inline constexpr const char* kTiedNames = "tied_names";

/// Names longer than this are refused, whatever holds them.
inline constexpr size_t kLongestWeightName = 1000;

/// Opens a file or folder of any WeightsFormat, by its contents. Reads headers and directories, no tensor; checks that
/// all tensors lie inside of their files. `key`: where a torch.save file holds the weights, as in "ema.state_dict";
/// kWholeFile: all of it; empty: found by itself, as docs/interchange.md says, where it is clear. Throws levin::Error.
Weights open_weights(const std::string& path, const std::string& key = "");

/// Returns the entries of a torch.save file that hold tensors and are not, or do not hold, the weights that were taken;
/// none for other formats.
std::vector<std::string> entries_passed_over(const Weights& weights);

/// Returns those of them that are called as weights are, but are of a class that is read as no dict, such as a
/// Namespace, so that others may have been taken in their place.
std::vector<std::string> objects_passed_over(const Weights& weights);

/// Returns whether a folder is a checkpoint of Levin, whole or damaged.
bool is_levin_checkpoint(const std::string& folder);

/// Calls `visit` with what a pickled value holds of tensors: those of a dict by its keys, of dicts inside of it by
/// "key.inner", of a torch.nn.Module its parameters and the buffers of its state. Returns the names of what it leaves
/// out: tensors in lists and under keys that are no texts, arrays that cannot be read, the extra state of modules.
std::vector<std::string> for_each_tensor(const PickleValue& value,
                                         const std::function<void(const std::string& name, const at::Tensor&)>& visit);

}  // namespace levin
