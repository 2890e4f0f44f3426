#include <levin/callbacks/lambda_callback.h>
#include <levin/core/base/error.h>
#include <levin/core/base/seed.h>
#include <levin/core/metrics/stacked_values.h>
#include <levin/core/optim/adam.h>
#include <levin/core/optim/group_options.h>

#include <gmock/gmock.h>
#include <tests/support/fit_outcome.h>
#include <tests/support/tiny.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/functional.h>
#include <torch/nn/modules.h>
#include <torch/nn/utils/rnn.h>
#include <torch/types.h>

#include <ATen/CPUGeneratorImpl.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

/// Steps that do what a recording may not see, each with `graph` and without: the runs are equal to the bit.
namespace levin {
namespace {

namespace F = torch::nn::functional;
using testing::FitOutcome;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

constexpr int64_t kBatch = 8;
constexpr int64_t kBatches = 20;

/// Around the recording so many numbers that their memory goes back to the system; fewer later, which costs less.
size_t large(int64_t batch_idx) { return batch_idx < 6 ? 9 << 20 : 100; }

struct VariantNet;
using ChangeLoss = std::function<at::Tensor(VariantNet&, const at::Tensor& loss, const Batch&, int64_t batch_idx)>;
using AtStep = std::function<void(VariantNet&, Trainer&)>;

/// What a variant adds to a small network, its step and its fit.
struct Variant {
  const char* name;
  ChangeLoss change = nullptr;
  std::function<void(VariantNet&)> set_up = nullptr;
  AtStep before_batch = nullptr;
  AtStep before_backward = nullptr;
  AtStep after_backward = nullptr;
  AtStep before_step = nullptr;
  AtStep after_batch = nullptr;
  std::function<void(VariantNet&)> clip = nullptr;
  std::function<Batch(VariantNet&, Batch)> transfer = nullptr;
  std::function<void(VariantNet&, const at::Tensor& loss)> on_loss = nullptr;
  std::function<void(TrainerOptions&)> options = nullptr;
  const char* says = "";  ///< in the log of the recorded run
  bool is_replayed = false;
};

struct VariantNet final : Module {
  explicit VariantNet(const Variant& variant) : variant(variant) {
    first = register_module("first", torch::nn::Linear(16, 8));
    norm = register_module("norm", torch::nn::BatchNorm1d(8));
    dropout = register_module("dropout", torch::nn::Dropout(0.2));
    second = register_module("second", torch::nn::Linear(8, 3));
    table = register_buffer("table", at::arange(8, at::kFloat));
    if (variant.set_up) variant.set_up(*this);
  }
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    hidden = norm(first(batch["x"])).relu();
    at::Tensor loss = F::cross_entropy(second(dropout(hidden)), batch["y"]);
    if (variant.change) loss = variant.change(*this, loss, batch, batch_idx);
    hidden = at::Tensor();
    log("loss", loss);
    return loss;
  }
  Batch on_after_batch_transfer(Batch batch, int64_t) override {
    return variant.transfer ? variant.transfer(*this, std::move(batch)) : batch;
  }
  void on_before_backward(const at::Tensor& loss) override {
    if (variant.on_loss) variant.on_loss(*this, loss);
  }
  void configure_gradient_clipping(OptimizerHandle& optimizer, double value, ClipAlgorithm algorithm) override {
    if (variant.clip) variant.clip(*this);
    Module::configure_gradient_clipping(optimizer, value, algorithm);
  }
  OptimizerConfigs configure_optimizers() override {
    return std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{.lr = 0.02});
  }

  const Variant& variant;
  torch::nn::Linear first{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Dropout dropout{nullptr};
  torch::nn::Linear second{nullptr};
  at::Tensor table;
  at::Tensor hidden;  ///< of the step under way
  at::Tensor scale = at::ones({});
  Batch kept;
  at::Tensor result;
  std::vector<float> numbers = std::vector<float>(8, 0.5F);
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(5);
  at::Generator other_generator = at::make_generator<at::CPUGeneratorImpl>(6);
  torch::nn::LSTM lstm{nullptr};
  torch::nn::MultiheadAttention attention{nullptr};
  unsigned hook = 0;
  bool flag = false;
};

FitOutcome fit_variant(const Variant& variant, GraphMode graph) {
  seed_everything(11);
  const auto module = std::make_shared<VariantNet>(variant);
  TrainerOptions options = testing::quiet(2);
  const auto call = [&module](const AtStep& at_step, Trainer& trainer) {
    if (at_step) at_step(*module, trainer);
  };
  options.callbacks.push_back(make<LambdaCallback>(LambdaCallbackOptions{
      .on_train_batch_start = [&](Trainer& trainer, Module&, const Batch&,
                                  int64_t) { call(variant.before_batch, trainer); },
      .on_train_batch_end = [&](Trainer& trainer, Module&, const StepOutput&, const Batch&,
                                int64_t) { call(variant.after_batch, trainer); },
      .on_before_backward = [&](Trainer& trainer, Module&,
                                const at::Tensor&) { call(variant.before_backward, trainer); },
      .on_after_backward = [&](Trainer& trainer, Module&) { call(variant.after_backward, trainer); },
      .on_before_optimizer_step = [&](Trainer& trainer, Module&,
                                      OptimizerHandle&) { call(variant.before_step, trainer); }}));
  if (variant.options) variant.options(options);
  options.graph = graph;
  Trainer trainer(options);
  const int64_t examples = kBatch * kBatches;
  const at::Tensor x = at::arange(examples * 16, at::kFloat).reshape({examples, 16}).mul(0.7).sin();
  // Sorted in each batch, as lengths of sequences have to be.
  const at::Tensor lengths = (4 - at::arange(examples).remainder(kBatch) / 3).to(at::kLong);
  const at::Tensor y = at::arange(examples).remainder(3);
  Batch rows{{"x", x}, {"y", y}, {"lengths", lengths}};
  // Shorter in the second half of each epoch.
  std::vector<std::string> names(examples / 2, "long name");
  names.resize(examples, "name");
  rows.set_texts("name", std::move(names));
  const DataLoader loader(std::make_shared<data::TensorDataset>(rows), {.batch_size = kBatch});
  FitOutcome outcome;
  testing::fit_into(outcome, trainer, module, loader, {});
  return outcome;
}

void expect_the_same_bits(const std::vector<Variant>& variants) {
  for (const Variant& variant : variants) {
    SCOPED_TRACE(variant.name);
    const FitOutcome ordinary = fit_variant(variant, false);
    const FitOutcome recorded = fit_variant(variant, true);
    testing::expect_same_outcome(ordinary, recorded);
    EXPECT_THAT(recorded.log, HasSubstr(variant.says));
    if (!variant.is_replayed) continue;
    EXPECT_THAT(recorded.log, HasSubstr("[graph] recorded the step of batch"));
    EXPECT_THAT(recorded.log, Not(HasSubstr("not recorded")));
  }
}

at::Tensor doubled_where(bool condition, const at::Tensor& loss) { return condition ? loss * 2 : loss; }

/// Squares numbers through pointers.
struct PointerSquare : torch::autograd::Function<PointerSquare> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    const at::Tensor values = x.contiguous();
    at::Tensor squares = at::empty_like(values);
    for (int64_t i = 0; i < values.numel(); ++i)
      squares.data_ptr<float>()[i] = values.data_ptr<float>()[i] * values.data_ptr<float>()[i];
    return squares;
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    return {2 * context->get_saved_variables()[0] * gradients[0]};
  }
};

constexpr const char* kPointer = "is read or written through a pointer";

TEST(RecordedStepVariants, ValuesReadThroughPointers) {
  expect_the_same_bits({
      {.name = "data_ptr of the loss",
       .change = [](VariantNet&, const at::Tensor& loss, const Batch&,
                    int64_t) { return doubled_where(loss.data_ptr<float>()[0] < 0.9F, loss); },
       .says = kPointer},
      {.name = "accessor of an activation",
       .change = [](VariantNet& net, const at::Tensor& loss, const Batch&,
                    int64_t) { return doubled_where(net.hidden.accessor<float, 2>()[0][0] > 0.3F, loss); },
       .says = "what aten::relu gave is read"},
      {.name = "accessor of a view",
       .change =
           [](VariantNet& net, const at::Tensor& loss, const Batch&, int64_t) {
             const at::Tensor row = net.hidden.select(0, 3);
             return doubled_where(row.accessor<float, 1>()[2] > 0.3F, loss);
           },
       .says = kPointer},
      {.name = "packed accessor",
       .change = [](VariantNet& net, const at::Tensor& loss, const Batch&,
                    int64_t) { return doubled_where(net.hidden.packed_accessor64<float, 2>()[1][1] > 0.3F, loss); },
       .says = kPointer},
      {.name = "a copy to a vector",
       .change =
           [](VariantNet& net, const at::Tensor& loss, const Batch&, int64_t) {
             const at::Tensor means = net.hidden.detach().mean(1);
             const std::vector<float> values(means.data_ptr<float>(), means.data_ptr<float>() + means.numel());
             return doubled_where(values[0] > values[1], loss);
           },
       .says = "what aten::mean.dim gave"},
      {.name = "memcpy of untyped memory",
       .change =
           [](VariantNet&, const at::Tensor& loss, const Batch&, int64_t) {
             float value = 0;
             std::memcpy(&value, loss.data_ptr(), sizeof value);
             return doubled_where(value < 0.9F, loss);
           },
       .says = kPointer},
      {.name = "memory of the storage",
       .change =
           [](VariantNet&, const at::Tensor& loss, const Batch&, int64_t) {
             return doubled_where(*static_cast<const float*>(loss.storage().mutable_data()) < 0.9F, loss);
           },
       .says = kPointer},
      {.name = "data_ptr of the batch",
       .change = [](VariantNet&, const at::Tensor& loss, const Batch& batch,
                    int64_t) { return doubled_where(batch["x"].data_ptr<float>()[5] > 0, loss); },
       .says = "a tensor of the batch is read"},
      {.name = "accessor of labels",
       .change = [](VariantNet&, const at::Tensor& loss, const Batch& batch,
                    int64_t) { return doubled_where(batch["y"].accessor<int64_t, 1>()[1] == 2, loss); },
       .says = "a tensor of the batch is read"},
      {.name = "labels that no operator uses",
       .change = [](VariantNet&, const at::Tensor& loss, const Batch& batch,
                    int64_t) { return doubled_where(batch["lengths"].accessor<int64_t, 1>()[4] == 3, loss); },
       .says = "a tensor of the batch is read"},
      {.name = "data_ptr of a weight",
       .change = [](VariantNet& net, const at::Tensor& loss, const Batch&,
                    int64_t) { return doubled_where(net.first->weight.data_ptr<float>()[0] > 0.1F, loss); },
       .says = kPointer},
      {.name = "data_ptr of a buffer that no operator uses",
       .change = [](VariantNet& net, const at::Tensor& loss, const Batch&,
                    int64_t) { return doubled_where(net.table.data_ptr<float>()[2] > 10, loss); },
       .after_batch = [](VariantNet& net, Trainer&) { net.table.add_(0.3); },
       .says = "a tensor that was there before the step is read"},
      {.name = "a counter in a buffer",
       .change =
           [](VariantNet& net, const at::Tensor& loss, const Batch&, int64_t) {
             net.table.data_ptr<float>()[0] += 1;
             return loss + net.table.sum() * 0.001;
           },
       .says = kPointer},
      {.name = "a counter that is no buffer",
       .change =
           [](VariantNet& net, const at::Tensor& loss, const Batch&, int64_t) {
             const at::Tensor used = loss * net.scale;
             net.scale.data_ptr<float>()[0] += 0.01F;
             return used;
           },
       .says = kPointer},
      {.name = "a batch that is written",
       .change =
           [](VariantNet&, const at::Tensor& loss, const Batch& batch, int64_t) {
             batch["x"].data_ptr<float>()[0] = 0;
             return loss + batch["x"].sum() * 0.001;
           },
       .says = kPointer},
      {.name = "a function of its own over pointers",
       .change = [](VariantNet& net, const at::Tensor& loss, const Batch&,
                    int64_t) { return loss + PointerSquare::apply(net.hidden).mean(); },
       .says = kPointer},
      {.name = "a gradient while clipping",
       .clip =
           [](VariantNet& net) {
             if (net.second->bias.grad().data_ptr<float>()[0] > 0) net.second->bias.mutable_grad().mul_(0.5);
           },
       .options = [](TrainerOptions& options) { options.gradient_clip_val = 1; },
       .says = kPointer},
  });
}

TEST(RecordedStepVariants, NumbersThatTheHostWrites) {
  expect_the_same_bits({
      {.name = "constants in empty memory",
       .change =
           [](VariantNet&, const at::Tensor& loss, const Batch&, int64_t) {
             const at::Tensor factor = at::empty({2});
             factor.data_ptr<float>()[0] = 0.25F;
             factor.accessor<float, 1>()[1] = 0.5F;
             return loss * factor.sum();
           },
       .is_replayed = true},
      {.name = "constants in zeros",
       .change =
           [](VariantNet& net, const at::Tensor& loss, const Batch&, int64_t) {
             const at::Tensor mask = at::zeros({8});
             const at::Tensor rows = mask.view({2, 4});
             rows.accessor<float, 2>()[1][1] = 1;
             return loss + (net.hidden * mask).mean();
           },
       .is_replayed = true},
      {.name = "a changing number in zeros",
       .change =
           [](VariantNet&, const at::Tensor& loss, const Batch&, int64_t batch_idx) {
             const at::Tensor factor = at::zeros({1});
             factor.data_ptr<float>()[0] = 1.0F + static_cast<float>(batch_idx);
             return loss * factor.sum();
           },
       .says = "a tensor that the host writes"},
      {.name = "a value read and written elsewhere",
       .change =
           [](VariantNet&, const at::Tensor& loss, const Batch&, int64_t) {
             const at::Tensor copy = at::empty({1});
             copy.mutable_data_ptr<float>()[0] = loss.const_data_ptr<float>()[0];
             return loss * copy.sum();
           },
       .says = "a tensor that the host writes"},
      {.name = "a value as an argument",
       .change = [](VariantNet&, const at::Tensor& loss, const Batch&,
                    int64_t) { return loss * static_cast<double>(loss.const_data_ptr<float>()[0]); },
       .says = "changes from step to step"},
  });
}

at::Tensor packed(const at::Tensor& x, const at::Tensor& lengths) {
  return torch::nn::utils::rnn::pack_padded_sequence(x.view({-1, 4, 4}), lengths, /*batch_first=*/true).data().sum();
}

TEST(RecordedStepVariants, ValuesThatOperatorsLookAt) {
  const auto with = [](const char* name, const char* says, const ChangeLoss& change, bool is_replayed = false) {
    return Variant{.name = name, .change = change, .says = says, .is_replayed = is_replayed};
  };
  const auto of = [&](const char* name, const char* says,
                      const std::function<at::Tensor(const at::Tensor& hidden, const Batch&)>& change,
                      bool is_replayed = false) {
    return with(
        name, says,
        [change](VariantNet& net, const at::Tensor& loss, const Batch& batch, int64_t) {
          return loss + 0.1 * change(net.hidden, batch);
        },
        is_replayed);
  };
  expect_the_same_bits({
      with("item", "aten::_local_scalar_dense",
           [](VariantNet&, const at::Tensor& loss, const Batch&, int64_t) {
             return doubled_where(loss.item<float>() < 0.9F, loss);
           }),
      with("a condition", "aten::_local_scalar_dense",
           [](VariantNet&, const at::Tensor& loss, const Batch&, int64_t) {
             return doubled_where((loss < 0.9).item<bool>(), loss);
           }),
      with("is_nonzero", "aten::_local_scalar_dense",
           [](VariantNet&, const at::Tensor& loss, const Batch&, int64_t) {
             return doubled_where(at::is_nonzero((loss < 0.9).to(at::kInt)), loss);
           }),
      with("equal", "aten::equal",
           [](VariantNet& net, const at::Tensor& loss, const Batch&, int64_t) {
             return doubled_where(at::equal(net.hidden, net.hidden.clone()), loss);
           }),
      with("allclose", "cannot be recorded",
           [](VariantNet&, const at::Tensor& loss, const Batch&, int64_t) {
             return doubled_where(at::allclose(loss, at::full({}, 0.9), 0.1), loss);
           }),
      of("tensor_split at places of a tensor", "aten::tensor_split.tensor_indices_or_sections cannot be recorded",
         [](const at::Tensor& hidden, const Batch& batch) {
           return hidden.tensor_split(batch["lengths"].slice(0, 0, 1), 1)[0].mean();
         }),
      of("tensor_split into sections of a tensor", "aten::tensor_split.tensor_indices_or_sections cannot be recorded",
         [](const at::Tensor& hidden, const Batch& batch) {
           return hidden.tensor_split(batch["y"].max(), 1)[0].mean();
         }),
      of(
          "tensor_split by numbers", "",
          [](const at::Tensor& hidden, const Batch&) {
            return hidden.tensor_split({2, 5}, 1)[1].mean();
          },
          true),
      of("narrow by a tensor", "cannot be recorded",
         [](const at::Tensor& hidden, const Batch& batch) {
           return at::narrow(hidden, 1, batch["y"].select(0, 0), 2).mean();
         }),
      of(
          "index_select", "",
          [](const at::Tensor& hidden, const Batch& batch) { return hidden.index_select(1, batch["y"]).mean(); }, true),
      of("indexing by a mask", "aten::index.Tensor cannot be recorded",
         [](const at::Tensor& hidden, const Batch&) { return hidden.index({hidden > 0.5}).sum(); }),
      of("masked_select", "aten::masked_select",
         [](const at::Tensor& hidden, const Batch&) { return hidden.masked_select(hidden > 0.5).sum(); }),
      of(
          "masked_fill", "",
          [](const at::Tensor& hidden, const Batch&) { return hidden.masked_fill(hidden > 0.5, 0).sum(); }, true),
      of("nonzero", "aten::nonzero",
         [](const at::Tensor& hidden, const Batch&) { return hidden.sum() * hidden.nonzero().size(0); }),
      of("unique", "cannot be recorded",
         [](const at::Tensor& hidden, const Batch& batch) {
           return hidden.sum() * std::get<0>(at::_unique(batch["y"])).size(0);
         }),
      of("bincount", "aten::bincount",
         [](const at::Tensor& hidden, const Batch& batch) {
           return hidden.sum() * at::bincount(batch["y"]).select(0, 0);
         }),
      of("repeat_interleave", "cannot be recorded",
         [](const at::Tensor& hidden, const Batch& batch) {
           return hidden.repeat_interleave(batch["lengths"], 0).mean();
         }),
      of("one_hot of as many classes as there are", "cannot be recorded",
         [](const at::Tensor& hidden, const Batch& batch) { return hidden.sum() * at::one_hot(batch["y"]).sum(); }),
      of(
          "one_hot", "",
          [](const at::Tensor& hidden, const Batch& batch) {
            return (hidden.slice(1, 0, 3) * at::zeros({kBatch, 3}).scatter(1, batch["y"].unsqueeze(1), 1)).sum();
          },
          true),
      of("a packed sequence", "aten::_pack_padded_sequence cannot be recorded",
         [](const at::Tensor& hidden, const Batch& batch) {
           return hidden.sum() * packed(batch["x"], batch["lengths"]);
         }),
      of("lengths of a CTC loss", "aten::ctc_loss.Tensor cannot be recorded",
         [](const at::Tensor& hidden, const Batch& batch) {
           const at::Tensor scores = hidden.unsqueeze(0).expand({4, kBatch, 8}).log_softmax(2);
           return at::ctc_loss(scores, batch["y"].unsqueeze(1) + 1, batch["lengths"], at::ones({kBatch}, at::kLong));
         }),
      of("quantile", "cannot be recorded",
         [](const at::Tensor& hidden, const Batch& batch) {
           return hidden.sum() * at::quantile(batch["x"], at::full({1}, 0.5));
         }),
  });
}

TEST(RecordedStepVariants, GeneratorsOfTheUser) {
  const auto noise = [](const at::Generator& generator) { return at::randn({8}, generator) * 0.1; };
  expect_the_same_bits({
      {.name = "rand",
       .change = [&](VariantNet& net, const at::Tensor& loss, const Batch&,
                     int64_t) { return loss + (net.hidden * noise(net.generator)).mean(); },
       .is_replayed = true},
      {.name = "in place, and a mask",
       .change =
           [](VariantNet& net, const at::Tensor& loss, const Batch&, int64_t) {
             const at::Tensor drawn = at::empty({8}).uniform_(0, 1, net.generator);
             return loss + (net.hidden * drawn * at::full({8}, 0.5).bernoulli(net.generator)).mean();
           },
       .is_replayed = true},
      {.name = "randperm",
       .change =
           [](VariantNet& net, const at::Tensor& loss, const Batch&, int64_t) {
             return loss + net.hidden.index_select(0, at::randperm(kBatch, net.generator)).slice(0, 0, 2).mean();
           },
       .is_replayed = true},
      {.name = "two generators beside the thread's",
       .change =
           [&](VariantNet& net, const at::Tensor& loss, const Batch&, int64_t) {
             return loss + (net.hidden * noise(net.generator) + noise(net.other_generator) * at::rand({8})).mean();
           },
       .is_replayed = true},
      {.name = "drawn in backward too",
       .change =
           [](VariantNet& net, const at::Tensor& loss, const Batch&, int64_t) {
             const at::Generator generator = net.generator;
             net.hidden.register_hook(
                 [generator](const at::Tensor& gradient) { return gradient + at::randn(8, generator) * 0.01; });
             return loss + net.hidden.mean();
           },
       .is_replayed = true},
      {.name = "a hook that has a mask of the step",
       .change =
           [](VariantNet& net, const at::Tensor& loss, const Batch&, int64_t) {
             const at::Tensor mask = net.hidden.detach().gt(0).to(net.hidden.scalar_type());
             net.hidden.register_hook([mask](const at::Tensor& gradient) { return gradient * mask; });
             return loss;
           },
       .is_replayed = true},
      {.name = "a hook that has a result with its graph",
       .change =
           [](VariantNet& net, const at::Tensor& loss, const Batch&, int64_t) {
             const at::Tensor scale = net.hidden.sigmoid();
             const at::Tensor sum = loss + (scale * net.hidden).mean();
             sum.register_hook([scale](const at::Tensor& gradient) { return gradient * scale.detach().mean(); });
             return sum;
           },
       .is_replayed = true},
      {.name = "callbacks draw from it",
       .change = [&](VariantNet& net, const at::Tensor& loss, const Batch&,
                     int64_t) { return loss + (net.hidden * noise(net.generator)).mean(); },
       .before_backward = [](VariantNet& net, Trainer&) { at::randn({3}, net.generator); },
       .after_batch = [](VariantNet& net, Trainer&) { at::randn({5}, net.generator); },
       .is_replayed = true},
      {.name = "seeded by a callback",
       .change = [&](VariantNet& net, const at::Tensor& loss, const Batch&,
                     int64_t) { return loss + (net.hidden * noise(net.generator)).mean(); },
       .before_batch =
           [](VariantNet& net, Trainer& trainer) {
             net.generator.set_current_seed(static_cast<uint64_t>(trainer.global_step()));
           },
       .is_replayed = true},
      {.name = "seeded in each step",
       .change =
           [&](VariantNet& net, const at::Tensor& loss, const Batch&, int64_t batch_idx) {
             net.generator.set_current_seed(static_cast<uint64_t>(batch_idx));
             return loss + (net.hidden * noise(net.generator)).mean();
           },
       .says = "not recorded"},
      {.name = "seeded alike in each step",
       .change =
           [&](VariantNet& net, const at::Tensor& loss, const Batch&, int64_t) {
             net.generator.set_current_seed(3);
             return loss + (net.hidden * noise(net.generator)).mean();
           },
       .says = "not recorded"},
      {.name = "made in each step",
       .change =
           [&](VariantNet& net, const at::Tensor& loss, const Batch&, int64_t batch_idx) {
             return loss + (net.hidden * noise(at::make_generator<at::CPUGeneratorImpl>(batch_idx))).mean();
           },
       .says = "not recorded"},
      {.name = "replaced by another one",
       .change = [&](VariantNet& net, const at::Tensor& loss, const Batch&,
                     int64_t) { return loss + (net.hidden * noise(net.generator)).mean(); },
       .before_batch =
           [](VariantNet& net, Trainer& trainer) {
             if (trainer.global_step() == 11) net.generator = at::make_generator<at::CPUGeneratorImpl>(77);
           },
       .says = "a tensor or generator that the step uses changed",
       .is_replayed = true},
      {.name = "replaced by another one, recorded by place in a window",
       .change = [&](VariantNet& net, const at::Tensor& loss, const Batch&,
                     int64_t) { return loss + (net.hidden * noise(net.generator)).mean(); },
       .before_batch =
           [](VariantNet& net, Trainer& trainer) {
             if (trainer.total_batches() == 27) net.generator = at::make_generator<at::CPUGeneratorImpl>(77);
           },
       .options = [](TrainerOptions& options) { options.accumulate_grad_batches = 2; },
       .says = "a tensor or generator that the step uses changed",
       .is_replayed = true},
      {.name = "the host draws from it too",
       .change =
           [&](VariantNet& net, const at::Tensor& loss, const Batch&, int64_t) {
             net.generator.get<at::CPUGeneratorImpl>()->random();
             return loss + (net.hidden * noise(net.generator)).mean();
           },
       .says = "random numbers are drawn in another way"},
  });
}

/// At the batch of this number, from 0, in the whole run.
AtStep at_batch(int64_t number, const std::function<void(VariantNet&)>& change) {
  return [=](VariantNet& net, Trainer& trainer) {
    if (trainer.global_step() == number) change(net);
  };
}

struct HalfGradient final : torch::autograd::FunctionPostHook {
  explicit HalfGradient(at::Tensor of) : parameter(std::move(of)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    const at::NoGradGuard no_grad;
    parameter.mutable_grad().mul_(0.5);
    return outputs;
  }
  at::Tensor parameter;
};

const auto kHalfHook = [](const at::Tensor& gradient) { return gradient * 0.5; };

TEST(RecordedStepVariants, WhatCallbacksChangeInsideOfAnEpoch) {
  std::shared_ptr<torch::autograd::Node> accumulator;
  const ChangeLoss with_square = [](VariantNet& net, const at::Tensor& loss, const Batch&, int64_t) {
    return loss + F::linear(net.hidden, net.named_parameters()["square.weight"]).square().mean();
  };
  expect_the_same_bits({
      {.name = "a hook of a parameter",
       .before_batch = at_batch(11, [](VariantNet& net) { net.first->weight.register_hook(kHalfHook); }),
       .says = "a hook of a parameter changed"},
      {.name = "a hook of a bias, after a batch",
       .after_batch = at_batch(12, [](VariantNet& net) { net.second->bias.register_hook(kHalfHook); }),
       .says = "a hook of a parameter changed"},
      {.name = "a hook that is taken away",
       .before_batch =
           [](VariantNet& net, Trainer& trainer) {
             if (trainer.global_step() == 11) net.hook = net.first->weight.register_hook(kHalfHook);
             if (trainer.global_step() == 13) net.first->weight.remove_hook(net.hook);
           },
       .says = "a hook of a parameter changed"},
      {.name = "a hook that was there before",
       .set_up = [](VariantNet& net) { net.first->weight.register_hook(kHalfHook); },
       .says = "the parameter 'first.weight' has a hook"},
      {.name = "a hook of a gradient's accumulator",
       .before_batch = at_batch(11,
                                [&](VariantNet& net) {
                                  accumulator = torch::autograd::impl::grad_accumulator(net.first->weight);
                                  accumulator->add_post_hook(std::make_unique<HalfGradient>(net.first->weight));
                                }),
       .says = "a hook of a parameter changed"},
      {.name = "the probability of dropout",
       .before_batch = at_batch(11, [](VariantNet& net) { net.dropout->options.p(0.6); }),
       .says = "a number in the options of a module changed",
       .is_replayed = true},
      {.name = "the momentum of a batch norm",
       .before_batch = at_batch(11, [](VariantNet& net) { net.norm->options.momentum(0.5); }),
       .says = "a number in the options of a module changed",
       .is_replayed = true},
      {.name = "the momentum of a batch norm, to none",
       .before_batch = at_batch(11, [](VariantNet& net) { net.norm->options.momentum(std::nullopt); }),
       .says = "a number in the options of a module changed"},
      {.name = "what a batch norm adds to the variance",
       .before_batch = at_batch(11, [](VariantNet& net) { net.norm->options.eps(0.5); }),
       .says = "a number in the options of a module changed",
       .is_replayed = true},
      {.name = "dropout between the layers of an LSTM",
       .change =
           [](VariantNet& net, const at::Tensor& loss, const Batch& batch, int64_t) {
             return loss + std::get<0>(net.lstm(batch["x"].view({-1, 4, 4}))).square().mean();
           },
       .set_up =
           [](VariantNet& net) {
             net.lstm =
                 net.register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(4, 5).num_layers(2).dropout(0.3)));
           },
       .before_batch = at_batch(11, [](VariantNet& net) { net.lstm->options.dropout(0.8); }),
       .says = "a number in the options of a module changed",
       .is_replayed = true},
      {.name = "dropout of attention",
       .change =
           [](VariantNet& net, const at::Tensor& loss, const Batch& batch, int64_t) {
             const at::Tensor x = batch["x"].view({-1, 4, 4});
             return loss + std::get<0>(net.attention(x, x, x)).square().mean();
           },
       .set_up =
           [](VariantNet& net) {
             net.attention = net.register_module(
                 "attention", torch::nn::MultiheadAttention(torch::nn::MultiheadAttentionOptions(4, 2).dropout(0.3)));
           },
       .before_batch = at_batch(11, [](VariantNet& net) { net.attention->options.dropout(0.8); }),
       .says = "a number in the options of a module changed",
       .is_replayed = true},
      {.name = "another tensor in a member",
       .change = [](VariantNet& net, const at::Tensor& loss, const Batch&, int64_t) { return loss * net.scale; },
       .before_batch = at_batch(11, [](VariantNet& net) { net.scale = at::full({}, 3.0); }),
       .says = "a tensor or generator that the step uses changed",
       .is_replayed = true},
      {.name = "another tensor in a member, recorded by place in a window",
       .change = [](VariantNet& net, const at::Tensor& loss, const Batch&, int64_t) { return loss * net.scale; },
       .before_batch =
           [](VariantNet& net, Trainer& trainer) {
             if (trainer.total_batches() == 27) net.scale = at::full({}, 3.0);
           },
       .options = [](TrainerOptions& options) { options.accumulate_grad_batches = 2; },
       .says = "a tensor or generator that the step uses changed",
       .is_replayed = true},
      {.name = "a member in place",
       .change = [](VariantNet& net, const at::Tensor& loss, const Batch&, int64_t) { return loss * net.scale; },
       .before_batch = at_batch(11, [](VariantNet& net) { net.scale.fill_(3); }),
       .is_replayed = true},
      {.name = "a member through a pointer",
       .change = [](VariantNet& net, const at::Tensor& loss, const Batch&, int64_t) { return loss * net.scale; },
       .before_batch = at_batch(11, [](VariantNet& net) { *net.scale.data_ptr<float>() = 3; }),
       .is_replayed = true},
      {.name = "weights in each step",
       .after_batch =
           [](VariantNet& net, Trainer&) {
             const at::NoGradGuard no_grad;
             net.first->weight.clamp_(-0.2, 0.2);
           },
       .is_replayed = true},
      {.name = "other memory of a weight",
       .before_batch = at_batch(11, [](VariantNet& net) { net.first->weight.set_data(net.first->weight * 0.5); }),
       .says = "parameters or buffers changed",
       .is_replayed = true},
      {.name = "a weight that is transposed",
       .change = with_square,
       .set_up = [](VariantNet& net) { net.register_module("square", torch::nn::Linear(8, 8)); },
       .before_batch = at_batch(11,
                                [](VariantNet& net) {
                                  at::Tensor weight = net.named_parameters()["square.weight"];
                                  weight.set_data(weight.detach().t());
                                }),
       .says = "parameters or buffers changed"},
      {.name = "a part of a buffer",
       .change = [](VariantNet& net, const at::Tensor& loss, const Batch&,
                    int64_t) { return loss * (1 + net.table.mean()); },
       .before_batch = at_batch(11, [](VariantNet& net) { net.table.set_data(net.table.slice(0, 0, 4)); }),
       .says = "parameters or buffers changed",
       .is_replayed = true},
      {.name = "a frozen weight",
       .before_batch = at_batch(11, [](VariantNet& net) { net.first->weight.set_requires_grad(false); }),
       .says = "parameters or buffers changed"},
      {.name = "a part in evaluation",
       .before_batch = at_batch(11, [](VariantNet& net) { net.norm->eval(); }),
       .says = "the training mode of a part changed",
       .is_replayed = true},
      {.name = "the learning rate",
       .before_batch =
           [](VariantNet&, Trainer& trainer) {
             if (trainer.global_step() == 11)
               for (auto& group : trainer.optimizers().front()->optimizer().param_groups())
                 group.options().set_lr(0.001);
           },
       .is_replayed = true},
      {.name = "the weight decay",
       .before_batch =
           [](VariantNet&, Trainer& trainer) {
             if (trainer.global_step() != 11) return;
             auto& options = trainer.optimizers().front()->optimizer().param_groups()[0].options();
             dynamic_cast<optim::GroupOptions<optim::AdamWOptions>&>(options).values.weight_decay = 0.5;
           },
       .says = "the optimizer's parameters, state or options changed",
       .is_replayed = true},
      {.name = "a flag of the host and a buffer",
       .change = [](VariantNet& net, const at::Tensor& loss, const Batch&,
                    int64_t) { return net.flag ? loss * 0.5 + net.table.mean() : loss; },
       .before_batch = at_batch(33,
                                [](VariantNet& net) {
                                  net.flag = true;
                                  net.table.mul_(2);
                                }),
       .says = "not recorded"},
  });
}

void clear(const at::Tensor& parameter) { parameter.mutable_grad().reset(); }

void clear_all(VariantNet& net) {
  for (const auto& parameter : net.parameters()) clear(parameter);
}

/// Every few steps, at ordinary, recorded, compared and replayed ones.
AtStep now_and_then(const std::function<void(VariantNet&)>& change, int64_t offset = 0) {
  return [=](VariantNet& net, Trainer& trainer) {
    if (trainer.global_step() % 3 == offset) change(net);
  };
}

/// A module whose options a callback changes in mid-epoch, with what `loss` makes of it and of the hidden values.
template <class Holder>
Variant option_variant(const char* name, std::function<Holder()> make, std::function<void(Holder&)> change,
                       std::function<at::Tensor(Holder&, const at::Tensor& hidden, const at::Tensor& y)> loss) {
  const auto held = std::make_shared<Holder>(nullptr);
  return {.name = name,
          .change = [held, loss](VariantNet& net, const at::Tensor& of_net, const Batch& batch,
                                 int64_t) { return of_net + loss(*held, net.hidden, batch["y"]); },
          .set_up = [held, make](VariantNet& net) { *held = net.register_module("extra", make()); },
          .before_batch = at_batch(11, [held, change](VariantNet&) { change(*held); }),
          .says = "a number in the options of a module changed",
          .is_replayed = true};
}

template <class Holder>
Variant activation_variant(const char* name, std::function<Holder()> make, std::function<void(Holder&)> change) {
  return option_variant<Holder>(name, make, change, [](Holder& module, const at::Tensor& hidden, const at::Tensor&) {
    return module(hidden - 0.5).square().mean();
  });
}

TEST(RecordedStepVariants, NumbersInTheOptionsOfModules) {
  namespace nn = torch::nn;
  const auto classes = [](auto& module, const at::Tensor& hidden, const at::Tensor& y) -> at::Tensor {
    return module(hidden.narrow(1, 0, 3), y);
  };
  const auto halves = [](auto& module, const at::Tensor& hidden, const at::Tensor&) -> at::Tensor {
    return module(hidden.narrow(1, 0, 4), hidden.narrow(1, 4, 4)).mean();
  };
  expect_the_same_bits({
      activation_variant<nn::LeakyReLU>(
          "the slope of a leaky ReLU", [] { return nn::LeakyReLU(); },
          [](auto& module) { module->options.negative_slope(0.4); }),
      activation_variant<nn::ELU>(
          "alpha of an ELU", [] { return nn::ELU(); }, [](auto& module) { module->options.alpha(0.3); }),
      activation_variant<nn::CELU>(
          "alpha of a CELU", [] { return nn::CELU(); }, [](auto& module) { module->options.alpha(0.3); }),
      activation_variant<nn::Softplus>(
          "beta of a softplus", [] { return nn::Softplus(); }, [](auto& module) { module->options.beta(3); }),
      activation_variant<nn::Softshrink>(
          "lambda of a soft shrinkage", [] { return nn::Softshrink(); },
          [](auto& module) { module->options.lambda(0.1); }),
      activation_variant<nn::Hardshrink>(
          "lambda of a hard shrinkage", [] { return nn::Hardshrink(); },
          [](auto& module) { module->options.lambda(0.1); }),
      activation_variant<nn::Threshold>(
          "the value of a threshold", [] { return nn::Threshold(0.1, 0.2); },
          [](auto& module) { module->options.value(0.7); }),
      activation_variant<nn::Hardtanh>(
          "the bounds of a hard tanh", [] { return nn::Hardtanh(); },
          [](auto& module) { module->options.max_val(0.2); }),
      activation_variant<nn::LayerNorm>(
          "eps of a layer norm", [] { return nn::LayerNorm(nn::LayerNormOptions({8})); },
          [](auto& module) { module->options.eps(0.5); }),
      activation_variant<nn::GroupNorm>(
          "eps of a group norm", [] { return nn::GroupNorm(2, 8); }, [](auto& module) { module->options.eps(0.5); }),
      option_variant<nn::CrossEntropyLoss>(
          "label smoothing", [] { return nn::CrossEntropyLoss(); },
          [](auto& module) { module->options.label_smoothing(0.3); }, classes),
      option_variant<nn::MultiMarginLoss>(
          "a margin", [] { return nn::MultiMarginLoss(); }, [](auto& module) { module->options.margin(0.3); }, classes),
      option_variant<nn::HuberLoss>(
          "delta of a Huber loss", [] { return nn::HuberLoss(); }, [](auto& module) { module->options.delta(0.1); },
          halves),
      option_variant<nn::SmoothL1Loss>(
          "beta of a smooth L1 loss", [] { return nn::SmoothL1Loss(); },
          [](auto& module) { module->options.beta(0.1); }, halves),
      option_variant<nn::PairwiseDistance>(
          "the power of a distance", [] { return nn::PairwiseDistance(); }, [](auto& module) { module->options.p(1); },
          halves),
      option_variant<nn::LPPool1d>(
          "the power of a pooling", [] { return nn::LPPool1d(nn::LPPool1dOptions(2, 2)); },
          [](auto& module) { module->options.norm_type(3); },
          [](auto& module, const at::Tensor& hidden, const at::Tensor&) { return module(hidden + 0.1).mean(); }),
      activation_variant<nn::ConstantPad1d>(
          "the value of a padding", [] { return nn::ConstantPad1d(nn::ConstantPad1dOptions(1, 0.5)); },
          [](auto& module) { module->options.value(2); }),
      activation_variant<nn::Softmax>(
          "the dimension of a softmax", [] { return nn::Softmax(1); }, [](auto& module) { module->options.dim(0); }),
      option_variant<nn::Embedding>(
          "the largest norm of an embedding", [] { return nn::Embedding(3, 8); },
          [](auto& module) { module->options.max_norm(0.5); },
          [](auto& module, const at::Tensor& hidden, const at::Tensor& y) {
            return (module(y) * hidden).square().mean();
          }),
      option_variant<nn::CosineSimilarity>(
          "eps of a cosine", [] { return nn::CosineSimilarity(); }, [](auto& module) { module->options.eps(5); },
          halves),
  });
}

TEST(RecordedStepVariants, HooksThatClearGradients) {
  const auto in_windows = [](TrainerOptions& options) { options.accumulate_grad_batches = 2; };
  const auto clips = [](TrainerOptions& options) { options.gradient_clip_val = 0.5; };
  const auto in_half = [](TrainerOptions& options) { options.precision = "16-mixed"; };
  const auto first_only = [](VariantNet& net) { clear(net.first->weight); };
  const auto replace = [](VariantNet& net, Trainer&) {
    for (const auto& parameter : net.parameters()) parameter.mutable_grad() = parameter.grad() * 0.5;
  };
  const auto guard = [](VariantNet& net, Trainer&) {
    for (const auto& parameter : net.parameters())
      if (parameter.grad().defined() && parameter.grad().abs().max().item<float>() > 0.25F) clear(parameter);
  };
  std::vector<Variant> variants = {
      {.name = "a guard", .after_backward = guard},
      {.name = "a guard before the update", .before_step = guard},
      {.name = "a guard, and clipping", .after_backward = guard, .options = clips},
      {.name = "a guard in 16-mixed", .after_backward = guard, .options = in_half},
      {.name = "a guard in windows", .after_backward = guard, .options = in_windows},
      {.name = "in each step",
       .after_backward = [](VariantNet& net, Trainer&) { clear(net.first->weight); },
       .says = "hooks take gradients away in step after step"},
      {.name = "a gradient for a parameter without one",
       .set_up = [](VariantNet& net) { net.register_parameter("unused", at::ones({2})); },
       .before_step =
           now_and_then([](VariantNet& net) { net.named_parameters(false)["unused"].mutable_grad() = at::ones({2}); })},
      {.name = "others in their place", .before_step = replace},
      {.name = "others in their place, and clipping", .after_backward = replace, .options = clips},
      {.name = "others in their place in windows", .after_backward = replace, .options = in_windows},
      {.name = "zeros",
       .after_backward = now_and_then([](VariantNet& net) {
         for (const auto& parameter : net.parameters()) parameter.mutable_grad().zero_();
       }),
       .is_replayed = true},
      {.name = "before a backward that adds to them",
       .before_backward = now_and_then(clear_all),
       .options = in_windows},
  };
  for (const int64_t offset : {0, 1, 2}) {
    variants.push_back({.name = "all", .after_backward = now_and_then(clear_all, offset), .is_replayed = true});
    variants.push_back({.name = "one", .after_backward = now_and_then(first_only, offset), .is_replayed = true});
    variants.push_back(
        {.name = "one, before the update", .before_step = now_and_then(first_only, offset), .is_replayed = true});
    variants.push_back({.name = "one, and clipping",
                        .after_backward = now_and_then(first_only, offset),
                        .options = clips,
                        .is_replayed = true});
    variants.push_back({.name = "one, before the update, and clipping",
                        .before_step = now_and_then(first_only, offset),
                        .options = clips,
                        .is_replayed = true});
    variants.push_back(
        {.name = "one in 16-mixed", .after_backward = now_and_then(first_only, offset), .options = in_half});
    variants.push_back({.name = "one before the update in 16-mixed",
                        .before_step = now_and_then(first_only, offset),
                        .options = in_half});
    variants.push_back(
        {.name = "one in windows", .after_backward = now_and_then(first_only, offset), .options = in_windows});
  }
  expect_the_same_bits(variants);
}

TEST(RecordedStepVariants, BatchesThatAreMoreThanMemory) {
  const auto with = [](const char* name, const auto& make) {
    return [name, make](VariantNet& net, Batch batch) {
      batch.set(name, make(net, batch));
      return batch;
    };
  };
  const auto adds = [](const char* name) {
    return [name](VariantNet&, const at::Tensor& loss, const Batch& batch, int64_t) {
      return loss + 0.1 * at::real(batch[name]).mean();
    };
  };
  const ChangeLoss penalty = [](VariantNet& net, const at::Tensor& loss, const Batch& batch, int64_t) {
    if (!batch["x"].requires_grad()) return loss;
    const at::Tensor found = net.second(net.first(batch["x"]).tanh()).sum();
    return loss + torch::autograd::grad({found}, {batch["x"]}, {}, true, true)[0].square().mean();
  };
  expect_the_same_bits({
      {.name = "texts that no step reads", .is_replayed = true},
      {.name = "a branch on a text",
       .change = [](VariantNet&, const at::Tensor& loss, const Batch& batch,
                    int64_t) { return doubled_where(batch.texts("name").front() == "name", loss); },
       .says = "reading the texts 'name' of the batch cannot be recorded"},
      {.name = "texts of a part",
       .change = [](VariantNet&, const at::Tensor& loss, const Batch& batch,
                    int64_t) { return doubled_where(batch.part("a").texts("b").front() == "name", loss); },
       .transfer =
           [](VariantNet&, Batch batch) {
             batch.set_texts("a.b", batch.texts("name"));
             return batch;
           },
       .says = "cannot be recorded"},
      {.name = "a gradient of the batch",
       .change = penalty,
       .transfer =
           [](VariantNet&, Batch batch) {
             batch["x"].requires_grad_(true);
             return batch;
           },
       .says = "'x' of the batch requires a gradient"},
      {.name = "a gradient of later batches",
       .change = penalty,
       .transfer =
           [](VariantNet& net, Batch batch) {
             if (++net.hook > 13) batch["x"].requires_grad_(true);
             return batch;
           },
       .says = "'x' of the batch requires a gradient"},
      {.name = "a batch that the module computes",
       .change = adds("hidden"),
       .transfer = with("hidden", [](VariantNet& net, const Batch& batch) { return net.first(batch["x"]).square(); }),
       .says = "'hidden' of the batch requires a gradient"},
      {.name = "a parameter in the batch",
       .change = adds("weight"),
       .transfer = with("weight", [](VariantNet& net, const Batch&) { return net.first->weight; }),
       .says = "'weight' of the batch requires a gradient"},
      {.name = "a buffer in the batch",
       .change = adds("table"),
       .transfer = with("table", [](VariantNet& net, const Batch&) { return net.table; }),
       .is_replayed = true},
      {.name = "conjugate numbers",
       .change = [](VariantNet&, const at::Tensor& loss, const Batch& batch,
                    int64_t) { return loss * at::imag(batch["z"] * 1).mean(); },
       .transfer =
           with("z", [](VariantNet&, const Batch& batch) { return at::complex(batch["x"], batch["x"] + 1).conj(); }),
       .says = "conjugated"},
      {.name = "negative numbers",
       .change = [](VariantNet&, const at::Tensor& loss, const Batch& batch,
                    int64_t) { return loss * batch["z"].mean(); },
       .transfer = with(
           "z",
           [](VariantNet&, const Batch& batch) { return at::imag(at::complex(batch["x"], batch["x"] + 1).conj()); }),
       .says = "negated"},
      {.name = "one tensor under two names",
       .change = [](VariantNet&, const at::Tensor& loss, const Batch& batch,
                    int64_t) { return doubled_where(batch["again"].is_same(batch["x"]), loss); },
       .transfer = with("again", [](VariantNet&, const Batch& batch) { return batch["x"]; }),
       .says = "'x' and 'again' of the batch share memory"},
      {.name = "two views of one memory",
       .change = [](VariantNet&, const at::Tensor& loss, const Batch& batch,
                    int64_t) { return doubled_where(batch["again"].is_alias_of(batch["x"]), loss); },
       .transfer = with("again", [](VariantNet&, const Batch& batch) { return batch["x"].t(); }),
       .says = "'x' and 'again' of the batch share memory"},
      {.name = "a gradient that the step asks for",
       .change =
           [](VariantNet& net, const at::Tensor& loss, const Batch& batch, int64_t) {
             at::Tensor x = batch["x"];
             x.requires_grad_(true);
             return loss + net.second(net.first(x).tanh()).square().mean();
           },
       .options =
           [](TrainerOptions& options) {
             options.callbacks.push_back(make<LambdaCallback>(LambdaCallbackOptions{
                 .on_train_batch_end = [](Trainer&, Module& module, const StepOutput&, const Batch& batch, int64_t) {
                   auto& table = dynamic_cast<VariantNet&>(module).table;
                   if (batch["x"].grad().defined()) table.add_(batch["x"].grad().sum());
                 }}));
           },
       .says = "training_step makes 'x' of the batch require a gradient"},
      {.name = "two parts of one memory that the step writes",
       .change =
           [](VariantNet&, const at::Tensor& loss, const Batch& batch, int64_t) {
             at::Tensor front = batch["front"];
             at::Tensor middle = batch["middle"];
             middle.mul_(1.5);
             front.add_(0.1);
             return loss * front.mean();
           },
       .transfer =
           [](VariantNet&, Batch batch) {
             const at::Tensor both = batch["x"].square();
             batch.set("front", both.slice(1, 0, 8));
             batch.set("middle", both.slice(1, 4, 12));
             return batch;
           },
       .says = "'front' and 'middle' of the batch share memory"},
      {.name = "memory that the step gives",
       .change =
           [](VariantNet&, const at::Tensor& loss, const Batch& batch, int64_t) {
             at::Tensor x = batch["x"];
             x.set_data(x * 2);
             return loss + x.mean();
           },
       .options =
           [](TrainerOptions& options) {
             options.callbacks.push_back(make<LambdaCallback>(LambdaCallbackOptions{
                 .on_train_batch_end = [](Trainer&, Module& module, const StepOutput&, const Batch& batch, int64_t) {
                   dynamic_cast<VariantNet&>(module).table.add_(batch["x"].mean());
                 }}));
           },
       .says = "training_step gives 'x' of the batch other memory"},
      {.name = "a shape that the step gives",
       .change =
           [](VariantNet&, const at::Tensor& loss, const Batch& batch, int64_t) {
             at::Tensor lengths = batch["lengths"];
             lengths.unsqueeze_(1);
             return loss;
           },
       .options =
           [](TrainerOptions& options) {
             options.callbacks.push_back(make<LambdaCallback>(LambdaCallbackOptions{
                 .on_train_batch_end = [](Trainer&, Module& module, const StepOutput&, const Batch& batch, int64_t) {
                   dynamic_cast<VariantNet&>(module).table.add_(batch["lengths"].dim());
                 }}));
           },
       .says = "training_step gives 'lengths' of the batch another shape"},
      {.name = "sparse numbers",
       .change = [](VariantNet& net, const at::Tensor& loss, const Batch& batch,
                    int64_t) { return loss + at::mm(batch["z"], net.first->weight.t()).mean(); },
       .transfer = with("z", [](VariantNet&, const Batch& batch) { return batch["x"].relu().to_sparse(); }),
       .says = "'z' of the batch is sparse"},
  });
}

/// Adds what was kept to the table, where there is something, and lets go of it.
void use_kept(VariantNet& net, Trainer&) {
  if (net.result.defined()) net.table.add_(net.result.detach().mean().to(at::kFloat), 0.1);
  net.result = at::Tensor();
}

TEST(RecordedStepVariants, ResultsThatAreKeptAndLetGoOf) {
  const auto keeps_loss = [](VariantNet& net, const at::Tensor& loss, const Batch&, int64_t) {
    net.result = loss.detach();
    return loss;
  };
  const auto keeps_same_loss = [](VariantNet& net, const at::Tensor& loss, const Batch&, int64_t) {
    return net.result = loss * 1;
  };
  const auto keeps_logged = [](VariantNet& net, const at::Tensor& loss, const Batch&, int64_t) {
    net.result = net.hidden.mean().detach();
    net.log("mean", net.result);
    return loss;
  };
  const auto keeps_hidden = [](VariantNet& net, const at::Tensor& loss, const Batch&, int64_t) {
    net.result = net.hidden.detach();
    return loss;
  };
  const auto accumulates = [](TrainerOptions& options) { options.accumulate_grad_batches = 4; };
  // A callback's own reference, which comes as the module's goes.
  const auto kept_loss = std::make_shared<at::Tensor>();
  const auto takes_loss = [kept_loss](TrainerOptions& options) {
    options.callbacks.push_back(make<LambdaCallback>(LambdaCallbackOptions{
        .on_before_backward = [kept_loss](Trainer&, Module&, const at::Tensor& loss) { *kept_loss = loss.detach(); }}));
  };
  expect_the_same_bits({
      {.name = "the loss", .change = keeps_loss, .after_batch = use_kept, .says = "something keeps what"},
      {.name = "the loss itself", .change = keeps_same_loss, .after_batch = use_kept, .says = "something keeps what"},
      {.name = "the loss, for the next batch",
       .change = keeps_loss,
       .before_batch = use_kept,
       .says = "something keeps what"},
      {.name = "a logged value", .change = keeps_logged, .after_batch = use_kept, .says = "something keeps what"},
      {.name = "in a window",
       .change = keeps_hidden,
       .after_backward = use_kept,
       .options = accumulates,
       .says = "something keeps what"},
      {.name = "while a callback takes the loss",
       .change = keeps_loss,
       .after_backward = use_kept,
       .options = takes_loss,
       .says = "something keeps what"},
  });
}

TEST(RecordedStepVariants, ABufferInTheBatchThatTheStepWritesTwice) {
  const Variant twice{.name = "twice",
                      .change =
                          [](VariantNet& net, const at::Tensor& loss, const Batch& batch, int64_t) {
                            at::Tensor table = batch["table"];
                            table.mul_(0.9);
                            net.table.add_(0.1);
                            return loss * (1 + net.table.mean());
                          },
                      .transfer =
                          [](VariantNet& net, Batch batch) {
                            batch.set("table", net.table);
                            return batch;
                          }};
  FitOutcome recorded = fit_variant(twice, true);
  const FitOutcome ordinary = fit_variant(twice, false);
  recorded.versions = ordinary.versions;  // the batch's tensor counts its changes by itself
  testing::expect_same_outcome(ordinary, recorded);
  EXPECT_THAT(recorded.log, HasSubstr("the step writes memory that two tensors share"));
}

TEST(RecordedStepVariants, ALoggedValueThatIsChangedInPlaceLater) {
  expect_the_same_bits({{.name = "a penalty",
                         .change =
                             [](VariantNet& net, at::Tensor loss, const Batch&, int64_t) {
                               loss = loss * 1;
                               net.log("cross_entropy", loss);
                               loss += net.hidden.mean();
                               return loss;
                             },
                         .is_replayed = true},
                        {.name = "a buffer",
                         .change =
                             [](VariantNet& net, const at::Tensor& loss, const Batch&, int64_t) {
                               const at::Tensor first = net.table.select(0, 0);
                               net.log("first", first);
                               net.table.mul_(0.9).add_(loss.detach());
                               return loss;
                             },
                         .is_replayed = true}});
}

TEST(RecordedStepVariants, WhatCallbacksKeepIsTheirs) {
  const auto losses = std::make_shared<std::vector<at::Tensor>>();
  expect_the_same_bits(
      {{.name = "losses and outputs",
        .options =
            [losses](TrainerOptions& options) {
              losses->clear();
              options.callbacks.push_back(make<LambdaCallback>(LambdaCallbackOptions{
                  .on_train_batch_end =
                      [losses](Trainer&, Module& module, const StepOutput& output, const Batch&, int64_t) {
                        if (losses->size() == 4) losses->clear();
                        for (const at::Tensor& loss : *losses)
                          dynamic_cast<VariantNet&>(module).table.add_(loss.detach(), 0.01);
                      },
                  .on_before_backward = [losses](Trainer&, Module&,
                                                 const at::Tensor& loss) { losses->push_back(loss.detach()); }}));
            },
        .is_replayed = true}});
}

TEST(RecordedStepVariants, MetricsThatKeepRows) {
  const auto values = std::make_shared<metrics::StackedValues>(
      metrics::StackedValuesOptions{.reduce = [](const at::Tensor& all) { return all.sum(); }});
  expect_the_same_bits({{.name = "computed and reset after each batch",
                         .change =
                             [values](VariantNet& net, const at::Tensor& loss, const Batch&, int64_t) {
                               values->update(net.hidden);
                               return loss;
                             },
                         .after_batch =
                             [values](VariantNet& net, Trainer&) {
                               net.table.add_(values->compute().to(at::kFloat), 0.01);
                               values->reset();
                             },
                         .says = "a metric that keeps rows of all updates"}});
}

TEST(RecordedStepVariants, WhatHooksChangeBetweenThePartsOfAStep) {
  const auto in_batch = [](int64_t batch, const AtStep& change) {
    return [=](VariantNet& net, Trainer& trainer) {
      if (trainer.global_step() == batch) change(net, trainer);
    };
  };
  const AtStep decays = [](VariantNet&, Trainer& trainer) {
    auto& options = trainer.optimizers().front()->optimizer().param_groups().front().options();
    dynamic_cast<optim::GroupOptions<optim::AdamWOptions>&>(options).values.weight_decay = 0.5;
  };
  const AtStep moves = [](VariantNet& net, Trainer&) {
    net.second->weight.set_data(net.second->weight.detach().clone() * 0.5);
  };
  for (const int64_t batch : {15, 17})  // one that is compared, and one that is replayed
    expect_the_same_bits({
        {.name = "an option before the step", .before_step = in_batch(batch, decays), .is_replayed = true},
        {.name = "an option after backward", .after_backward = in_batch(batch, decays), .is_replayed = true},
        {.name = "a weight's memory", .after_backward = in_batch(batch, moves), .is_replayed = true},
    });
  const Variant late{.name = "a weight before backward", .before_backward = in_batch(17, moves)};
  EXPECT_THAT([&] { fit_variant(late, true); },
              ThrowsMessage<Error>(HasSubstr("changed in a hook inside of a replayed step")));
}

TEST(RecordedStepVariants, LossesThatHooksUse) {
  const auto adds_hook = [](const at::Tensor& loss) { loss.register_hook(kHalfHook); };
  expect_the_same_bits({
      {.name = "a hook in each step",
       .on_loss = [&](VariantNet&, const at::Tensor& loss) { adds_hook(loss); },
       .says = "on_before_backward adds a hook to the loss"},
      {.name = "gradients in each step",
       .on_loss =
           [](VariantNet& net, const at::Tensor& loss) {
             net.scale = torch::autograd::grad({loss}, {net.second->weight}, {}, /*retain_graph=*/true)[0].norm();
           },
       .says = "on_before_backward runs backward through the loss"},
      {.name = "gradients of something else",
       .on_loss =
           [](VariantNet& net, const at::Tensor& loss) {
             const at::Tensor x = loss.detach().requires_grad_();
             net.scale = torch::autograd::grad({x.square()}, {x})[0];
           },
       .is_replayed = true},
  });
  const Variant late{.name = "a hook now and then", .on_loss = [&](VariantNet& net, const at::Tensor& loss) {
                       if (net.hook++ == 12) adds_hook(loss);
                     }};
  fit_variant(late, false);
  EXPECT_THAT([&] { fit_variant(late, true); }, ThrowsMessage<Error>(HasSubstr("on_before_backward adds a hook")));
}

TEST(RecordedStepVariants, BatchesThatAreKept) {
  const auto kept_by_step = [](const char* name, const std::function<void(VariantNet&, const Batch&)>& keep) {
    return Variant{.name = name,
                   .change =
                       [keep](VariantNet& net, const at::Tensor& loss, const Batch& batch, int64_t) {
                         keep(net, batch);
                         return loss;
                       },
                   .after_batch = [](VariantNet& net, Trainer&) { net.table.add_(net.kept["x"].sum()); },
                   .says = "something keeps a tensor of the batch for after the step"};
  };
  expect_the_same_bits(
      {kept_by_step("the batch", [](VariantNet& net, const Batch& batch) { net.kept = batch; }),
       kept_by_step("a tensor", [](VariantNet& net, const Batch& batch) { net.kept["x"] = batch["x"]; }),
       kept_by_step("a view", [](VariantNet& net, const Batch& batch) { net.kept["x"] = batch["x"].select(1, 2); }),
       kept_by_step("the same by another name",
                    [](VariantNet& net, const Batch& batch) {
                      net.kept["x"] = batch["x"].detach().to(at::kFloat).contiguous();
                    }),
       {.name = "by a callback",
        .options =
            [](TrainerOptions& options) {
              options.callbacks.push_back(make<LambdaCallback>(LambdaCallbackOptions{
                  .on_train_batch_end = [kept = std::make_shared<std::vector<Batch>>()](
                                            Trainer&, Module&, const StepOutput&, const Batch& batch, int64_t) {
                    kept->push_back(batch);
                  }}));
            },
        .is_replayed = true}});
}

/// A hook takes what the step keeps, and lets go of it, so that nothing is held when the next step begins.
TEST(RecordedStepVariants, ResultsThatHooksLetGoOf) {
  using Keep = std::function<at::Tensor(VariantNet&, const at::Tensor& loss, const Batch&)>;
  const AtStep take = [](VariantNet& net, Trainer&) {
    if (net.result.defined()) net.table.add_(net.result.detach().sum());
    net.result = at::Tensor();
  };
  const auto kept_until = [](const char* name, AtStep Variant::*hook, const Keep& keep, const AtStep& take) {
    Variant variant{.name = name,
                    .change =
                        [keep](VariantNet& net, const at::Tensor& loss, const Batch& batch, int64_t) {
                          net.result = keep(net, loss, batch);
                          return loss;
                        },
                    .says = "something keeps "};
    variant.*hook = take;
    return variant;
  };
  const Keep hidden = [](VariantNet& net, const at::Tensor&, const Batch&) { return net.hidden.detach(); };
  const Keep copy = [](VariantNet& net, const at::Tensor&, const Batch&) { return net.hidden.detach().clone(); };
  const Keep with_gradient = [](VariantNet& net, const at::Tensor&, const Batch&) {
    net.hidden.retain_grad();
    return net.hidden;
  };
  const Keep of_batch = [](VariantNet&, const at::Tensor&, const Batch& batch) { return batch["x"]; };
  const auto callbacks_take = [](TrainerOptions& options) {
    const auto loss = std::make_shared<at::Tensor>();
    options.callbacks.push_back(make<LambdaCallback>(LambdaCallbackOptions{
        .on_before_backward = [loss](Trainer&, Module&, const at::Tensor& present) { *loss = present; },
        .on_after_backward = [loss](Trainer&, Module&) { *loss = at::Tensor(); }}));
  };
  expect_the_same_bits({
      kept_until("before backward", &Variant::before_backward, hidden, take),
      kept_until("after backward", &Variant::after_backward, hidden, take),
      kept_until("a copy, after backward", &Variant::after_backward, copy, take),
      kept_until("a gradient of it, after backward", &Variant::after_backward, with_gradient,
                 [](VariantNet& net, Trainer&) {
                   if (net.result.defined()) net.table.add_(net.result.grad().sum());
                   net.result = at::Tensor();
                 }),
      kept_until("before the update", &Variant::before_step, hidden, take),
      kept_until("after the batch", &Variant::after_batch, hidden, take),
      kept_until("a copy, after the batch", &Variant::after_batch, copy, take),
      kept_until("of the batch, after backward", &Variant::after_backward, of_batch, take),
      kept_until("of the batch, after the batch", &Variant::after_batch, of_batch, take),
      {.name = "what callbacks take themselves", .options = callbacks_take, .is_replayed = true},
  });
}

TEST(RecordedStepVariants, MemoryOfOthers) {
  const auto over = [](std::vector<float>& numbers) {
    return at::from_blob(numbers.data(), {static_cast<int64_t>(numbers.size())});
  };
  expect_the_same_bits({
      {.name = "a large vector of the step",
       .change =
           [&](VariantNet&, const at::Tensor& loss, const Batch&, int64_t batch_idx) {
             std::vector<float> numbers(large(batch_idx), 0.5F);
             return loss * over(numbers).mean();
           },
       .says = "is made anew in each step"},
      {.name = "a small vector of the step",
       .change =
           [&](VariantNet& net, const at::Tensor& loss, const Batch&, int64_t batch_idx) {
             std::vector<float> numbers(8, static_cast<float>(batch_idx));
             return loss + (net.hidden * over(numbers).clone()).mean();
           },
       .says = "is made anew in each step"},
      {.name = "results written to a large vector of the step",
       .change =
           [&](VariantNet& net, const at::Tensor& loss, const Batch&, int64_t batch_idx) {
             std::vector<float> numbers(large(batch_idx));
             over(numbers).slice(0, 0, 8).copy_(net.hidden.detach().mean(0));
             return loss;
           },
       .says = "is made anew in each step"},
      {.name = "a vector with a deleter",
       .change =
           [](VariantNet&, const at::Tensor& loss, const Batch&, int64_t) {
             auto* const numbers = new std::vector<float>(100, 0.5F);
             const at::Tensor factor = at::from_blob(numbers->data(), {100}, [numbers](void*) { delete numbers; });
             return loss * factor.mean();
           },
       .says = "is made anew in each step"},
      {.name = "a vector of the module, anew in each step",
       .change = [&](VariantNet& net, const at::Tensor& loss, const Batch&,
                     int64_t) { return loss * over(net.numbers).mean(); },
       .says = "is made anew in each step"},
      {.name = "a vector of the module",
       .change = [](VariantNet& net, const at::Tensor& loss, const Batch&,
                    int64_t) { return loss + (net.hidden * net.scale).mean(); },
       .set_up = [&](VariantNet& net) { net.scale = over(net.numbers); },
       .before_batch = [](VariantNet& net, Trainer& trainer) { net.numbers[3] = 0.1F * trainer.global_step(); },
       .is_replayed = true},
      {.name = "a vector of the module that is exchanged",
       .change = [](VariantNet& net, const at::Tensor& loss, const Batch&,
                    int64_t) { return loss + (net.hidden * net.scale).mean(); },
       .set_up = [&](VariantNet& net) { net.scale = over(net.numbers); },
       .before_batch = at_batch(11,
                                [&](VariantNet& net) {
                                  net.numbers = std::vector<float>(8, 2.5F);
                                  net.scale = over(net.numbers);
                                }),
       .says = "a tensor or generator that the step uses changed",
       .is_replayed = true},
  });
}

}  // namespace
}  // namespace levin
