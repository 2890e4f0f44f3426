#include <levin/core/base/error.h>
#include <levin/core/nn/activation_checkpointing.h>
#include <levin/core/nn/named_units.h>
#include <levin/core/nn/sequential.h>
#include <levin/core/optim/adam.h>
#include <levin/strategies/sharded/sharded_model.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <tests/support/thread_collective.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace levin {
namespace {

using ::testing::HasSubstr;
using testing::ThreadCollective;

/// What happens on a rank, in order; of this thread.
thread_local std::vector<std::string>* trace = nullptr;

void note(const std::string& event) {
  if (trace != nullptr) trace->push_back(event);
}

/// Notes when collectives start and when they are waited for.
class TracedCollective final : public Collective {
 public:
  explicit TracedCollective(std::shared_ptr<Collective> of) : of_(std::move(of)) {}
  int64_t rank() const override { return of_->rank(); }
  int64_t world_size() const override { return of_->world_size(); }
  std::unique_ptr<Work> all_reduce(at::Tensor tensor, ReduceOp op) override { return of_->all_reduce(tensor, op); }
  std::unique_ptr<Work> broadcast(at::Tensor tensor, int64_t root) override { return of_->broadcast(tensor, root); }
  std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input) override {
    return traced("gather", of_->all_gather(output, input));
  }
  std::unique_ptr<Work> reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op) override {
    return traced("reduce", of_->reduce_scatter(output, input, op));
  }
  std::unique_ptr<Work> send(at::Tensor tensor, int64_t to, int64_t tag) override { return of_->send(tensor, to, tag); }
  std::unique_ptr<Work> receive(at::Tensor tensor, int64_t from, int64_t tag) override {
    return of_->receive(tensor, from, tag);
  }
  void barrier() override { of_->barrier(); }
  std::string broadcast_bytes(const std::string& bytes, int64_t root) override {
    return of_->broadcast_bytes(bytes, root);
  }
  std::vector<std::string> gather_bytes(const std::string& bytes) override { return of_->gather_bytes(bytes); }
  std::shared_ptr<Collective> subgroup(std::span<const int64_t> ranks) override { return of_->subgroup(ranks); }
  void abort(const std::string& reason) override { of_->abort(reason); }
  Store& store() override { return of_->store(); }

 private:
  struct Traced final : Work {
    Traced(std::string event, std::unique_ptr<Work> of) : event(std::move(event)), of(std::move(of)) {}
    void wait() override {
      note("wait for " + event);
      of->wait();
    }
    bool is_completed() const override { return of->is_completed(); }
    std::string event;
    std::unique_ptr<Work> of;
  };
  std::unique_ptr<Work> traced(const std::string& kind, std::unique_ptr<Work> work) {
    const std::string event = kind + " " + std::to_string(count_[kind]++);
    note("start " + event);
    return std::make_unique<Traced>(event, std::move(work));
  }

  std::shared_ptr<Collective> of_;
  std::map<std::string, int> count_;
};

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width)
      : norm(torch::nn::LayerNormOptions({width})), up(width, 2 * width), down(2 * width, width) {
    register_module("norm", norm);
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(const at::Tensor& x) {
    note("forward");
    at::Tensor y = x + down(at::gelu(up(norm(x))));
    if (trace != nullptr && y.requires_grad()) y.register_hook([](const at::Tensor&) { note("backward"); });
    return y;
  }
  torch::nn::LayerNorm norm;
  torch::nn::Linear up;
  torch::nn::Linear down;
};
LEVIN_UNIT(Block);

/// Three blocks between two layers that no unit holds; the same weights wherever it is made.
struct ShardedNet : torch::nn::Module {
  ShardedNet() : in(4, 6), out(6, 2) {
    register_module("in", in);
    for (int i = 0; i < 3; ++i) blocks.push_back(register_module("block" + std::to_string(i), Block(6)));
    register_module("out", out);
    const at::NoGradGuard no_grad;
    int64_t seed = 0;
    for (auto& parameter : parameters())
      parameter.copy_(at::arange(parameter.numel()).add(7 * ++seed).sin().mul(0.4).view(parameter.sizes()));
  }
  at::Tensor forward(at::Tensor x) {
    x = in(x).tanh();
    for (auto& block : blocks) x = block(x);
    return out(x);
  }
  torch::nn::Linear in, out;
  std::vector<Block> blocks;
};

at::Tensor inputs(int64_t step, int64_t rank) {
  return at::arange(5 * 4, at::kFloat).add(static_cast<double>(31 * step + 17 * rank)).sin().view({5, 4});
}
at::Tensor loss_of(ShardedNet& net, int64_t step, int64_t rank) {
  const at::Tensor x = inputs(step, rank).to(net.in->weight.scalar_type());
  return torch::nn::functional::mse_loss(net.forward(x), x.narrow(1, 0, 2));
}

constexpr int64_t kSteps = 5;

/// Weights by name after training one model with the mean gradient of all ranks' data.
std::map<std::string, at::Tensor> reference(int64_t ranks, int64_t accumulate) {
  ShardedNet net;
  optim::AdamW optimizer(net.parameters(), {.lr = 0.02});
  for (int64_t step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    for (int64_t micro = 0; micro < accumulate; ++micro)
      for (int64_t rank = 0; rank < ranks; ++rank)
        (loss_of(net, step * accumulate + micro, rank) / static_cast<double>(ranks * accumulate)).backward();
    optimizer.step();
  }
  std::map<std::string, at::Tensor> weights;
  for (const auto& item : net.named_parameters()) weights[item.key()] = item.value().detach().clone();
  return weights;
}

void on_ranks(int64_t count, const std::function<void(std::shared_ptr<Collective>)>& rank_main) {
  auto group = ThreadCollective::make_group(count);
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::exception_ptr failed;
  for (const auto& collective : group)
    threads.emplace_back([&, collective] {
      try {
        rank_main(collective);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (failed == nullptr) failed = std::current_exception();
      }
    });
  for (auto& thread : threads) thread.join();
  if (failed != nullptr) std::rethrow_exception(failed);
}

ParallelModel parts_of(const ShardedModel& model) { return {"sharded", model.entries(), {}}; }

void replace_parameters(torch::optim::Optimizer& optimizer, const ShardedModel& model) {
  const ParallelModel parts = parts_of(model);
  for (auto& group : optimizer.param_groups())
    for (auto& parameter : group.params()) parameter = parts.local_shard(parameter);
}

void train(ShardedModel& model, ShardedNet& net, const Collective& collective, int64_t accumulate) {
  optim::AdamW optimizer(net.parameters(), {.lr = 0.02});
  replace_parameters(optimizer, model);
  for (int64_t step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    for (int64_t micro = 0; micro < accumulate; ++micro) {
      model.begin_forward(/*training=*/true);
      const at::Tensor loss =
          loss_of(net, step * accumulate + micro, collective.rank()) / static_cast<double>(accumulate);
      model.begin_backward(/*sync=*/micro + 1 == accumulate);
      loss.backward();
      model.end_backward();
    }
    model.prepare_step();
    optimizer.step();
    model.finish_step();
  }
}

TEST(ShardedModel, TrainsAsOneModelOnAllData) {
  for (const int64_t ranks : {1, 2, 3, 4}) {
    for (const int64_t accumulate : {1, 2}) {
      const auto expected = reference(ranks, accumulate);
      for (const int64_t stage : {1, 2, 3}) {
        for (const bool keeps : {false, true}) {
          SCOPED_TRACE(::testing::Message() << ranks << " ranks, stage " << stage << ", " << accumulate << " batches");
          on_ranks(ranks, [&](const std::shared_ptr<Collective>& collective) {
            ShardedNet net;
            ShardedModel model(
                net, collective, nullptr,
                {.stage = stage, .units = named_units(net), .bucket_bytes = 200, .keeps_window_gradients = keeps});
            train(model, net, *collective, accumulate);
            model.gather_full_parameters();
            for (const auto& item : net.named_parameters())
              EXPECT_TRUE(item.value().allclose(expected.at(item.key()), 1e-4, 1e-5)) << item.key();
          });
        }
      }
    }
  }
}

/// Elements of the whole tensors that this rank steps; checks that it has no parts of tensors.
int64_t whole_elements(const ShardedModel& model) {
  int64_t elements = 0;
  for (const auto& [name, parameter, part, is_copy] : model.entries()) {
    const at::Tensor& local_shard = part.local_shard();
    elements += local_shard.numel();
    if (local_shard.numel() > 0) EXPECT_EQ(local_shard.sizes(), parameter.sizes()) << name;
  }
  return elements;
}

TEST(ShardedModel, DividedByTensorTrainsAsOneModelOnAllData) {
  for (const int64_t ranks : {1, 2, 3, 4}) {
    for (const int64_t accumulate : {1, 2}) {
      const auto expected = reference(ranks, accumulate);
      for (const int64_t stage : {1, 2, 3}) {
        for (const bool keeps : {false, true}) {
          SCOPED_TRACE(::testing::Message() << ranks << " ranks, stage " << stage << ", " << accumulate << " batches");
          on_ranks(ranks, [&](const std::shared_ptr<Collective>& collective) {
            ShardedNet net;
            ShardedModel model(
                net, collective, nullptr,
                {.stage = stage, .units = named_units(net), .bucket_bytes = 200, .keeps_window_gradients = keeps});
            model.divide_by_tensor();
            const at::Tensor elements = at::full({1}, whole_elements(model), at::kLong);
            const at::Tensor most = elements.clone();
            collective->all_reduce(elements, ReduceOp::kSum)->wait();
            collective->all_reduce(most, ReduceOp::kMax)->wait();
            int64_t all = 0;
            int64_t largest = 0;
            for (const auto& [name, weight] : expected) {
              all += weight.numel();
              largest = std::max(largest, weight.numel());
            }
            EXPECT_EQ(elements.item<int64_t>(), all);
            EXPECT_LE(most.item<int64_t>(), all / ranks + largest);
            train(model, net, *collective, accumulate);
            model.gather_full_parameters();
            for (const auto& item : net.named_parameters())
              EXPECT_TRUE(item.value().allclose(expected.at(item.key()), 1e-4, 1e-5)) << item.key();
          });
        }
      }
    }
  }
}

void expect_whole_where_needed(bool by_tensor) {
  on_ranks(2, [&](const std::shared_ptr<Collective>& collective) {
    ShardedNet net;
    ShardedModel model(net, collective, nullptr, {.stage = 3, .units = named_units(net)});
    if (by_tensor) model.divide_by_tensor();
    const auto touch = [](const at::Tensor& tensor) { return tensor.sum().item<double>(); };
    const auto message = [&](const at::Tensor& tensor) -> std::string {
      try {
        touch(tensor);
      } catch (const std::exception& error) {
        return error.what();
      }
      return "";
    };
    EXPECT_THAT(message(net.blocks[1]->up->weight), HasSubstr("the parameter 'block1.up.weight' is divided over"));
    EXPECT_THAT(message(net.in->weight), HasSubstr("'in.weight'"));
    EXPECT_THAT(message(net.in->weight.t()), HasSubstr("'in.weight'")) << "views too";
    {
      const at::NoGradGuard no_grad;
      net.blocks[0](at::ones({1, 6}));  // gathers what it needs
    }
    EXPECT_THAT(message(net.blocks[0]->up->weight), HasSubstr("'block0.up.weight'"));
    model.begin_forward(/*training=*/false);
    {
      const at::NoGradGuard no_grad;
      net.forward(at::ones({2, 4}));
    }
    EXPECT_EQ(message(net.in->weight), "") << "not in a unit: whole during the step";
    EXPECT_THAT(message(net.blocks[1]->up->weight), HasSubstr("block1.up.weight"));
    model.end_forward();
    EXPECT_THAT(message(net.in->weight), HasSubstr("in.weight"));
  });
}

TEST(ShardedModel, ParametersAreWholeOnlyWhereTheyAreNeeded) {
  for (const bool by_tensor : {false, true}) expect_whole_where_needed(by_tensor);
}

/// The largest difference of weights between two trainings.
double distance(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b) {
  double largest = 0;
  for (const auto& [name, tensor] : a)
    largest = std::max(largest, (tensor.to(at::kFloat) - b.at(name).to(at::kFloat)).abs().max().item<double>());
  return largest;
}

std::map<std::string, at::Tensor> whole_weights(ShardedModel& model, ShardedNet& net) {
  model.gather_full_parameters();
  std::map<std::string, at::Tensor> weights;
  for (const auto& item : net.named_parameters()) weights[item.key()] = item.value().detach().clone();
  return weights;
}

TEST(ShardedModel, GradientsAddUpUntilTheyAreCleared) {
  // Two backwards, after the first of which only the output layer's gradients are cleared.
  ShardedNet whole;
  for (int64_t rank = 0; rank < 2; ++rank) (loss_of(whole, 0, rank) / 2).backward();
  for (auto& parameter : whole.out->parameters()) parameter.mutable_grad().reset();
  for (int64_t rank = 0; rank < 2; ++rank) (loss_of(whole, 1, rank) / 2).backward();
  for (const int64_t stage : {1, 2, 3}) {
    on_ranks(2, [&](const std::shared_ptr<Collective>& collective) {
      ShardedNet net;
      ShardedModel model(net, collective, nullptr, {.stage = stage, .units = named_units(net)});
      for (int64_t step = 0; step < 2; ++step) {
        model.begin_forward(/*training=*/true);
        const at::Tensor loss = loss_of(net, step, collective->rank());
        model.begin_backward(/*sync=*/true);
        loss.backward();
        model.end_backward();
        if (step == 0)
          for (const auto& parameter : net.out->parameters())
            parts_of(model).local_shard(parameter).mutable_grad().reset();
      }
      for (const auto& [name, parameter, part, is_copy] : model.entries()) {
        const at::Tensor expected = part.own_part({whole.named_parameters()[name].grad()});
        EXPECT_TRUE(part.local_shard().grad().allclose(expected, 1e-4, 1e-6)) << stage << name;
      }
    });
  }
}

TEST(ShardedModel, OffloadedPartsAreEqualToTheBit) {
  for (const int64_t stage : {1, 2, 3}) {
    std::map<std::string, at::Tensor> plain;
    for (const bool offload : {false, true})
      on_ranks(2, [&](const std::shared_ptr<Collective>& collective) {
        ShardedNet net;
        ShardedModel model(net, collective, nullptr, {.stage = stage, .units = named_units(net), .offload = offload});
        train(model, net, *collective, 2);
        auto weights = whole_weights(model, net);
        if (collective->rank() > 0) return;
        if (offload)
          EXPECT_EQ(distance(weights, plain), 0) << stage;
        else
          plain = std::move(weights);
      });
  }
}

TEST(ShardedModel, StagesAreEqualToTheBit) {
  std::map<int64_t, std::map<std::string, at::Tensor>> of_stage;
  for (const int64_t stage : {1, 2, 3})
    on_ranks(2, [&](const std::shared_ptr<Collective>& collective) {
      ShardedNet net;
      ShardedModel model(net, collective, nullptr, {.stage = stage, .units = named_units(net)});
      train(model, net, *collective, 1);
      auto weights = whole_weights(model, net);
      if (collective->rank() == 0) of_stage[stage] = std::move(weights);
    });
  EXPECT_EQ(distance(of_stage[1], of_stage[2]), 0);
  EXPECT_EQ(distance(of_stage[1], of_stage[3]), 0);
}

TEST(ShardedModel, DividedByTensorIsAsDividedEvenlyToTheBit) {
  for (const int64_t stage : {1, 2, 3}) {
    for (ShardedModelOptions options :
         {ShardedModelOptions{}, ShardedModelOptions{.offload = true},
          ShardedModelOptions{.compute_type = at::kBFloat16},
          ShardedModelOptions{.compute_type = at::kBFloat16, .reduce_type = at::kFloat},
          ShardedModelOptions{.compute_type = at::kBFloat16, .offload = true, .keeps_window_gradients = true}}) {
      std::map<std::string, at::Tensor> evenly;
      for (const bool by_tensor : {false, true})
        on_ranks(2, [&](const std::shared_ptr<Collective>& collective) {
          ShardedNet net;
          ShardedModelOptions own = options;
          own.stage = stage;
          own.units = named_units(net);
          ShardedModel model(net, collective, nullptr, own);
          if (by_tensor) model.divide_by_tensor();
          train(model, net, *collective, 2);
          auto weights = whole_weights(model, net);
          if (collective->rank() > 0) return;
          if (by_tensor)
            EXPECT_EQ(distance(weights, evenly), 0) << stage << options.offload << options.compute_type.has_value();
          else
            evenly = std::move(weights);
        });
    }
  }
}

TEST(ShardedModel, HalfPrecisionKeepsSinglePrecisionShards) {
  for (const int64_t stage : {1, 2, 3}) {
    for (const at::ScalarType reduce_type : {at::kBFloat16, at::kFloat}) {
      const auto expected = reference(2, 2);
      on_ranks(2, [&](const std::shared_ptr<Collective>& collective) {
        ShardedNet net;
        ShardedModel model(
            net, collective, nullptr,
            {.stage = stage, .compute_type = at::kBFloat16, .reduce_type = reduce_type, .units = named_units(net)});
        optim::AdamW optimizer(net.parameters(), {.lr = 0.02});
        replace_parameters(optimizer, model);
        for (int64_t step = 0; step < kSteps; ++step) {
          optimizer.zero_grad();
          for (int64_t micro = 0; micro < 2; ++micro) {
            model.begin_forward(/*training=*/true);
            EXPECT_EQ(net.in->weight.scalar_type(), at::kBFloat16);
            const at::Tensor x = inputs(step * 2 + micro, collective->rank()).to(at::kBFloat16);
            const at::Tensor loss = torch::nn::functional::mse_loss(net.forward(x), x.narrow(1, 0, 2)) / 2;
            model.begin_backward(micro == 1);
            loss.backward();
            model.end_backward();
          }
          model.prepare_step();
          for (const auto& group : optimizer.param_groups())
            for (const auto& local_shard : group.params()) {
              EXPECT_EQ(local_shard.scalar_type(), at::kFloat);
              EXPECT_EQ(local_shard.grad().scalar_type(), at::kFloat);
            }
          optimizer.step();
          model.finish_step();
        }
        EXPECT_LT(distance(whole_weights(model, net), expected), 0.05);
      });
    }
  }
}

TEST(ShardedModel, HybridShardsInsideSubgroups) {
  const auto expected = reference(4, 1);
  for (const int64_t stage : {1, 2, 3}) {
    on_ranks(4, [&](const std::shared_ptr<Collective>& all) {
      // Ranks 0 and 1 hold one copy, 2 and 3 another.
      std::shared_ptr<Collective> shards;
      std::shared_ptr<Collective> replicas;
      for (const std::vector<int64_t>& ranks : {std::vector<int64_t>{0, 1}, {2, 3}})
        if (auto mine = all->subgroup(ranks)) shards = mine;
      for (const std::vector<int64_t>& ranks : {std::vector<int64_t>{0, 2}, {1, 3}})
        if (auto mine = all->subgroup(ranks)) replicas = mine;
      ShardedNet net;
      ShardedModel model(net, shards, replicas, {.stage = stage, .units = named_units(net)});
      train(model, net, *all, 1);
      EXPECT_LT(distance(whole_weights(model, net), expected), 1e-4);
    });
  }
}

TEST(ShardedModel, CheckpointedUnitsAreGatheredAgain) {
  for (const int64_t stage : {2, 3}) {
    std::map<std::string, at::Tensor> plain;
    for (const bool checkpointed : {false, true})
      on_ranks(2, [&](const std::shared_ptr<Collective>& collective) {
        ShardedNet net;
        std::optional<ActivationCheckpointing> checkpointing;
        if (checkpointed) checkpointing.emplace(net, ActivationCheckpointingOptions{.units = {"Block"}});
        ShardedModel model(net, collective, nullptr, {.stage = stage, .units = named_units(net)});
        train(model, net, *collective, 1);
        auto weights = whole_weights(model, net);
        if (collective->rank() > 0) return;
        if (checkpointed)
          EXPECT_EQ(distance(weights, plain), 0);
        else
          plain = std::move(weights);
      });
  }
}

/// Its first and last block are one; the second is not always used; the third is frozen.
struct OddNet : torch::nn::Module {
  OddNet() {
    shared = register_module("shared", Block(4));
    sometimes = register_module("sometimes", Block(4));
    frozen = register_module("frozen", Block(4));
    register_module("again", shared);
    const at::NoGradGuard no_grad;
    int64_t seed = 0;
    for (auto& parameter : parameters())
      parameter.copy_(at::arange(parameter.numel()).add(5 * ++seed).sin().mul(0.4).view(parameter.sizes()));
    for (auto& parameter : frozen->parameters()) parameter.set_requires_grad(false);
  }
  at::Tensor loss(const at::Tensor& x, bool uses_second) {
    at::Tensor y = shared(x);
    if (uses_second) y = sometimes(y);
    return shared(frozen(y)).square().mean();
  }
  Block shared{nullptr}, sometimes{nullptr}, frozen{nullptr};
};

TEST(ShardedModel, SharedFrozenAndUnusedParameters) {
  // The mean gradient over both ranks' data; what a rank does not use counts as zero.
  OddNet whole;
  optim::AdamW whole_optimizer(whole.parameters(), {.lr = 0.02});
  for (int64_t step = 0; step < kSteps; ++step) {
    whole_optimizer.zero_grad();
    for (int64_t rank = 0; rank < 2; ++rank) (whole.loss(inputs(step, rank), step != 2) / 2).backward();
    if (step == 2)
      for (auto& parameter : whole.sometimes->parameters()) parameter.mutable_grad() = at::zeros_like(parameter);
    whole_optimizer.step();
  }
  for (const int64_t stage : {1, 2, 3}) {
    on_ranks(2, [&](const std::shared_ptr<Collective>& collective) {
      OddNet net;
      ShardedModel model(net, collective, nullptr, {.stage = stage, .units = named_units(net)});
      optim::AdamW optimizer(net.parameters(), {.lr = 0.02});
      replace_parameters(optimizer, model);
      for (int64_t step = 0; step < kSteps; ++step) {
        optimizer.zero_grad();
        model.begin_forward(/*training=*/true);
        const at::Tensor loss = net.loss(inputs(step, collective->rank()), step != 2);
        model.begin_backward(/*sync=*/true);
        loss.backward();
        model.end_backward();
        model.prepare_step();
        optimizer.step();
        model.finish_step();
      }
      model.gather_full_parameters();
      for (const auto& item : whole.named_parameters())
        EXPECT_TRUE(net.named_parameters()[item.key()].allclose(item.value(), 1e-4, 1e-5)) << stage << item.key();
    });
  }
}

TEST(ShardedModel, RanksThatRunUnitsInDifferentOrderAreToldSo) {
  try {
    on_ranks(2, [&](const std::shared_ptr<Collective>& collective) {
      ShardedNet net;
      if (collective->rank() == 1) std::swap(net.blocks[0], net.blocks[2]);
      ShardedModel model(net, collective, nullptr, {.stage = 3, .units = named_units(net)});
      train(model, net, *collective, 1);
    });
    ADD_FAILURE() << "nobody noticed";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("ranks run units in different order: 'block0' on rank 0, 'block2' on rank 1"));
  }
}

TEST(ShardedModel, ARankWithoutLossTakesPartInTheOthersBackward) {
  for (const int64_t stage : {1, 2, 3}) {
    on_ranks(2, [&](const std::shared_ptr<Collective>& collective) {
      ShardedNet net;
      ShardedModel model(net, collective, nullptr, {.stage = stage, .units = named_units(net)});
      optim::AdamW optimizer(net.parameters(), {.lr = 0.02});
      replace_parameters(optimizer, model);
      for (int64_t step = 0; step < kSteps; ++step) {
        optimizer.zero_grad();
        model.begin_forward(/*training=*/true);
        const at::Tensor loss = loss_of(net, step, collective->rank());
        model.begin_backward(/*sync=*/true);
        if (step == 3 && collective->rank() == 1)
          model.backward_without_loss();
        else
          loss.backward(), model.end_backward();
        model.prepare_step();
        optimizer.step();
        model.finish_step();
      }
      const auto weights = whole_weights(model, net);
      ShardedNet whole;
      optim::AdamW whole_optimizer(whole.parameters(), {.lr = 0.02});
      for (int64_t step = 0; step < kSteps; ++step) {
        whole_optimizer.zero_grad();
        for (int64_t rank = 0; rank < (step == 3 ? 1 : 2); ++rank) (loss_of(whole, step, rank) / 2).backward();
        whole_optimizer.step();
      }
      for (const auto& item : whole.named_parameters())
        EXPECT_TRUE(weights.at(item.key()).allclose(item.value(), 1e-4, 1e-5)) << stage << item.key();
    });
  }
}

TEST(ShardedModel, GathersAndReductionsOverlapWithTheUnitsBesideThem) {
  on_ranks(2, [&](const std::shared_ptr<Collective>& plain) {
    const auto collective = std::make_shared<TracedCollective>(plain);
    ShardedNet net;
    ShardedModel model(net, collective, nullptr, {.stage = 3, .units = named_units(net)});
    train(model, net, *collective, 1);  // now the order is known
    std::vector<std::string> events;
    model.begin_forward(/*training=*/true);
    trace = &events;
    const at::Tensor loss = loss_of(net, 0, collective->rank());
    model.begin_backward(/*sync=*/true);
    loss.backward();
    model.end_backward();
    trace = nullptr;
    // The first block was on its way before; each further one starts before the one in front of it runs, and is waited
    // for after that. Backward begins with the last block, which is still there, and goes back in the same way; what a
    // block's gradients become is waited for when one further block is done.
    std::vector<std::string> kinds;
    for (const std::string& event : events) kinds.push_back(event.substr(0, event.find_last_not_of("0123456789") + 1));
    const std::vector<std::string> expected = {
        "wait for gather ", "start gather ",    "forward",        //
        "wait for gather ", "start gather ",    "forward",        //
        "wait for gather ", "forward",                            //
        "backward",         "start gather ",    "start reduce ",  // of the last block
        "backward",         "wait for gather ", "start gather ",    "wait for reduce ",
        "start reduce ",                                                              // of the second
        "backward",         "wait for gather ", "wait for reduce ", "start reduce ",  // of the first
    };
    ASSERT_GE(kinds.size(), expected.size());
    kinds.resize(expected.size());
    EXPECT_EQ(kinds, expected) << ::testing::PrintToString(events);
  });
}

void fill(torch::nn::Module& module, int64_t seed) {
  const at::NoGradGuard no_grad;
  for (auto& parameter : module.parameters(/*recurse=*/false))
    parameter.copy_(at::arange(parameter.numel()).add(7 * ++seed).sin().mul(0.4).view(parameter.sizes()));
  for (const auto& child : module.children()) fill(*child, ++seed);
}

/// Has its values from its constructor on, as blocks that initialise themselves do.
struct FilledBlockImpl : BlockImpl {
  FilledBlockImpl(int64_t width, int64_t seed) : BlockImpl(width) { fill(*this, seed); }
  at::Tensor forward(const at::Tensor& x) { return BlockImpl::forward(x); }
};
LEVIN_UNIT(FilledBlock);

/// A block in a block, two layers around them, and the first block again at the end.
struct BuiltNet : torch::nn::Module {
  struct OuterImpl : torch::nn::Module {
    explicit OuterImpl(int64_t seed) : inner(6, seed), own(6, 6) {
      register_module("inner", inner);
      register_module("own", own);
      fill(*own, seed + 40);
    }
    at::Tensor forward(const at::Tensor& x) { return own(inner(x)).tanh(); }
    FilledBlock inner;
    torch::nn::Linear own;
  };
  LEVIN_UNIT(Outer);

  BuiltNet() : in(4, 6), first(6, 3), outer(70), out(6, 2) {
    register_module("in", in);
    register_module("first", first);
    register_module("outer", outer);
    register_module("out", out);
    register_module("first_again", first);
    fill(*in, 1);
    fill(*out, 2);
  }
  at::Tensor forward(const at::Tensor& x) { return out(first(outer(first(in(x).tanh())))); }
  torch::nn::Linear in;
  FilledBlock first;
  Outer outer;
  torch::nn::Linear out;
};

TEST(ShardedBuild, UnitsAreDividedWhileTheModelIsBuilt) {
  const auto train_built = [](const std::shared_ptr<Collective>& collective, bool in_parts) {
    const ShardedModelOptions options{.stage = 3};
    std::vector<ShardedBuild::Part> parts;
    std::unique_ptr<BuiltNet> net;
    if (in_parts) {
      ShardedBuild build(collective, nullptr, options, [](torch::nn::Module&) {});
      net = std::make_unique<BuiltNet>();
      parts = build.take();
      EXPECT_EQ(parts.size(), 3);
      EXPECT_THROW(net->outer->inner->up->weight.sum(), std::exception);
    } else {
      net = std::make_unique<BuiltNet>();
    }
    ShardedModelOptions of_model = options;
    of_model.units = named_units(*net);
    ShardedModel model(*net, collective, nullptr, of_model, std::move(parts));
    optim::AdamW optimizer(net->parameters(), {.lr = 0.02});
    replace_parameters(optimizer, model);
    for (int64_t step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      model.begin_forward(/*training=*/true);
      const at::Tensor x = inputs(step, collective->rank());
      const at::Tensor loss = torch::nn::functional::mse_loss(net->forward(x), x.narrow(1, 0, 2));
      model.begin_backward(/*sync=*/true);
      loss.backward();
      model.end_backward();
      model.prepare_step();
      optimizer.step();
      model.finish_step();
    }
    model.gather_full_parameters();
    std::map<std::string, at::Tensor> weights;
    for (const auto& item : net->named_parameters()) weights[item.key()] = item.value().detach().clone();
    return weights;
  };
  on_ranks(2, [&](const std::shared_ptr<Collective>& collective) {
    const auto whole = train_built(collective, false);
    const auto built = train_built(collective, true);
    EXPECT_EQ(distance(whole, built), 0);
  });
}

}  // namespace
}  // namespace levin
