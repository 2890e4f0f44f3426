#include <levin/core/nn/adapters.h>

#include <levin/core/base/error.h>
#include <levin/core/nn/adapter_layer.h>
#include <levin/core/nn/weight_behaviour.h>

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace levin {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string message_of_adapters(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

struct AdaptedNet : torch::nn::Module {
  AdaptedNet() {
    torch::manual_seed(3);
    embed = register_module("embed", torch::nn::Embedding(11, 6));
    up = register_module("up", torch::nn::Linear(6, 8));
    down = register_module("down", torch::nn::Linear(torch::nn::LinearOptions(8, 6).bias(false)));
    head = register_module("head", torch::nn::Linear(6, 3));
  }
  at::Tensor forward(const at::Tensor& tokens) { return head(down(torch::tanh(up(embed(tokens))))); }

  torch::nn::Embedding embed{nullptr};
  torch::nn::Linear up{nullptr}, down{nullptr}, head{nullptr};
};

/// The same net with its adapters written out.
at::Tensor adapted_by_hand(AdaptedNet& net, const at::Tensor& tokens, double scale,
                           const std::string& adapter = "default") {
  auto parameters = net.named_parameters();
  const auto pair = [&](const std::string& layer) {
    const std::string path = layer + ".adapters." + adapter + ".";
    return std::make_pair(parameters[path + "lora_A"], parameters[path + "lora_B"]);
  };
  const auto linear = [&](const std::string& layer, const at::Tensor& x) {
    const auto [a, b] = pair(layer);
    const at::Tensor* bias = parameters.find(layer + ".bias");
    const at::Tensor base = torch::matmul(x, parameters[layer + ".weight"].clone().t());
    return base + (bias != nullptr ? *bias : torch::zeros({1})) + scale * torch::matmul(torch::matmul(x, a.t()), b.t());
  };
  const auto [a, b] = pair("embed");
  const at::Tensor x = parameters["embed.weight"].clone().index_select(0, tokens.flatten()).view({2, 4, 6}) +
                       scale * torch::matmul(a.t().index_select(0, tokens.flatten()), b.t()).view({2, 4, 6});
  return torch::matmul(linear("down", torch::tanh(linear("up", x))), parameters["head.weight"].t()) +
         parameters["head.bias"];
}

AdapterOptions on_three_layers() { return {.name = "lora", .rank = 2, .alpha = 6, .targets = {"embed", "up", "down"}}; }

void fill(AdaptedNet& net) {
  const torch::NoGradGuard no_gradients;
  torch::manual_seed(5);
  for (auto& entry : net.named_parameters())
    if (entry.key().find(".adapters.") != std::string::npos) entry.value().normal_();
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }

TEST(Adapters, BeginAsTheModuleWasAndTrainAlone) {
  const auto net = std::make_shared<AdaptedNet>();
  const at::Tensor tokens = torch::randint(11, {2, 4});
  const at::Tensor before = net->forward(tokens).detach();
  EXPECT_THAT(add_adapters(*net, on_three_layers()), ElementsAre("embed", "up", "down"));
  EXPECT_TRUE(torch::equal(net->forward(tokens), before));
  std::vector<std::string> trained;
  for (const auto& entry : net->named_parameters())
    if (entry.value().requires_grad()) trained.push_back(entry.key());
  EXPECT_THAT(trained, ElementsAre("embed.adapters.default.lora_A", "embed.adapters.default.lora_B",
                                   "up.adapters.default.lora_A", "up.adapters.default.lora_B",
                                   "down.adapters.default.lora_A", "down.adapters.default.lora_B"));
  EXPECT_THAT(net->named_parameters()["up.adapters.default.lora_A"].sizes(), ElementsAre(2, 6));
  EXPECT_THAT(net->named_parameters()["embed.adapters.default.lora_A"].sizes(), ElementsAre(2, 11));
}

TEST(Adapters, ComputeWhatIsWrittenOutByHandForwardAndBackward) {
  for (const std::string name : {"lora", "rslora"}) {
    SCOPED_TRACE(name);
    const auto net = std::make_shared<AdaptedNet>();
    const at::Tensor tokens = torch::randint(11, {2, 4});
    AdapterOptions options = on_three_layers();
    options.name = name;
    add_adapters(*net, options);
    fill(*net);
    const double scale = name == "lora" ? 3 : 6 / std::sqrt(2.0);
    std::vector<std::vector<at::Tensor>> gradients;
    for (const bool hand : {false, true}) {
      net->zero_grad();
      const at::Tensor out = hand ? adapted_by_hand(*net, tokens, scale) : net->forward(tokens);
      out.pow(2).sum().backward();
      gradients.push_back({out.detach()});
      for (auto& entry : net->named_parameters()) {
        EXPECT_EQ(entry.value().grad().defined(), entry.value().requires_grad()) << entry.key();
        if (entry.value().requires_grad()) gradients.back().push_back(entry.value().grad().clone());
      }
    }
    ASSERT_EQ(gradients[0].size(), 7);
    for (size_t i = 0; i < 7; ++i) {
      EXPECT_GT(gradients[1][i].abs().max().item<double>(), 1e-3) << i;
      EXPECT_LT(largest_difference(gradients[0][i], gradients[1][i]), 1e-5 * gradients[1][i].abs().max().item<double>())
          << i;
    }
  }
}

TEST(Adapters, DropTheirInputsInTrainingAlone) {
  const auto net = std::make_shared<AdaptedNet>();
  AdapterOptions options = on_three_layers();
  options.targets = {"down"};
  options.dropout = 0.5;
  add_adapters(*net, options);
  fill(*net);
  const at::Tensor x = torch::randn({5, 8});
  const auto a = net->named_parameters()["down.adapters.default.lora_A"];
  const auto b = net->named_parameters()["down.adapters.default.lora_B"];
  const at::Tensor base = torch::matmul(x, net->down->weight.detach().clone().t());
  net->eval();
  EXPECT_LT(largest_difference(net->down(x), base + 3 * torch::matmul(torch::matmul(x, a.t()), b.t())), 1e-5);
  net->train();
  torch::manual_seed(9);
  const at::Tensor dropped = net->down(x);
  torch::manual_seed(9);
  EXPECT_LT(
      largest_difference(dropped, base + 3 * torch::matmul(torch::matmul(torch::dropout(x, 0.5, true), a.t()), b.t())),
      1e-5);
}

TEST(Adapters, AreSwitchedAndAddedUp) {
  const auto net = std::make_shared<AdaptedNet>();
  const at::Tensor tokens = torch::randint(11, {2, 4});
  const at::Tensor plain = net->forward(tokens).detach();
  AdapterOptions options{.name = "lora", .rank = 2, .alpha = 2, .targets = {"down"}, .adapter = "french"};
  add_adapters(*net, options);
  options.adapter = "german";
  add_adapters(*net, options);
  fill(*net);
  EXPECT_THAT(adapter_names(*net), ElementsAre("french", "german"));
  EXPECT_THAT(active_adapters(*net), ElementsAre("german"));
  const at::Tensor german = net->forward(tokens).detach();
  set_active_adapters(*net, {"french"});
  const at::Tensor french = net->forward(tokens).detach();
  EXPECT_FALSE(net->named_parameters()["down.adapters.german.lora_A"].requires_grad());
  EXPECT_TRUE(net->named_parameters()["down.adapters.french.lora_A"].requires_grad());
  set_active_adapters(*net, {"french", "german"});
  EXPECT_LT(largest_difference(net->forward(tokens), french + german - plain), 1e-5);
  set_active_adapters(*net, {});
  EXPECT_TRUE(torch::equal(net->forward(tokens), plain));
  EXPECT_GT(largest_difference(french, german), 1e-2);
  remove_adapter(*net, "french");
  EXPECT_THAT(adapter_names(*net), ElementsAre("german"));
  EXPECT_THAT(message_of_adapters([&] { set_active_adapters(*net, {"french"}); }),
              HasSubstr("the module has no adapter 'french'"));
}

TEST(Adapters, MergeIntoTheWeightsAndBackToTheBit) {
  const auto net = std::make_shared<AdaptedNet>();
  const at::Tensor tokens = torch::randint(11, {2, 4});
  const at::Tensor plain = net->forward(tokens).detach();
  std::vector<at::Tensor> before;
  for (const at::Tensor& parameter : net->parameters()) before.push_back(parameter.detach().clone());
  add_adapters(*net, on_three_layers());
  fill(*net);
  const at::Tensor adapted = net->forward(tokens).detach();
  merge_adapters(*net);
  merge_adapters(*net);
  EXPECT_LT(largest_difference(net->forward(tokens), adapted), 1e-5);
  EXPECT_GT(largest_difference(plain, adapted), 1e-2);
  for (const at::Tensor& parameter : net->parameters()) EXPECT_FALSE(parameter.requires_grad());
  EXPECT_THAT(message_of_adapters([&] { set_active_adapters(*net, {}); }), HasSubstr("are merged into the weights"));
  unmerge_adapters(*net);
  EXPECT_TRUE(torch::equal(net->forward(tokens), adapted));
  EXPECT_TRUE(torch::equal(net->embed->weight, before[0]) && torch::equal(net->up->weight, before[1]) &&
              torch::equal(net->down->weight, before[3]));
  EXPECT_TRUE(net->named_parameters()["up.adapters.default.lora_A"].requires_grad());
}

TEST(Adapters, LeaveModulesToSaveTrained) {
  const auto net = std::make_shared<AdaptedNet>();
  AdapterOptions options = on_three_layers();
  options.targets = {"*"};
  options.modules_to_save = {"head"};
  EXPECT_THAT(add_adapters(*net, options), ElementsAre("embed", "up", "down"));
  EXPECT_TRUE(net->head->weight.requires_grad() && net->head->bias.requires_grad());
  EXPECT_FALSE(net->up->bias.requires_grad());
}

TEST(Adapters, AreFoundAgainAfterTheModuleHasGoneToOtherMemory) {
  const auto net = std::make_shared<AdaptedNet>();
  const at::Tensor tokens = torch::randint(11, {2, 4});
  add_adapters(*net, on_three_layers());
  fill(*net);
  net->to(at::kDouble);
  reattach_adapters(*net);
  EXPECT_LT(largest_difference(net->forward(tokens), adapted_by_hand(*net, tokens, 3)), 1e-10);
}

TEST(Adapters, GoWithTheModule) {
  std::weak_ptr<AdaptedNet> gone;
  c10::weak_intrusive_ptr<c10::StorageImpl> memory(at::empty({1}).storage().getWeakStorageImpl());
  {
    const auto net = std::make_shared<AdaptedNet>();
    add_adapters(*net, on_three_layers());
    gone = net;
    memory = net->up->weight.storage().getWeakStorageImpl();
  }
  EXPECT_TRUE(gone.expired());
  EXPECT_TRUE(memory.expired());
}

TEST(Adapters, SayWhatCannotBeAdapted) {
  const auto net = std::make_shared<AdaptedNet>();
  const auto message = [&](const AdapterOptions& options) {
    return message_of_adapters([&] { add_adapters(*net, options); });
  };
  AdapterOptions options = on_three_layers();
  options.targets = {"up", "*.q_proj"};
  EXPECT_THAT(message(options), HasSubstr("adapters.targets: '*.q_proj' matches no linear layer or embedding; valid: "
                                          "embed, up, down, head; hint: `*` stands for any characters"));
  options.targets = {};
  EXPECT_THAT(message(options), HasSubstr("adapters.targets is not set"));
  options.targets = {"head"};
  options.rank = 4;
  EXPECT_THAT(message(options), HasSubstr("adapters.rank: got 4, above the sizes of 'head' [3, 6]; valid: at most 3"));
  options.rank = 2;
  options.modules_to_save = {"hat"};
  EXPECT_THAT(message(options), HasSubstr("adapters.modules_to_save: 'hat' matches no module"));
  options.modules_to_save = {"head"};
  EXPECT_THAT(message(options), HasSubstr("all layers that match are in modules_to_save"));
  options.modules_to_save = {};
  options.adapter = "a.b";
  EXPECT_THAT(message(options), HasSubstr("adapters.adapter: got 'a.b'; valid: a name without dots"));
  options.adapter = "default";
  options.name = "lokr";
  EXPECT_THAT(message(options), HasSubstr("adapters.name: got 'lokr'; valid: lora, rslora"));
  EXPECT_TRUE(net->up->weight.requires_grad()) << "nothing has changed";
  options.name = "lora";
  add_adapters(*net, options);
  EXPECT_THAT(message(options), HasSubstr("the module has an adapter 'default'; hint: another name"));
}

TEST(Adapters, TrainAboveLayersInFewBits) {
  for (const std::string format : {"nf4", "int8"}) {
    SCOPED_TRACE(format);
    const auto net = std::make_shared<AdaptedNet>();
    const at::Tensor tokens = torch::randint(11, {2, 4});
    const at::Tensor up = net->up->weight.detach().clone();
    AdapterOptions options = on_three_layers();
    options.quantize = format;
    options.modules_to_save = {"head"};
    add_adapters(*net, options);
    const auto buffers = net->named_buffers();
    EXPECT_TRUE(buffers.contains("up.quantized.codes") && buffers.contains("down.quantized.codes"));
    EXPECT_FALSE(buffers.contains("head.quantized.codes")) << "is trained whole";
    EXPECT_FALSE(net->named_parameters().contains("up.weight"));
    EXPECT_TRUE(net->named_parameters().contains("up.bias"));
    EXPECT_EQ(net->up->weight.sizes(), up.sizes());
    fill(*net);
    // The same net with the numbers that the bits stand for as its weights.
    const auto plain = std::make_shared<AdaptedNet>();
    add_adapters(*plain, on_three_layers());
    {
      const torch::NoGradGuard no_gradients;
      auto mine = net->named_parameters();
      for (auto& entry : plain->named_parameters())
        if (const at::Tensor* const found = mine.find(entry.key()); found != nullptr) entry.value().copy_(*found);
      plain->up->weight.copy_(detail::adapter_layers(*net).at(1)->quantized()->dequantize(at::kFloat));
      plain->down->weight.copy_(detail::adapter_layers(*net).at(2)->quantized()->dequantize(at::kFloat));
    }
    EXPECT_GT(largest_difference(plain->up->weight, up), 1e-5);
    EXPECT_LT(largest_difference(plain->up->weight, up), format == "nf4" ? 0.07 : 2e-3);
    const at::Tensor out = net->forward(tokens);
    EXPECT_LT(largest_difference(out, plain->forward(tokens)), 1e-5);
    out.pow(2).sum().backward();
    plain->forward(tokens).pow(2).sum().backward();
    const auto expected = plain->named_parameters();
    int64_t trained = 0;
    for (auto& entry : net->named_parameters()) {
      if (!entry.value().requires_grad()) continue;
      ++trained;
      if (entry.key().find("head") == std::string::npos)
        EXPECT_LT(largest_difference(entry.value().grad(), expected[entry.key()].grad()),
                  1e-4 * entry.value().grad().abs().max().item<double>())
            << entry.key();
    }
    EXPECT_EQ(trained, 8);
  }
}

TEST(Adapters, ThatTrainParametersWholeStayActive) {
  const auto net = std::make_shared<AdaptedNet>();
  AdapterOptions options{
      .name = "lora", .rank = 2, .targets = {"up"}, .modules_to_save = {"head"}, .adapter = "french"};
  add_adapters(*net, options);
  const auto says = HasSubstr(
      "the adapter 'french' has parameters that it trains whole (modules_to_save), which would "
      "stay where it is not active; hint: load the base once more");
  EXPECT_THAT(message_of_adapters([&] { set_active_adapters(*net, {}); }), says);
  options.adapter = "german";
  EXPECT_THAT(message_of_adapters([&] { add_adapters(*net, options); }), says);
  EXPECT_THAT(adapter_names(*net), ::testing::ElementsAre("french"));
}

TEST(Adapters, OfLayersInFewBitsAreSwitchedAddedAndFollowTheModule) {
  const auto net = std::make_shared<AdaptedNet>();
  const at::Tensor tokens = torch::randint(11, {2, 4});
  AdapterOptions options{.name = "lora", .rank = 2, .targets = {"up"}, .quantize = "nf4", .adapter = "french"};
  add_adapters(*net, options);
  const at::Tensor plain = net->forward(tokens).detach();
  options.adapter = "german";
  options.targets = {"down"};
  add_adapters(*net, options);  // of a layer that has none, and is in few bits already
  EXPECT_TRUE(torch::equal(net->forward(tokens), plain));
  fill(*net);
  const at::Tensor german = net->forward(tokens).detach();
  EXPECT_GT(largest_difference(german, plain), 1e-2);
  set_active_adapters(*net, {});
  EXPECT_TRUE(torch::equal(net->forward(tokens), plain));
  set_active_adapters(*net, {"german"});
  net->to(at::kDouble);
  reattach_adapters(*net);
  EXPECT_LT(largest_difference(net->forward(tokens), german), 1e-5);
}

TEST(Adapters, OfLayersInFewBitsSayWhatTheyCannotDo) {
  const auto net = std::make_shared<AdaptedNet>();
  AdapterOptions options = on_three_layers();
  options.quantize = "nf3";
  EXPECT_THAT(message_of_adapters([&] { add_adapters(*net, options); }),
              HasSubstr("adapters.quantize: got 'nf3'; valid: nf4, int8"));
  options.quantize = "nf4";
  add_adapters(*net, options);
  EXPECT_THAT(message_of_adapters([&] { merge_adapters(*net); }),
              HasSubstr("the weight 'up.weight' is held in nf4, which would round what adapters add to it"));
  net->up->weight.requires_grad_();
  EXPECT_THAT(message_of_adapters([&] {
                net->forward(torch::randint(11, {2, 4}));
              }),
              HasSubstr("the weight 'up.weight' is held in nf4 and cannot be trained; hint: leave it to adapters, or "
                        "name 'up' in modules_to_save"));
  std::string message;
  try {
    (net->down->weight * 2).sum();
  } catch (const std::exception& error) {
    message = error.what();
  }
  EXPECT_THAT(message, HasSubstr("the weight 'down.weight' is held in nf4; valid: calls of its layer"));
}

/// An autoencoder whose halves have one weight, which is a parameter of both.
struct TiedNet : torch::nn::Module {
  struct Layer : torch::nn::LinearImpl {
    explicit Layer(const at::Tensor& shared) : LinearImpl(6, 6) {
      parameters_["weight"] = shared;
      weight = shared;
    }
  };
  TiedNet() {
    first = register_module("first", torch::nn::Linear(6, 6));
    second = register_module("second", std::make_shared<Layer>(first->weight));
  }
  torch::nn::Linear first{nullptr};
  std::shared_ptr<Layer> second;
};

TEST(Adapters, RefuseAWeightOfTwoLayers) {
  const auto net = std::make_shared<TiedNet>();
  AdapterOptions options{.name = "lora", .rank = 2, .targets = {"*"}};
  const std::string message = "adapters.targets: 'first' and 'second' share their weight";
  EXPECT_THAT(message_of_adapters([&] { add_adapters(*net, options); }), HasSubstr(message));
  options.targets = {"first"};
  add_adapters(*net, options);
  options.targets = {"second"};
  options.adapter = "further";
  EXPECT_THAT(message_of_adapters([&] { add_adapters(*net, options); }), HasSubstr(message));
}

}  // namespace
}  // namespace levin
