#include <levin/core/nn/quantized_weight.h>

#include <levin/core/base/error.h>
#include <levin/core/base/recording.h>
#include <levin/core/nn/nf4.h>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/stack.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

namespace levin::detail {
namespace {

/// Scales that share a scale.
constexpr int64_t kScaleGroup = 256;
/// Blocks that are worth a thread.
constexpr int64_t kNf4Grain = 512;

/// The 256 values of 8 bits, ascending: of both signs seven decades of ten, each with twice the values of the one below
/// it, in the middles of equal parts of 0.1 to 1; zero and 1.
std::array<float, 256> dynamic_tree() {
  std::array<float, 256> values{};
  size_t next = 0;
  for (int decade = 0; decade < 7; ++decade) {
    const int parts = 1 << decade;
    for (int part = 0; part < parts; ++part) {
      const double value = std::pow(10.0, decade - 6) * (0.1 + 0.9 * (part + 0.5) / parts);
      values.at(next++) = static_cast<float>(value);
      values.at(next++) = static_cast<float>(-value);
    }
  }
  values.at(next++) = 0;
  values.at(next++) = 1;
  std::ranges::sort(values);
  return values;
}

const at::Tensor& dynamic_values() {
  static const auto* const values = [] {
    const auto found = dynamic_tree();
    auto* const tensor = new at::Tensor(at::empty({256}, at::kFloat));
    std::ranges::copy(found, tensor->mutable_data_ptr<float>());
    return tensor;
  }();
  return *values;
}

/// Numbers in rows of a group, the last one filled up with zeros.
at::Tensor in_groups(const at::Tensor& flat, int64_t size) {
  const int64_t rest = flat.numel() % size;
  return (rest == 0 ? flat : at::constant_pad_nd(flat, {0, size - rest})).view({-1, size});
}

/// One number a group, for each number of the groups.
at::Tensor for_each_number(const at::Tensor& of_groups, int64_t size, int64_t count) {
  return of_groups.unsqueeze(1).expand({-1, size}).reshape({-1}).narrow(0, 0, count);
}

/// Scales of blocks from their codes, as the operators of scales_of_blocks compute them.
std::vector<float> read_scales(const at::Tensor& codes, const at::Tensor& groups, const at::Tensor& mean) {
  const auto* const tree = dynamic_values().const_data_ptr<float>();
  const auto* const code = codes.const_data_ptr<uint8_t>();
  const auto* const group = groups.const_data_ptr<double>();
  const auto offset = static_cast<float>(*mean.const_data_ptr<double>());
  std::vector<float> scales(static_cast<size_t>(codes.numel()));
  for (size_t i = 0; i < scales.size(); ++i) {
    const float relative = tree[code[i]] * static_cast<float>(group[i / kScaleGroup]);
    scales[i] = relative + offset;  // rounded twice, as operators do
  }
  return scales;
}

/// Carries the weight from forward to backward.
struct QuantizedHolder : torch::CustomClassHolder {
  explicit QuantizedHolder(std::shared_ptr<const QuantizedWeight> held) : weight(std::move(held)) {}
  std::shared_ptr<const QuantizedWeight> weight;
};

struct QuantizedProduct : torch::autograd::Function<QuantizedProduct> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const std::shared_ptr<const QuantizedWeight>& weight,
                            const std::optional<at::Tensor>& bias) {
    context->saved_data["weight"] = c10::IValue::make_capsule(c10::make_intrusive<QuantizedHolder>(weight));
    context->saved_data["trains_bias"] = bias.has_value() && bias->requires_grad();
    context->saved_data["trains_input"] = input.requires_grad();
    return at::linear(input, weight->dequantize(input.scalar_type()), bias);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& slopes) {
    const auto holder = c10::static_intrusive_pointer_cast<QuantizedHolder>(context->saved_data["weight"].toCapsule());
    const at::Tensor& slope = slopes[0];
    torch::autograd::variable_list results(3);
    if (context->saved_data["trains_input"].toBool())
      results[0] = at::matmul(slope, holder->weight->dequantize(slope.scalar_type()));
    if (context->saved_data["trains_bias"].toBool()) results[2] = slope.sum(0);
    return results;
  }
};

}  // namespace

QuantizedWeight::QuantizedWeight(const std::string& name, const at::Tensor& weight, std::string format)
    : format_(std::move(format)), rows_(weight.size(0)), columns_(weight.size(1)) {
  const at::NoGradGuard no_gradients;
  const at::Tensor values = weight.detach().to(at::kCPU, at::kFloat).contiguous();
  if (!values.isfinite().all().item<bool>())
    throw Error("adapters", fmt::format("the weight '{}' has numbers that are infinite or NaN, which {} cannot hold",
                                        name, format_));
  const auto keep = [&](const char* key, const at::Tensor& tensor) {
    return register_buffer(key, tensor.to(weight.device()));
  };
  if (format_ == "int8") {
    const at::Tensor greatest = values.abs().amax(1);
    codes_ = keep("codes", (values * (127 / greatest.clamp_min(1e-38F)).unsqueeze(1)).round().to(at::kChar));
    scales_ = keep("scales", (greatest / 127).to(at::kDouble));
    return;
  }
  LEVIN_CHECK(format_ == "nf4", "formats are nf4 and int8");
  const int64_t blocks = nf4::blocks(values.numel());
  const at::Tensor codes = at::empty({(values.numel() + 1) / 2}, at::kByte);
  const at::Tensor scales = at::empty({blocks}, at::kFloat);
  nf4::quantize(values.const_data_ptr<float>(), values.numel(), codes.mutable_data_ptr<uint8_t>(),
                scales.mutable_data_ptr<float>());
  const at::Tensor mean = scales.mean().view({1});
  const at::Tensor groups = in_groups(scales - mean, kScaleGroup);
  const at::Tensor greatest = groups.abs().amax(1);
  const at::Tensor relative = groups * greatest.clamp_min(1e-38F).reciprocal().unsqueeze(1);
  const at::Tensor& tree = dynamic_values();
  const at::Tensor middles = (tree.slice(0, 1) + tree.slice(0, 0, -1)).div_(2);
  codes_ = keep("codes", codes);
  scales_ = keep("scales", at::bucketize(relative, middles).view({-1}).narrow(0, 0, blocks).to(at::kByte));
  group_scales_ = keep("group_scales", greatest.to(at::kDouble));
  mean_scale_ = keep("mean_scale", mean.to(at::kDouble));
}

int64_t QuantizedWeight::bytes() const {
  int64_t bytes = 0;
  for (const at::Tensor& buffer : buffers()) bytes += static_cast<int64_t>(buffer.nbytes());
  return bytes;
}

at::Tensor QuantizedWeight::scales_of_blocks() const {
  const at::Tensor relative = dynamic_values().to(device()).index_select(0, scales_.to(at::kInt));
  const at::Tensor groups = for_each_number(group_scales_.to(at::kFloat), kScaleGroup, scales_.numel());
  return relative * groups + mean_scale_.to(at::kFloat);
}

at::Tensor QuantizedWeight::dequantize(at::ScalarType type) const {
  const at::NoGradGuard no_gradients;
  if (format_ == "int8") return codes_.to(at::kFloat).mul_(scales_.to(at::kFloat).unsqueeze(1)).to(type);
  const int64_t count = rows_ * columns_;
  const at::Tensor values = at::empty({rows_, columns_}, codes_.options().dtype(at::kFloat));
  // A recording that kept the values could not give their memory to others.
  const c10::weak_intrusive_ptr<c10::StorageImpl> memory(values.storage().getWeakStorageImpl());
  const auto work = [codes = codes_, scale_codes = scales_, groups = group_scales_, mean = mean_scale_, memory, count] {
    const auto storage = memory.lock();
    const auto* const from = codes.const_data_ptr<uint8_t>();
    auto* const to = static_cast<float*>(storage->mutable_data());
    const std::vector<float> scales = read_scales(scale_codes, groups, mean);
    at::parallel_for(0, scale_codes.numel(), kNf4Grain, [&](int64_t begin, int64_t end) {
      const int64_t first = begin * nf4::kBlock;
      nf4::dequantize(from + first / 2, scales.data() + begin, std::min(end * nf4::kBlock, count) - first, to + first);
    });
  };
  if (values.is_cpu() && do_host_work({values}, work)) return values.to(type);
  const at::Tensor scales = scales_of_blocks();
  static const at::Tensor* const table = [] {
    auto* const tensor = new at::Tensor(at::empty({16}, at::kFloat));
    std::ranges::copy(nf4::kValues, tensor->mutable_data_ptr<float>());
    return tensor;
  }();
  const at::Tensor codes = at::stack({codes_.bitwise_right_shift(4), codes_.bitwise_and(15)}, 1).view({-1});
  const at::Tensor found = table->to(device()).index_select(0, codes.narrow(0, 0, count).to(at::kInt));
  return (found * for_each_number(scales, nf4::kBlock, count)).view({rows_, columns_}).to(type);
}

at::Tensor QuantizedWeight::linear(const std::shared_ptr<const QuantizedWeight>& weight, const at::Tensor& input,
                                   const at::Tensor& bias) {
  return QuantizedProduct::apply(input, weight, bias.defined() ? std::optional(bias) : std::nullopt);
}

void QuantizedWeight::to(at::Device device, at::ScalarType /*type*/, bool non_blocking) {
  torch::nn::Module::to(device, non_blocking);
}
void QuantizedWeight::to(at::ScalarType /*type*/, bool /*non_blocking*/) {}
void QuantizedWeight::to(at::Device device, bool non_blocking) { torch::nn::Module::to(device, non_blocking); }

}  // namespace levin::detail
