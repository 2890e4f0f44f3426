#include <levin/core/nn/quantized_weight.h>

#include <levin/core/base/error.h>
#include <levin/core/base/recording.h>
#include <levin/core/nn/nf4.h>

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace levin {
namespace {

using detail::QuantizedWeight;
using ::testing::HasSubstr;

struct QuantizedOracle {
  int64_t rows, columns;
  std::vector<int64_t> codes, scales;
  std::vector<double> numbers;
  double sum;
};

const std::vector<QuantizedOracle> kQuantizedOracles = {
#include "../oracles/quantized_weight_oracles.inc"
};

/// The weight of the oracles.
at::Tensor weight_of_oracle(int64_t rows, int64_t columns) {
  const at::Tensor i = at::arange(rows * columns);
  const at::Tensor noise = (i * 7919 + 13).remainder(4093) - 2046;
  const at::Tensor factor = 1 + i.div(64, "floor").remainder(5);
  return (noise.to(at::kFloat) * factor.to(at::kFloat) / 16384).view({rows, columns});
}

/// All of a short tensor, some of a long one.
at::Tensor written(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.flatten();
  return flat.numel() <= 256 ? flat : flat.slice(0, 0, flat.numel(), 701);
}

TEST(QuantizedWeight, HasTheValuesOfBitsandbytes) {
  for (const QuantizedOracle& oracle : kQuantizedOracles) {
    SCOPED_TRACE(oracle.columns);
    const QuantizedWeight weight("w", weight_of_oracle(oracle.rows, oracle.columns), "nf4");
    const auto buffers = weight.named_buffers();
    EXPECT_TRUE(at::equal(written(buffers["codes"]).to(at::kLong), at::tensor(oracle.codes)));
    EXPECT_TRUE(at::equal(written(buffers["scales"]).to(at::kLong), at::tensor(oracle.scales)));
    const at::Tensor numbers = weight.dequantize(at::kFloat);
    EXPECT_EQ(numbers.sizes(), at::IntArrayRef({oracle.rows, oracle.columns}));
    const at::Tensor expected = at::tensor(oracle.numbers, at::kDouble);
    EXPECT_LE((written(numbers) - expected).abs().max().item<double>(), 1e-7 * expected.abs().max().item<double>());
    // bitsandbytes gives one scale in a thousand the value beside the nearest.
    EXPECT_NEAR(numbers.to(at::kDouble).abs().sum().item<double>(), oracle.sum, 1e-5 * oracle.sum);
  }
}

TEST(QuantizedWeight, HoldsRowsInEightBits) {
  torch::manual_seed(3);
  const at::Tensor values = torch::randn({5, 37}) * torch::tensor({1.0, 10.0, 0.01, 0.0, 3.0}).unsqueeze(1);
  const QuantizedWeight weight("w", values, "int8");
  const at::Tensor codes = weight.named_buffers()["codes"];
  EXPECT_EQ(codes.scalar_type(), at::kChar);
  for (int64_t row = 0; row < 5; ++row) {
    SCOPED_TRACE(row);
    const double greatest = values[row].abs().max().item<double>();
    EXPECT_EQ(codes[row].abs().max().item<int64_t>(), row == 3 ? 0 : 127);
    EXPECT_LE((weight.dequantize(at::kFloat)[row] - values[row]).abs().max().item<double>(), greatest / 127 * 0.501);
  }
}

TEST(QuantizedWeight, TakesAnEighthOrAQuarterOfTheBytes) {
  const at::Tensor values = torch::randn({256, 1024});
  const auto share = [&](const char* format) {
    return static_cast<double>(QuantizedWeight("w", values, format).bytes()) / static_cast<double>(values.nbytes());
  };
  EXPECT_NEAR(share("nf4"), (4 + 8.0 / 64 + 64.0 / 64 / 256) / 32, 1e-4);
  EXPECT_LE(share("nf4"), 0.14);
  EXPECT_NEAR(share("int8"), 0.25 + 2.0 / 1024, 1e-4);
}

TEST(QuantizedWeight, IsTheSameWithoutVectorInstructionsAndByOperators) {
  torch::manual_seed(5);
  for (const int64_t columns : {64, 77, 1000}) {
    const at::Tensor values = torch::randn({3, columns});
    std::vector<uint8_t> codes(static_cast<size_t>(values.numel() + 1) / 2);
    std::vector<float> scales(static_cast<size_t>(nf4::blocks(values.numel())));
    nf4::quantize(values.const_data_ptr<float>(), values.numel(), codes.data(), scales.data());
    const at::Tensor vectors = torch::empty_like(values), plain = torch::empty_like(values);
    nf4::dequantize(codes.data(), scales.data(), values.numel(), vectors.mutable_data_ptr<float>());
    nf4::dequantize(codes.data(), scales.data(), values.numel(), plain.mutable_data_ptr<float>(), VectorSet::kPortable);
    EXPECT_TRUE(at::equal(vectors, plain)) << columns;
    const QuantizedWeight weight("w", values, "nf4");
    const at::Tensor by_kernel = weight.dequantize(at::kFloat);
    // A recording without an observer cannot repeat the kernel.
    const RecordingScope recording;
    EXPECT_TRUE(at::equal(weight.dequantize(at::kFloat), by_kernel)) << columns;
  }
}

TEST(QuantizedWeight, MultipliesAsTheDequantizedWeightDoes) {
  torch::manual_seed(7);
  for (const std::string format : {"nf4", "int8"})
    for (const bool with_bias : {false, true}) {
      SCOPED_TRACE(format);
      const auto weight = std::make_shared<QuantizedWeight>("w", torch::randn({6, 70}), format);
      const at::Tensor bias = with_bias ? torch::randn({6}, torch::requires_grad()) : at::Tensor();
      const at::Tensor input = torch::randn({9, 70}, torch::requires_grad());
      const at::Tensor slope = torch::randn({9, 6});
      const at::Tensor output = QuantizedWeight::linear(weight, input, bias);
      (output * slope).sum().backward();
      const at::Tensor plain = input.detach().clone().requires_grad_();
      const at::Tensor expected = torch::matmul(plain, weight->dequantize(at::kFloat).t());
      (expected * slope).sum().backward();
      EXPECT_LT((output - (with_bias ? expected + bias : expected)).abs().max().item<double>(), 1e-5);
      EXPECT_LT((input.grad() - plain.grad()).abs().max().item<double>(), 1e-5);
      if (with_bias) EXPECT_LT((bias.grad() - slope.sum(0)).abs().max().item<double>(), 1e-5);
    }
}

TEST(QuantizedWeight, StaysAsItIsWhereTheModuleIsConverted) {
  const auto net = std::make_shared<torch::nn::LinearImpl>(8, 8);
  const auto weight = net->register_module("quantized", std::make_shared<QuantizedWeight>("w", net->weight, "nf4"));
  const at::Tensor before = weight->dequantize(at::kFloat);
  net->to(at::kBFloat16);
  net->to(at::kCPU, at::kDouble);
  EXPECT_TRUE(at::equal(weight->dequantize(at::kFloat), before));
  EXPECT_EQ(weight->dequantize(at::kBFloat16).scalar_type(), at::kBFloat16);
}

TEST(QuantizedWeight, HoldsZerosAndRefusesWhatIsNoNumber) {
  for (const std::string format : {"nf4", "int8"}) {
    const QuantizedWeight zeros("w", at::zeros({4, 64}), format);
    EXPECT_EQ(zeros.dequantize(at::kFloat).abs().max().item<double>(), 0) << format;
    std::string message;
    try {
      QuantizedWeight("up.weight", at::full({2, 64}, std::numeric_limits<double>::quiet_NaN()), format);
    } catch (const Error& error) {
      message = error.what();
    }
    EXPECT_THAT(message, HasSubstr("the weight 'up.weight' has numbers that are infinite or NaN, which " + format));
  }
}

}  // namespace
}  // namespace levin
