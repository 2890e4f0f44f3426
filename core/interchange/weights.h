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
  SavedTensors tensors = {};
  /// Of kPyTorch and kLightning the whole file; else nullptr.
  std::shared_ptr<const TorchFile> torch_file = nullptr;
};

/// Names longer than this are refused, whatever holds them.
inline constexpr size_t kLongestWeightName = 1000;

/// Opens a file or folder of any WeightsFormat, by its contents. Reads headers and directories, no tensor; checks that
/// all tensors lie inside of their files. `key`: where a torch.save file holds the weights, as in "ema.state_dict";
/// empty: the whole file, or else its one entry that holds tensors, or else `state_dict`. Throws levin::Error.
Weights open_weights(const std::string& path, const std::string& key = "");

/// Returns whether a folder is a checkpoint of Levin, whole or damaged.
bool is_levin_checkpoint(const std::string& folder);

/// Calls `visit` with what a pickled value holds of tensors: those of a dict by its keys, of dicts inside of it by
/// "key.inner", of a torch.nn.Module its parameters and buffers.
void for_each_tensor(const PickleValue& value,
                     const std::function<void(const std::string& name, const at::Tensor&)>& visit);

}  // namespace levin
