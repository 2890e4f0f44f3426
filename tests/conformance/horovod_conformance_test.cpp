#include "tests/conformance/strategy_case.h"

#include <levin/core/optim/optimizer_state.h>
#include <levin/core/optim/parameter_names.h>
#include <levin/core/optim/sgd.h>

namespace levin::testing {
namespace {

/// Its optimizer has another learning rate and another momentum on each rank.
class UnlikeOptimizerNet : public Net {
 public:
  using Net::Net;
  OptimizerConfigs configure_optimizers() override {
    const int64_t rank = trainer().global_rank();
    auto sgd = std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 1e-30, .momentum = 0.9});
    for (auto& parameter : parameters()) parameter.mutable_grad() = at::full_like(parameter.detach(), 1.0 + rank);
    sgd->step();  // makes momentum, and changes no weight
    sgd->zero_grad();
    sgd->param_groups()[0].options().set_lr(0.25 / (1.0 + rank));
    return sgd;
  }
  void on_train_start() override {
    auto& sgd = optimizer(0).optimizer();
    const State state = optim::optimizer_state_dict(sgd, optim::ParameterNames(*this));
    const at::Tensor momentum =
        state.at("parameters").at("branch.weight").at("momentum_buffer").as_tensor().to(at::kDouble).flatten();
    const at::Tensor rate = at::full({1}, sgd.param_groups()[0].options().get_lr(), at::kDouble);
    seen = all_gather(at::cat({rate, momentum}));
  }
  at::Tensor seen;  ///< learning rate and momentum of each rank
};

TEST(HorovodConformance, OptimizersAreThoseOfRankZero) {
  for (const char* strategy : {"horovod", "ddp"}) {
    seed_everything(7);
    const auto module = make<UnlikeOptimizerNet>();
    Trainer trainer(trainer_options({.epochs = 1}, {strategy, 2}));
    trainer.fit(module, DataLoader(tiny_dataset(16), {.global_batch_size = 8}));
    const bool is_horovod = std::string(strategy) == "horovod";
    EXPECT_TRUE(at::allclose(module->seen[0].slice(0, 1), at::ones({4}, at::kDouble))) << strategy;
    EXPECT_EQ(module->seen[0].equal(module->seen[1]), is_horovod) << module->seen;
    EXPECT_DOUBLE_EQ(module->seen[0][0].item<double>(), is_horovod ? 0.5 : 0.25) << "horovod scales it";
  }
}

}  // namespace
}  // namespace levin::testing
