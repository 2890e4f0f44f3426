#include <levin/strategies/ranks/model_agreement.h>

#include <levin/core/base/error.h>
#include <levin/core/base/seed.h>
#include <levin/strategies/comm/c10d_collective.h>
#include <levin/strategies/comm/shared_memory_team.h>
#include <tests/strategies/run_ranks.h>

#include "tests/support/tiny.h"

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace levin::testing {
namespace {

constexpr at::ScalarType kTypes[] = {
    at::kByte,   at::kChar,         at::kShort,         at::kInt,           at::kLong,       at::kUInt16,
    at::kUInt32, at::kUInt64,       at::kBool,          at::kHalf,          at::kBFloat16,   at::kFloat,
    at::kDouble, at::kComplexFloat, at::kComplexDouble, at::kFloat8_e4m3fn, at::kFloat8_e5m2};

/// A module with buffers of every type, and of every way in which elements can lie in memory.
struct OddBuffersOptions {
  int64_t value = 1;
  bool complex_double = true;  ///< a type that checkpoints lack
  static void describe(Schema<OddBuffersOptions>& schema) {
    schema.field("value", &OddBuffersOptions::value, "of the buffers' elements");
    schema.field("complex_double", &OddBuffersOptions::complex_double, "with a buffer of that type");
  }
};

class OddBuffers : public TinyModule {
 public:
  using Options = OddBuffersOptions;
  explicit OddBuffers(const Options& options) : TinyModule({}) {
    for (const at::ScalarType type : kTypes)
      if (type != at::kComplexDouble || options.complex_double)
        register_buffer(std::string("of_") + c10::toString(type), at::full({3, 2}, options.value).to(type));
    const at::Tensor values = at::full({4, 6}, options.value, at::kFloat);
    register_buffer("expanded", at::full({1}, options.value, at::kFloat).expand({5}));
    register_buffer("expanded_rows", at::full({3, 1}, options.value, at::kShort).expand({3, 4}));
    register_buffer("transposed", values.clone().t());
    register_buffer("sliced", values.clone().slice(1, 0, 6, 2));
    register_buffer("narrowed", values.clone().narrow(0, 1, 2));
    register_buffer("overlapping", at::full({6}, options.value, at::kFloat).as_strided({4, 3}, {1, 1}));
    register_buffer("conjugate", at::full({3}, options.value, at::kComplexFloat).conj());
    register_buffer("empty", at::empty({0, 3}, at::kShort));
    register_buffer("scalar", at::full({}, options.value, at::kUInt16));
  }

  void fill(int64_t value) {
    const at::NoGradGuard no_grad;
    for (auto& buffer : named_buffers()) {
      at::Tensor elements = buffer.value();
      for (int64_t d = 0; d < elements.dim(); ++d)
        if (elements.stride(d) == 0) elements = elements.narrow(d, 0, 1);
      if (buffer.key() == "overlapping") elements = elements.as_strided({6}, {1});
      elements.copy_(at::full(elements.sizes(), value).to(elements.scalar_type()));
    }
  }
};

void expect_all(const OddBuffers& module, int64_t value) {
  for (const auto& buffer : module.named_buffers()) {
    const at::Tensor expected = at::full(buffer.value().sizes(), value).to(buffer.value().scalar_type());
    const auto as_numbers = [](const at::Tensor& tensor) {
      return tensor.is_complex() ? tensor.to(at::kComplexDouble) : tensor.to(at::kDouble);
    };
    EXPECT_TRUE(as_numbers(buffer.value()).equal(as_numbers(expected))) << buffer.key() << "\n" << buffer.value();
  }
}

struct GroupKind {
  std::string backend;
  RankKind kind;
  int64_t count;
};

class BroadcastOfModels : public ::testing::TestWithParam<GroupKind> {};

TEST_P(BroadcastOfModels, TakesEveryTypeAndLayout) {
  const GroupKind& on = GetParam();
  const auto team =
      on.backend == "shared_memory" && on.kind == RankKind::kThreads ? make_thread_team(on.count) : nullptr;
  run_ranks(on.kind, on.count, [&](int64_t rank, const c10::intrusive_ptr<c10d::Store>& store) {
    const ProcessGroupOptions options{.backend = on.backend,
                                      .rank = rank,
                                      .world_size = on.count,
                                      .timeout = std::chrono::seconds(60),
                                      .thread_team = team};
    C10dCollective group(make_process_group(store, options), store, options);
    OddBuffers module({});
    require_same_model(module, group);
    module.fill(rank == 0 ? 1 : 0);
    broadcast_model(module, group.process_group());
    expect_all(module, 1);
    module.fill(rank == 0 ? 0 : 1);
    broadcast_buffers(module, group.process_group());
    expect_all(module, 0);
  });
}

TEST_P(BroadcastOfModels, NamesWhatCannotTravel) {
  const GroupKind& on = GetParam();
  const auto team =
      on.backend == "shared_memory" && on.kind == RankKind::kThreads ? make_thread_team(on.count) : nullptr;
  run_ranks(on.kind, on.count, [&](int64_t rank, const c10::intrusive_ptr<c10d::Store>& store) {
    const ProcessGroupOptions options{.backend = on.backend,
                                      .rank = rank,
                                      .world_size = on.count,
                                      .timeout = std::chrono::seconds(60),
                                      .thread_team = team};
    C10dCollective group(make_process_group(store, options), store, options);
    TinyModule module({});
    module.register_buffer("adjacency", at::eye(3).to_sparse());
    expect_contains(message_of([&] { require_same_model(module, group); }), "'adjacency' is a sparse tensor");
  });
}

INSTANTIATE_TEST_SUITE_P(OnEveryBackend, BroadcastOfModels,
                         ::testing::Values(GroupKind{"gloo", RankKind::kThreads, 2},
                                           GroupKind{"gloo", RankKind::kProcesses, 3},
                                           GroupKind{"shared_memory", RankKind::kThreads, 3},
                                           GroupKind{"shared_memory", RankKind::kProcesses, 2}));

/// Its buffers are rank 0's before each step, and in the end.
class OddBuffersInTraining : public OddBuffers {
 public:
  using OddBuffers::OddBuffers;
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    expect_all(*this, batch_idx == 0 ? 1 : 0);
    fill(trainer().global_rank() == 0 ? 0 : 1);
    return OddBuffers::training_step(batch, batch_idx);
  }
};

TEST(OddBuffersTest, AreRank0sInEveryStrategy) {
  for (const char* strategy : {"ddp_threads", "{name: ddp_threads, backend: gloo}", "{name: sharded_threads, stage: 1}",
                               "{name: sharded_threads, stage: 2, backend: gloo}", "{name: sharded_threads, stage: 3}",
                               "parameter_server_threads"}) {
    SCOPED_TRACE(strategy);
    seed_everything(3);
    TrainerOptions options = quiet(1);
    options.devices = 2;
    options.strategy = Spec<Strategy>(Config::parse(strategy, {}));
    const auto module = make<OddBuffersInTraining>({});
    // Ranks have unequal numbers of batches: who has none puts its buffers back.
    Trainer(options).fit(module, tiny_loader(17, 4));
    expect_all(*module, 0);
  }
}

TEST(OddBuffersTest, AreCopiedToReplicas) {
  TrainerOptions options = quiet(1);
  options.devices = 2;
  options.strategy = "dp";
  const auto module = make<OddBuffers>({});
  module->fill(0);
  Trainer(options).fit(module, tiny_loader(24, 4));
  expect_all(*module, 0);
}

TEST(OddBuffersTest, AreSavedAndResumed) {
  const std::string path = fresh_folder("odd_buffers") + "/saved";
  TrainerOptions options = quiet(1);
  Trainer trainer(options);
  const auto module = make<OddBuffers>({.complex_double = false});
  module->fill(0);
  trainer.fit(module, tiny_loader());
  trainer.save_checkpoint(path);
  options.max_epochs = 2;
  const auto resumed = make<OddBuffers>({.complex_double = false});
  Trainer(options).fit(resumed, tiny_loader(), {}, path);
  expect_all(*resumed, 0);
}

}  // namespace
}  // namespace levin::testing
