// The blocks of transformers against PyTorch's and transformers' classes on the same weights.

#include "../../loggers/test_python.h"
#include "../../support/run_program.h"
#include "../../support/tiny.h"
#include "../../support/torch_python.h"

#include <levin/core/checkpoint/safetensors.h>
#include <levin/core/nn/transformer/mixture_of_experts.h>
#include <levin/core/nn/transformer/transformer_stack.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>

namespace levin {
namespace {

constexpr double kTolerance = 1e-5;

/// A file of oracles.py.
class BlockCase {
 public:
  explicit BlockCase(const std::string& path) : file_(path) {}
  bool has(const std::string& name) const { return file_.contains(name); }
  at::Tensor read(const std::string& name) const { return has(name) ? file_.read(name) : at::Tensor(); }
  at::Tensor input(const std::string& name) const { return read("input/" + name); }
  size_t weights() const {
    return std::count_if(file_.names().begin(), file_.names().end(),
                         [](const auto& name) { return name.starts_with("weight/"); });
  }

 private:
  SafetensorsFile file_;
};

void expect_close(const at::Tensor& result, const at::Tensor& expected, const std::string& what) {
  ASSERT_EQ(result.sizes(), expected.sizes()) << what;
  EXPECT_GT(expected.abs().max().item<double>(), 1e-3) << what << ": values that are all zero would show nothing";
  EXPECT_LT((result - expected).abs().max().item<double>(),
            kTolerance * std::max(1.0, expected.abs().max().item<double>()))
      << what;
}

/// That output and gradients of `run` are those of the case, with the case's weights in the module.
void expect_case(const BlockCase& given, torch::nn::Module& module,
                 const std::function<at::Tensor(const at::Tensor& x)>& run) {
  const auto parameters = module.named_parameters();
  ASSERT_EQ(parameters.size(), given.weights());
  {
    const torch::NoGradGuard no_gradients;
    for (const auto& entry : parameters) {
      ASSERT_TRUE(given.has("weight/" + entry.key())) << entry.key();
      entry.value().copy_(given.read("weight/" + entry.key()));
    }
  }
  const at::Tensor x = given.input("x").requires_grad_();
  const at::Tensor output = run(x);
  at::Tensor expected = given.read("output");
  at::Tensor counted = given.read("counted");
  if (counted.defined()) {
    counted = counted.unsqueeze(-1);
    expect_close(output * counted, expected * counted, "output");
  } else {
    expect_close(output, expected, "output");
  }
  (output * given.input("slope")).sum().backward();
  expect_close(x.grad(), given.read("gradient/x"), "gradient of x");
  for (const auto& entry : parameters) {
    const at::Tensor slope = given.read("gradient/" + entry.key());
    if (slope.abs().max().item<double>() < 1e-3)  // biases of keys change nothing
      EXPECT_LT(entry.value().grad().abs().max().item<double>(), 1e-3) << entry.key();
    else
      expect_close(entry.value().grad(), slope, entry.key());
  }
}

class TransformerOracles : public ::testing::Test {
 protected:
  /// Runs oracles.py; skips where a package is missing.
  void make(const std::string& command) {
    const bool needs_package = command == "transformers";
    if (needs_package)
      if (const std::string missing = testing::missing_module(command); !missing.empty()) GTEST_SKIP() << missing;
    const std::string packages = testing::torch_packages();
    if (packages.empty()) GTEST_SKIP() << "no torch for Python; hint: scripts/bootstrap";
    const auto run =
        testing::run_program({needs_package ? testing::test_python() : testing::torch_python(), "-W", "ignore",
                              testing::source_path("tests/nn/transformer/oracles.py"), command, folder_},
                             {.environment = {{"PYTHONPATH", packages}, {"HF_HUB_OFFLINE", "1"}}});
    ASSERT_EQ(run.status, 0) << run.out << run.err;
  }
  BlockCase read(const std::string& name) const { return BlockCase(folder_ + "/" + name + ".safetensors"); }

  const std::string folder_ = testing::fresh_folder("transformer");
};

class PyTorchBlocks : public TransformerOracles {};
class TransformersBlocks : public TransformerOracles {};

constexpr int64_t kWidth = 16;

nn::TransformerBlockOptions pytorch_block(nn::NormPlacement placement, nn::Activation activation) {
  return {.attention = {.width = kWidth, .heads = 4, .bias = true, .output_bias = true},
          .mlp = {.hidden = 24, .activation = activation, .gated = false, .bias = true},
          .norm = nn::NormKind::kLayer,
          .norm_placement = placement};
}

TEST_F(PyTorchBlocks, HaveTheSameValuesAndGradients) {
  make("torch");
  if (IsSkipped() || HasFatalFailure()) return;
  const auto check = [&](const std::string& name, auto module, const auto& run) {
    SCOPED_TRACE(name);
    const BlockCase given = read(name);
    expect_case(given, *module, [&](const at::Tensor& x) { return run(module, x, given); });
  };
  const auto of_x = [](auto& module, const at::Tensor& x, const BlockCase&) { return module(x); };
  check("rms_norm", nn::RMSNorm(nn::RMSNormOptions{.size = kWidth, .eps = 1e-3}), of_x);
  check("rms_norm_default", nn::RMSNorm(kWidth), of_x);

  const nn::AttentionOptions attention = pytorch_block(nn::NormPlacement::kPre, nn::Activation::kRelu).attention;
  check("attention", nn::Attention(attention), of_x);
  check("attention_masked", nn::Attention(attention), [](auto& module, const at::Tensor& x, const BlockCase& given) {
    return module(x, {.mask = given.input("mask")});
  });
  check("attention_to_memory", nn::Attention(attention), [](auto& module, const at::Tensor& x, const BlockCase& given) {
    return module(x, {.memory = given.input("memory"), .memory_mask = given.input("memory_mask")});
  });

  for (const auto& [placement, name] : {std::pair(nn::NormPlacement::kPre, std::string("pre")),
                                        std::pair(nn::NormPlacement::kPost, std::string("post"))}) {
    for (const auto& [activation, called] :
         {std::pair(nn::Activation::kRelu, std::string("relu")), std::pair(nn::Activation::kGelu, std::string("gelu"))})
      check("encoder_layer_" + name + "_" + called, nn::TransformerBlock(pytorch_block(placement, activation)),
            [](auto& module, const at::Tensor& x, const BlockCase& given) {
              const at::Tensor mask = given.input("mask");
              return module(x, {.positions = (mask.cumsum(1) - 1).masked_fill(mask.logical_not(), -1)});
            });
    nn::TransformerBlockOptions options = pytorch_block(placement, nn::Activation::kRelu);
    options.attention.causal = true;
    options.cross_attention = true;
    check("decoder_layer_" + name, nn::TransformerBlock(options),
          [](auto& module, const at::Tensor& x, const BlockCase& given) {
            return module(x, {.memory = given.input("memory")});
          });
  }

  check("encoder",
        nn::TransformerEncoder(nn::TransformerStackOptions{
            .block = pytorch_block(nn::NormPlacement::kPre, nn::Activation::kRelu), .layers = 2}),
        of_x);
  nn::TransformerStackOptions decoder{
      .block = pytorch_block(nn::NormPlacement::kPost, nn::Activation::kRelu), .layers = 2, .final_norm = false};
  decoder.block.cross_attention = true;
  check("decoder", nn::TransformerDecoder(decoder), [](auto& module, const at::Tensor& x, const BlockCase& given) {
    return module(x, {.memory = given.input("memory")});
  });
}

/// Llama's, with the sizes of oracles.py.
nn::TransformerStackOptions llama() {
  return {.block = {.attention = {.width = kWidth, .heads = 4, .key_value_heads = 2},
                    .mlp = {.hidden = 24},
                    .norm_eps = 1e-6},
          .layers = 3};
}

TEST_F(TransformersBlocks, HaveTheSameValuesAndGradients) {
  make("transformers");
  if (IsSkipped() || HasFatalFailure()) return;
  const auto check = [&](const std::string& name, const nn::TransformerStackOptions& options,
                         const nn::RotaryOptions& rotary) {
    SCOPED_TRACE(name);
    const BlockCase given = read(name);
    nn::TransformerDecoder decoder(options, nn::RotaryEmbedding(rotary));
    expect_case(given, *decoder,
                [&](const at::Tensor& x) { return decoder(x, {.positions = given.input("positions")}); });
  };
  using nn::RotaryScaling;
  {
    SCOPED_TRACE("mixtral_experts");
    nn::MixtureOfExperts experts(nn::MixtureOfExpertsOptions{.width = kWidth, .hidden = 24, .experts = 5});
    expect_case(read("mixtral_experts"), *experts, [&](const at::Tensor& x) -> at::Tensor { return experts(x); });
  }
  check("llama", llama(), {.dim = 4});
  check("llama_right", llama(), {.dim = 4});
  check("llama_left", llama(), {.dim = 4});
  check("packed", llama(), {.dim = 4});
  check("linear", llama(), {.dim = 4, .scaling = RotaryScaling::kLinear, .factor = 4});
  check("dynamic", llama(), {.dim = 4, .scaling = RotaryScaling::kDynamic, .factor = 2, .max_position = 6});
  check("llama3", llama(),
        {.dim = 4, .theta = 500, .scaling = RotaryScaling::kLlama3, .factor = 8, .original_max_position = 32});
  check("yarn", llama(), {.dim = 4, .scaling = RotaryScaling::kYarn, .factor = 4, .original_max_position = 32});
  check("yarn_scaled", llama(),
        {.dim = 4,
         .scaling = RotaryScaling::kYarn,
         .factor = 4,
         .original_max_position = 16,
         .beta_fast = 16,
         .beta_slow = 2,
         .mscale = 0.7,
         .mscale_all_dim = 1.3,
         .truncate = false});

  nn::TransformerStackOptions mistral = llama();
  mistral.block.attention.sliding_window = 3;
  for (const std::string name : {"mistral", "mistral_right", "mistral_left"}) check(name, mistral, {.dim = 4});

  nn::TransformerStackOptions qwen2 = llama();
  qwen2.block.attention.bias = true;
  check("qwen2", qwen2, {.dim = 4});

  nn::TransformerStackOptions qwen3 = llama();
  qwen3.block.attention.head_dim = 8;
  qwen3.block.attention.query_key_norm = nn::QueryKeyNorm::kHead;
  check("qwen3", qwen3, {.dim = 8});

  nn::TransformerStackOptions olmo2 = llama();
  olmo2.block.norm_placement = nn::NormPlacement::kOutput;
  olmo2.block.norm_eps = 1e-5;
  olmo2.block.attention.query_key_norm = nn::QueryKeyNorm::kProjection;
  olmo2.block.attention.norm_eps = 1e-5;
  check("olmo2", olmo2, {.dim = 4});

  nn::TransformerStackOptions gemma3 = llama();
  gemma3.block.norm_placement = nn::NormPlacement::kBoth;
  gemma3.block.norm_weight_is_offset = true;
  gemma3.block.mlp.activation = nn::Activation::kGeluTanh;
  gemma3.block.attention.head_dim = 8;
  gemma3.block.attention.scale = 1 / std::sqrt(10.0);
  gemma3.block.attention.sliding_window = 3;
  gemma3.block.attention.query_key_norm = nn::QueryKeyNorm::kHead;
  gemma3.block.attention.norm_weight_is_offset = true;
  for (const std::string name : {"gemma3", "gemma3_right", "gemma3_left"}) check(name, gemma3, {.dim = 8});
}

}  // namespace
}  // namespace levin
