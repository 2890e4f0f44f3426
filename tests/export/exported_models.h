#pragma once

#include "../../examples/models/gpt2.h"
#include "../../examples/models/resnet.h"
#include "../../examples/models/vit.h"

#include <levin/core/nn/transformer/language_model.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

/// Models that the tests of exports share: small ones of every kind that users export.
namespace levin::testing {

namespace F = torch::nn::functional;

/// The message of the levin::Error that an action ends with.
inline std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

struct ExportedModel {
  std::string name;
  std::shared_ptr<torch::nn::Module> module;
  std::function<Batch(const Batch&)> function;
  /// A batch of so many rows.
  std::function<Batch(int64_t)> batch;
};

/// A model of one tensor "x", which gives "y".
template <class Holder>
ExportedModel model_of_one(const std::string& name, Holder holder, const std::function<at::Tensor(int64_t)>& input) {
  return {.name = name,
          .module = holder.ptr(),
          .function =
              [holder](const Batch& batch) mutable {
                return Batch{{"y", holder->forward(batch["x"])}};
              },
          .batch =
              [input](int64_t rows) {
                return Batch{{"x", input(rows)}};
              }};
}

inline std::function<at::Tensor(int64_t)> images(int64_t channels, int64_t size) {
  return [=](int64_t rows) { return torch::randn({rows, channels, size, size}); };
}

inline std::function<at::Tensor(int64_t)> tokens(int64_t vocabulary, int64_t length) {
  return [=](int64_t rows) { return torch::randint(0, vocabulary, {rows, length}, torch::kLong); };
}

struct CnnImpl : torch::nn::Module {
  CnnImpl() {
    using namespace torch::nn;
    net =
        register_module("net", levin::Sequential(Conv2d(Conv2dOptions(3, 8, 3).padding(1).bias(false)), BatchNorm2d(8),
                                                 ReLU(), MaxPool2d(MaxPool2dOptions(3).stride(2).padding(1)),
                                                 Conv2d(Conv2dOptions(8, 8, 3).padding(1).groups(2)),
                                                 GroupNorm(GroupNormOptions(2, 8))));
    down = register_module("down", Conv2d(Conv2dOptions(3, 8, 1).stride(2)));
    dropout = register_module("dropout", Dropout(0.3));
    head = register_module("head", Linear(8, 10));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = net(x) + down(x);
    y.relu_();
    const at::Tensor pooled = torch::avg_pool2d(y, 2).mean({2, 3});
    return head(dropout(pooled));
  }
  levin::Sequential net{nullptr};
  torch::nn::Conv2d down{nullptr};
  torch::nn::Dropout dropout{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Cnn);

struct RecurrentImpl : torch::nn::Module {
  RecurrentImpl() {
    using namespace torch::nn;
    embedding = register_module("embedding", Embedding(50, 16));
    lstm = register_module("lstm", LSTM(LSTMOptions(16, 24).num_layers(2).batch_first(true).bidirectional(true)));
    gru = register_module("gru", GRU(GRUOptions(48, 12).batch_first(true)));
    head = register_module("head", Linear(12, 7));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = std::get<0>(gru(std::get<0>(lstm(embedding(x)))));
    return head(y.select(1, -1));
  }
  torch::nn::Embedding embedding{nullptr};
  torch::nn::LSTM lstm{nullptr};
  torch::nn::GRU gru{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Recurrent);

struct EncoderImpl : torch::nn::Module {
  EncoderImpl() {
    const torch::nn::TransformerEncoderLayer layer(
        torch::nn::TransformerEncoderLayerOptions(16, 4).dim_feedforward(32));
    encoder = register_module("encoder", torch::nn::TransformerEncoder(torch::nn::TransformerEncoderOptions(layer, 2)));
  }
  at::Tensor forward(const at::Tensor& x) { return encoder(x.transpose(0, 1)).transpose(0, 1); }
  torch::nn::TransformerEncoder encoder{nullptr};
};
TORCH_MODULE(Encoder);

/// Draws in training mode, and is the mean in evaluation.
struct VaeImpl : torch::nn::Module {
  VaeImpl() {
    using namespace torch::nn;
    encoder = register_module("encoder", levin::Sequential(Conv2d(Conv2dOptions(1, 4, 3).stride(2).padding(1)), ReLU(),
                                                           Flatten(), Linear(4 * 4 * 4, 12)));
    expand = register_module("expand", Linear(6, 4 * 4 * 4));
    decoder = register_module(
        "decoder",
        levin::Sequential(ConvTranspose2d(ConvTranspose2dOptions(4, 4, 3).stride(2).padding(1).output_padding(1)),
                          SiLU(), Conv2d(Conv2dOptions(4, 1, 3).padding(1)), Sigmoid()));
  }
  std::vector<at::Tensor> forward(const at::Tensor& x) {
    const auto parts = encoder(x).chunk(2, 1);
    at::Tensor code = parts[0];
    if (is_training()) code = code + torch::exp(0.5 * parts[1]) * torch::randn_like(parts[1]);
    return {decoder(expand(code).view({x.size(0), 4, 4, 4})), code};
  }
  levin::Sequential encoder{nullptr};
  torch::nn::Linear expand{nullptr};
  levin::Sequential decoder{nullptr};
};
TORCH_MODULE(Vae);

/// Attention with a mask, and shapes written in several ways.
struct MaskedImpl : torch::nn::Module {
  MaskedImpl() {
    mix = register_module("mix", torch::nn::Linear(8, 8));
    scale = register_buffer("scale", torch::rand({8}) + 0.5);
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& length) {
    const int64_t rows = x.size(0);
    const int64_t steps = x.size(1);
    const at::Tensor place = torch::arange(steps).unsqueeze(0).expand({rows, steps});
    const at::Tensor is_hidden = place >= length.unsqueeze(1);
    const at::Tensor y = mix(x).reshape({rows * steps, 8}) * scale;
    const at::Tensor scores = torch::bmm(y.view({rows, steps, 8}), x.transpose(1, 2)) / std::sqrt(8.0);
    const at::Tensor weights =
        torch::softmax(scores.masked_fill(is_hidden.unsqueeze(1).expand({rows, steps, steps}), -1e9), -1);
    return torch::matmul(weights, x).sum(1) / static_cast<double>(steps) + torch::zeros({rows, 8}).cos();
  }
  torch::nn::Linear mix{nullptr};
  at::Tensor scale;
};
TORCH_MODULE(Masked);

/// Graphs in a batch, whose nodes, edges and graphs are not as many: nodes take the sum of their neighbours, and a
/// graph that of its nodes. `batch` has so many rings, the last one with one node more.
inline ExportedModel graph_model() {
  torch::nn::Linear mix(4, 6);
  const auto function = [mix](const Batch& batch) mutable {
    const at::Tensor own = mix(batch["x"]);
    const at::Tensor sent = own.index_select(0, batch["from"]);
    const at::Tensor nodes = torch::relu(own + torch::zeros({batch["x"].size(0), 6}).index_add(0, batch["to"], sent));
    const at::Tensor graphs = torch::zeros({batch["label"].size(0), 6}).index_add(0, batch["graph"], nodes);
    return Batch{{"nodes", nodes}, {"graphs", graphs}, {"messages", sent.index({torch::indexing::Slice(), 0})}};
  };
  const auto batch = [](int64_t graphs) {
    std::vector<int64_t> from, to, graph;
    for (int64_t g = 0; g < graphs; ++g) {
      const auto first = static_cast<int64_t>(graph.size());
      const int64_t size = g + 1 == graphs ? 3 : 2 + g % 2;
      for (int64_t i = 0; i < size; ++i) {
        graph.push_back(g);
        from.push_back(first + i);
        to.push_back(first + (i + 1) % size);
      }
      from.push_back(first);
      to.push_back(first);
    }
    const auto nodes = static_cast<int64_t>(graph.size());
    return Batch{{"x", torch::randn({nodes, 4})},
                 {"from", torch::tensor(from)},
                 {"to", torch::tensor(to)},
                 {"graph", torch::tensor(graph)},
                 {"label", torch::zeros({graphs})}};
  };
  return {.name = "graphs", .module = mix.ptr(), .function = function, .batch = batch};
}

inline std::vector<ExportedModel> exported_models() {
  using namespace torch::nn;
  torch::manual_seed(1);
  std::vector<ExportedModel> models;
  models.push_back(model_of_one("mlp",
                                levin::Sequential(Flatten(), Linear(64, 32), BatchNorm1d(32), ReLU(), Dropout(0.5),
                                                  Linear(32, 10), LogSoftmax(1)),
                                images(1, 8)));
  models.push_back(model_of_one("cnn", Cnn(), images(3, 16)));
  models.push_back(model_of_one(
      "resnet",
      example::models::ResNet(example::models::ResNetOptions{.blocks = {1, 1, 1, 1}, .bottleneck = true, .classes = 5}),
      images(3, 32)));
  models.push_back(model_of_one("recurrent", Recurrent(), tokens(50, 12)));
  models.push_back(model_of_one("gpt2",
                                example::models::Gpt2(example::models::Gpt2Options{
                                    .vocab_size = 60, .n_positions = 16, .n_embd = 32, .n_layer = 2, .n_head = 4}),
                                tokens(60, 12)));
  // Groups of heads, norms of queries and keys, and layers with and without a sliding window.
  models.push_back(model_of_one("llama",
                                nn::CausalLanguageModel(nn::LanguageModelOptions{
                                    .vocabulary = 60,
                                    .layers = 2,
                                    .block = {.attention = {.width = 32,
                                                            .heads = 4,
                                                            .key_value_heads = 2,
                                                            .sliding_window = 5,
                                                            .query_key_norm = nn::QueryKeyNorm::kHead},
                                              .mlp = {.hidden = 48}},
                                    .rotary = nn::RotaryOptions{.dim = 8},
                                    .has_sliding_window = {true, false},
                                    .initial_std = 0.2}),
                                tokens(60, 12)));
  models.push_back(model_of_one("encoder", Encoder(), [](int64_t rows) { return torch::randn({rows, 5, 16}); }));
  models.push_back(model_of_one("vit",
                                example::models::Vit(example::models::VitOptions{.image_size = 16,
                                                                                 .patch_size = 4,
                                                                                 .hidden = 24,
                                                                                 .layers = 2,
                                                                                 .heads = 3,
                                                                                 .mlp = 48,
                                                                                 .classes = 5,
                                                                                 .dropout = 0.1}),
                                images(3, 16)));
  Vae vae;
  models.push_back({.name = "vae",
                    .module = vae.ptr(),
                    .function =
                        [vae](const Batch& batch) mutable {
                          const auto parts = vae->forward(batch["x"]);
                          return Batch{{"image", parts[0]}, {"code", parts[1]}};
                        },
                    .batch =
                        [](int64_t rows) {
                          return Batch{{"x", torch::rand({rows, 1, 8, 8})}};
                        }});
  Masked masked;
  models.push_back({.name = "masked",
                    .module = masked.ptr(),
                    .function =
                        [masked](const Batch& batch) mutable {
                          return Batch{{"y", masked->forward(batch["x"], batch["length"])}};
                        },
                    .batch =
                        [](int64_t rows) {
                          return Batch{{"unread", torch::rand({rows})},
                                       {"x", torch::randn({rows, 6, 8})},
                                       {"length", torch::randint(1, 7, {rows}, torch::kLong)}};
                        }});
  // Statistics of BatchNorm that differ from those at the start.
  const torch::NoGradGuard no_gradients;
  for (auto& model : models) {
    model.module->train();
    for (int i = 0; i < 3; ++i) model.function(model.batch(8));
  }
  return models;
}

inline ExportedModel exported_model(const std::string& name) {
  for (auto& model : exported_models())
    if (model.name == name) return model;
  throw std::logic_error("no model " + name);
}

}  // namespace levin::testing
