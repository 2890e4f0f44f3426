#include <levin/strategies/replicas/gathered_output.h>

#include <levin/core/base/error.h>

#include <ATen/ops/cat.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

namespace levin {
namespace {

/// A tensor of the parts that have it.
struct Pieces {
  std::vector<at::Tensor> tensors;
  std::vector<LossWeight> weights;

  void add(const at::Tensor& tensor, const LossWeight& weight) {
    if (!tensor.defined()) return;
    tensors.push_back(tensor);
    weights.push_back(weight);
  }
  LossWeight weight() const {
    LossWeight sum = 0;
    for (const LossWeight& weight : weights) sum += weight;
    return sum;
  }
};

at::Tensor weighted_mean(const Pieces& pieces) {
  const LossWeight sum = pieces.weight();
  const auto all = sum.on_host();
  at::Tensor mean;
  for (size_t i = 0; i < pieces.tensors.size(); ++i) {
    at::Tensor value = pieces.tensors[i];
    if (!value.is_floating_point() && !value.is_complex()) value = value.to(c10::get_default_dtype_as_scalartype());
    if (all) {
      value = value * (*all == 0 ? 0 : *pieces.weights[i].on_host() / *all);
    } else {
      value = value * pieces.weights[i].share_of(sum, value.device(), value.scalar_type());
    }
    mean = mean.defined() ? mean + value : value;
  }
  return mean;
}

at::Tensor concatenated(std::string_view name, const Pieces& pieces) {
  const auto rows = pieces.tensors.front().sizes().slice(1);
  for (const auto& tensor : pieces.tensors) {
    if (tensor.dim() == pieces.tensors.front().dim() && tensor.sizes().slice(1) == rows) continue;
    throw Error("data_parallel",
                fmt::format("the output '{}' cannot be gathered because replicas gave rows of different shapes; got {} "
                            "and {}; valid: tensors that differ in the first dimension only; hint: pad them to a fixed "
                            "length",
                            name, c10::str(pieces.tensors.front().sizes()), c10::str(tensor.sizes())));
  }
  return at::cat(pieces.tensors, 0);
}

bool all_single(const Pieces& pieces) {
  return std::all_of(pieces.tensors.begin(), pieces.tensors.end(),
                     [](const at::Tensor& tensor) { return tensor.numel() == 1; });
}

bool any_scalar(const Pieces& pieces) {
  return std::any_of(pieces.tensors.begin(), pieces.tensors.end(),
                     [](const at::Tensor& tensor) { return tensor.dim() == 0; });
}

}  // namespace

std::vector<LossWeight> part_weights(const std::vector<StepOutput>& parts, const std::vector<int64_t>& sizes) {
  std::vector<LossWeight> weights;
  for (size_t part = 0; part < parts.size(); ++part) {
    const LossWeight& given = parts[part].weight();
    weights.push_back(given.defined() ? given : LossWeight(sizes[part]));
  }
  return weights;
}

StepOutput gather_outputs(const std::vector<StepOutput>& parts, const std::vector<int64_t>& sizes) {
  StepOutput gathered;
  Pieces losses;
  bool is_weighted = false;
  const std::vector<LossWeight> weights = part_weights(parts, sizes);
  for (size_t part = 0; part < parts.size(); ++part) {
    losses.add(parts[part].loss(), weights[part]);
    is_weighted = is_weighted || parts[part].weight().defined();
  }
  if (is_weighted) gathered.weight() = losses.weight();
  if (!losses.tensors.empty())
    gathered.loss() = all_single(losses) ? weighted_mean(losses) : concatenated("loss", losses);

  for (const auto& part : parts) {
    for (const auto& [name, tensor] : part.outputs().items()) {
      if (!tensor.defined() || gathered.outputs().find(name) != nullptr) continue;
      Pieces pieces;
      for (size_t other = 0; other < parts.size(); ++other)
        if (const at::Tensor* piece = parts[other].outputs().find(name)) pieces.add(*piece, sizes[other]);
      gathered.outputs().set(name, any_scalar(pieces) ? weighted_mean(pieces) : concatenated(name, pieces));
    }
  }
  for (const auto& part : parts) {
    for (const auto& [name, texts] : part.outputs().text_items()) {
      const auto* before = gathered.outputs().find_texts(name);
      std::vector<std::string> all = before == nullptr ? std::vector<std::string>() : *before;
      all.insert(all.end(), texts.begin(), texts.end());
      gathered.outputs().set_texts(name, std::move(all));
    }
  }
  return gathered;
}

}  // namespace levin
