#include <levin/strategies/pipeline/tensor_spec.h>

#include <levin/core/base/state.h>
#include <levin/core/checkpoint/state_bytes.h>
#include <levin/core/nn/cut_logits.h>

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>

#include <algorithm>

namespace levin {
namespace {

bool is_channels_last(const at::Tensor& tensor) {
  return tensor.dim() == 4 && tensor.suggest_memory_format() == at::MemoryFormat::ChannelsLast;
}

/// Whether a write to one is seen in the other.
bool share_memory(const at::Tensor& a, const at::Tensor& b) {
  if (!a.has_storage() || !b.has_storage() || !a.storage().is_alias_of(b.storage())) return false;
  const at::MemOverlapStatus status = at::get_overlap_status(a, b);
  if (status != at::MemOverlapStatus::TooHard) return status != at::MemOverlapStatus::No;
  if (a.itemsize() != b.itemsize()) return true;
  at::Tensor marks = at::zeros({static_cast<int64_t>(a.storage().nbytes() / a.itemsize())}, at::kBool);
  marks.as_strided(a.sizes(), a.strides(), a.storage_offset()).fill_(true);
  return marks.as_strided(b.sizes(), b.strides(), b.storage_offset()).any().item<bool>();
}

}  // namespace

TensorSpec spec_of(const at::Tensor& tensor) {
  return {.type = tensor.scalar_type(),
          .sizes = full_logits_shape(tensor),
          .requires_grad = tensor.requires_grad(),
          .channels_last = is_channels_last(tensor)};
}

std::vector<TensorSpec> specs_of(const std::vector<at::Tensor>& tensors) {
  std::vector<TensorSpec> specs;
  for (const at::Tensor& tensor : tensors) specs.push_back(spec_of(tensor));
  return specs;
}

void find_shared_memory(const std::vector<at::Tensor>& tensors, std::vector<TensorSpec>& specs) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < tensors.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (share_memory(tensors[i], tensors[j])) specs[i].shares_memory = specs[j].shares_memory = true;
}

bool may_pass_as(const std::vector<TensorSpec>& given, const std::vector<TensorSpec>& expected) {
  return std::equal(given.begin(), given.end(), expected.begin(), expected.end(),
                    [](const TensorSpec& one, const TensorSpec& awaited) {
                      return one.type == awaited.type && one.sizes == awaited.sizes &&
                             one.channels_last == awaited.channels_last &&
                             (awaited.requires_grad || !one.requires_grad);
                    });
}

std::string to_string(const TensorSpec& spec) {
  return fmt::format(
      "{} {}{}{}", c10::str(at::IntArrayRef(spec.sizes)), c10::toString(spec.type),
      spec.channels_last ? ", channels last" : "",
      spec.requires_grad ? (spec.channels_last ? ", that requires a gradient" : " that requires a gradient") : "");
}

std::string to_string(const std::vector<TensorSpec>& specs) {
  std::string text;
  for (const TensorSpec& spec : specs) text += (text.empty() ? "" : ", ") + to_string(spec);
  return text;
}

std::string specs_to_bytes(const std::vector<TensorSpec>& specs) {
  State list = State::list();
  for (const TensorSpec& spec : specs) {
    State item = State::map();
    item["type"] = static_cast<int64_t>(spec.type);
    State sizes = State::list();
    for (const int64_t size : spec.sizes) sizes.push_back(size);
    item["sizes"] = std::move(sizes);
    item["requires_grad"] = spec.requires_grad;
    item["channels_last"] = spec.channels_last;
    item["shares_memory"] = spec.shares_memory;
    list.push_back(std::move(item));
  }
  return state_to_bytes(list);
}

std::vector<TensorSpec> specs_from_bytes(const std::string& bytes) {
  const State list = state_from_bytes(bytes);
  std::vector<TensorSpec> specs;
  for (const State& item : list.as_list()) {
    TensorSpec spec;
    spec.type = static_cast<at::ScalarType>(item.at("type").as_int());
    for (const State& size : item.at("sizes").as_list()) spec.sizes.push_back(size.as_int());
    spec.requires_grad = item.at("requires_grad").as_bool();
    spec.channels_last = item.at("channels_last").as_bool();
    spec.shares_memory = item.at("shares_memory").as_bool();
    specs.push_back(std::move(spec));
  }
  return specs;
}

at::Tensor to_wire(const at::Tensor& tensor, bool channels_last) {
  if (channels_last) return tensor.detach().permute({0, 2, 3, 1}).contiguous();
  return tensor.detach().contiguous();
}

Arrival make_arrival(const TensorSpec& spec, const at::Device& device) {
  const auto options = at::TensorOptions().dtype(spec.type).device(device);
  if (!spec.channels_last) {
    const at::Tensor wire = at::empty(spec.sizes, options);
    return {wire, wire};
  }
  const at::Tensor wire = at::empty({spec.sizes[0], spec.sizes[2], spec.sizes[3], spec.sizes[1]}, options);
  return {wire, wire.permute({0, 3, 1, 2})};
}

}  // namespace levin
