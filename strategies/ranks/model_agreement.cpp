#include <levin/strategies/ranks/model_agreement.h>

#include <levin/core/base/error.h>
#include <levin/core/base/expanded_tensor.h>
#include <levin/core/base/released_storage.h>
#include <levin/core/comm/collective.h>
#include <levin/core/interfaces/module.h>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <algorithm>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace levin {
namespace {

constexpr size_t kBroadcastBytes = 250 << 20;

/// One line a tensor, in order.
std::vector<std::string> describe(Module& module) {
  std::vector<std::string> lines;
  for (const auto& [name, tensor] : named_tensors(module)) {
    std::ostringstream line;
    line << "'" << name << "' " << c10::toString(tensor.scalar_type()) << " " << tensor.sizes()
         << (tensor.requires_grad() ? "" : ", not trained");
    lines.push_back(line.str());
  }
  return lines;
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// As bytes, since backends lack types (int16, uint16) that a module may hold.
void broadcast(const std::vector<at::Tensor>& tensors, const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  std::map<at::DeviceType, std::vector<at::Tensor>> bytes;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // elements, and where they are received
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor elements = without_repetitions(tensor.detach());
    if (elements.numel() == 0) continue;
    const at::Tensor dense = elements.resolve_conj().resolve_neg().contiguous();
    if (!dense.is_same(elements)) copies.emplace_back(elements, dense);
    bytes[dense.device().type()].push_back(dense.as_strided({dense.numel()}, {1}).view(at::kByte));
  }
  for (const auto& [device, of_device] : bytes)
    c10d::broadcast_coalesced(group, of_device, kBroadcastBytes, /*rank=*/0);
  if (group->getRank() == 0) return;
  for (const auto& [elements, dense] : copies) elements.copy_(dense);
}

}  // namespace

void require_same_model(Module& module, Collective& collective) {
  for (const auto& [name, tensor] : named_tensors(module))
    if (tensor.layout() != at::kStrided || tensor.is_quantized())
      throw Error("ddp",
                  fmt::format("'{}' is a {} tensor, which ranks cannot send to each other; valid: dense tensors; "
                              "hint: keep it in a member that is not registered as a buffer",
                              name, tensor.is_quantized() ? "quantized" : "sparse"));
  const std::vector<std::string> own = describe(module);
  const std::string text = join(own, "\n");
  // Most often all agree, which a number shows.
  const std::string digest = std::to_string(std::hash<std::string>{}(text));
  bool same = true;
  for (const std::string& other : collective.gather_bytes(digest)) same = same && other == digest;
  if (same) return;
  const auto all = collective.gather_bytes(text);
  const auto first = split_lines(all.front());
  for (size_t rank = 1; rank < all.size(); ++rank) {
    const auto other = split_lines(all[rank]);
    for (size_t i = 0; i < std::max(first.size(), other.size()); ++i) {
      const std::string here = i < first.size() ? first[i] : "no further parameter";
      const std::string there = i < other.size() ? other[i] : "no further parameter";
      if (here == there) continue;
      throw Error("ddp", fmt::format("ranks built different models; got {} on rank 0 and {} on rank {}; hint: the "
                                     "module's constructor must not depend on the rank",
                                     here, there, rank));
    }
  }
}

std::string absent_parameter(const Module& module, Collective& collective,
                             const std::unordered_set<const void*>& known) {
  const auto parameters = module.parameters();
  const auto absent = std::find_if(parameters.begin(), parameters.end(), [&](const at::Tensor& parameter) {
    return is_released(parameter) && !known.contains(parameter.unsafeGetTensorImpl());
  });
  std::string message;
  if (absent != parameters.end()) {
    message = released_message(*absent);
    if (message.empty()) message = "a parameter without values";
  }
  const auto messages = collective.gather_bytes(message);
  const auto first = std::find_if(messages.begin(), messages.end(), [](const auto& text) { return !text.empty(); });
  return first == messages.end() ? "" : *first;
}

void require_parameters(const std::string& strategy, const std::string& absent) {
  if (absent.empty()) return;
  throw Error(strategy, fmt::format("the module has no weights; got {}; hint: give this call a checkpoint, such as "
                                    "'last', or make a new module",
                                    absent.substr(0, absent.find("; hint:"))));
}

void broadcast_model(Module& module, const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : named_tensors(module)) tensors.push_back(tensor);
  broadcast(tensors, group);
}

void broadcast_buffers(Module& module, const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  const at::NoGradGuard no_grad;
  broadcast(module.buffers(), group);
}

}  // namespace levin
