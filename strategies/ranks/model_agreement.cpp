#include <levin/strategies/ranks/model_agreement.h>

#include <levin/core/base/released_storage.h>

#include <levin/core/base/error.h>
#include <levin/core/comm/collective.h>
#include <levin/core/interfaces/module.h>

#include <fmt/format.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <functional>
#include <sstream>
#include <string>
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

void broadcast(const std::vector<at::Tensor>& tensors, const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  // Tensors of one type travel together.
  std::vector<at::Tensor> left = tensors;
  while (!left.empty()) {
    std::vector<at::Tensor> same;
    std::vector<at::Tensor> others;
    for (const at::Tensor& tensor : left)
      (tensor.scalar_type() == left.front().scalar_type() && tensor.device() == left.front().device() ? same : others)
          .push_back(tensor);
    c10d::broadcast_coalesced(group, same, kBroadcastBytes, /*rank=*/0);
    left = std::move(others);
  }
}

}  // namespace

void require_same_model(Module& module, Collective& collective) {
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
  for (const auto& [name, tensor] : named_tensors(module)) tensors.push_back(tensor.detach());
  broadcast(tensors, group);
}

void broadcast_buffers(Module& module, const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  const at::NoGradGuard no_grad;
  broadcast(module.buffers(), group);
}

}  // namespace levin
