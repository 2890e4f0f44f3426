#include <levin/core/accelerators/arena_layout.h>
#include <levin/core/accelerators/cpu_graph_recorder.h>
#include <levin/core/accelerators/operator_plan.h>
#include <levin/core/accelerators/operator_recording.h>
#include <levin/core/accelerators/out_operators.h>
#include <levin/core/base/recording.h>
#include <levin/core/nn/kernel_scope.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace levin {
namespace {

using ::testing::HasSubstr;

// ---- The block that results share.

bool overlap(const ArenaBlock& a, const ArenaBlock& b) {
  return a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

TEST(ArenaLayout, BlocksNeededAtTheSameMomentDoNotOverlap) {
  std::vector<ArenaBlock> blocks;
  for (size_t i = 0; i < 60; ++i)
    blocks.push_back({.bytes = 1 + (i * 7919) % 1000, .first = (i * 31) % 50, .last = (i * 31) % 50 + i % 9});
  const size_t bytes = lay_out(blocks);
  size_t all = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_EQ(blocks[i].offset % 64, 0) << i;
    EXPECT_LE(blocks[i].offset + blocks[i].bytes, bytes) << i;
    all += blocks[i].bytes;
    for (size_t k = 0; k < i; ++k)
      if (blocks[i].first <= blocks[k].last && blocks[k].first <= blocks[i].last)
        EXPECT_FALSE(overlap(blocks[i], blocks[k])) << i << " and " << k;
  }
  EXPECT_LT(bytes, all / 2);
}

TEST(ArenaLayout, BlocksNeededOneAfterTheOtherShareMemory) {
  std::vector<ArenaBlock> blocks = {{.bytes = 100, .first = 0, .last = 1},
                                    {.bytes = 128, .first = 2, .last = 3},
                                    {.bytes = 64, .first = 3, .last = 3}};
  EXPECT_EQ(lay_out(blocks), 128 + 64);
  EXPECT_EQ(blocks[0].offset, blocks[1].offset);
  std::vector<ArenaBlock> none;
  EXPECT_EQ(lay_out(none), 0);
}

// ---- out= forms.

std::string out_form_of(const char* name, const char* overload) {
  const auto out = find_out_operator(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload));
  return out ? out->schema().name() + "." + out->schema().overload_name() : "none";
}

TEST(OutOperators, AreThoseWithAKernelOfTheirOwn) {
  EXPECT_EQ(out_form_of("aten::mul", "Tensor"), "aten::mul.out");
  EXPECT_EQ(out_form_of("aten::addmm", ""), "aten::addmm.out");
  EXPECT_EQ(out_form_of("aten::max_pool2d_with_indices", ""), "aten::max_pool2d_with_indices.out");
  // Only made out of the operator itself, with a copy.
  EXPECT_EQ(out_form_of("aten::native_dropout", ""), "none");
  // Use the result as scratch memory.
  EXPECT_EQ(out_form_of("aten::mse_loss", ""), "none");
  EXPECT_EQ(out_form_of("aten::binary_cross_entropy", ""), "none");
}

// ---- Recording, and replaying what was recorded.

/// Work of one part on `x`, recorded and ready for replays.
struct Recorded {
  explicit Recorded(at::Tensor input, std::function<at::Tensor(const at::Tensor&)> body) : work(std::move(body)) {
    const at::Tensor x = recorder.begin_step({std::move(input)}, {}, {}).front();
    at::Tensor result;
    recorder.watch([&] { result = work(x); });
    why_not = recorder.end_step({result});
    result.reset();
    if (why_not.empty()) why_not = recorder.finish();
  }
  at::Tensor replay(const at::Tensor& input) {
    recorder.read({input});
    recorder.replay(0);
    return recorder.results().front();
  }
  /// What an ordinary step on `input` shows to be different.
  std::string compare(const at::Tensor& input) {
    const at::Tensor x = recorder.begin_step({input}, {}, {}).front();
    at::Tensor result;
    recorder.watch([&] { result = work(x); });
    // As the trainer's steps: results hold what the replay beside the step has left.
    return recorder.end_step({result});
  }

  CpuGraphRecorder recorder;
  std::function<at::Tensor(const at::Tensor&)> work;
  std::string why_not;
};

at::Tensor numbers(int64_t rows, double offset = 0) {
  return at::arange(rows * 6, at::kFloat).reshape({rows, 6}).add(offset).sin();
}

TEST(OperatorPlan, ReplaysOnOtherBatchesAndChangedWeightsToTheBit) {
  const at::Tensor weight = numbers(4, 0.5);
  const auto work = [&](const at::Tensor& x) {
    const at::Tensor hidden = at::linear(x, weight).relu();
    // A list of tensors, views, a copy, a constant, work in place.
    const auto parts = hidden.t().contiguous().split(2);
    at::Tensor sum = at::zeros({2, x.size(0)});
    for (const at::Tensor& part : parts) sum.add_(part);
    return at::cat({sum, hidden.t()}).softmax(0).std();
  };
  Recorded recorded(numbers(3), work);
  ASSERT_EQ(recorded.why_not, "");
  for (int i = 0; i < 3; ++i) {
    weight.mul_(0.9);
    const at::Tensor x = numbers(3, i);
    EXPECT_TRUE(recorded.replay(x).equal(work(x))) << i;
  }
  EXPECT_EQ(recorded.compare(numbers(3, 7)), "");
}

TEST(OperatorPlan, ResultsThatAreNotNeededAtTheSameTimeShareMemory) {
  at::Tensor y;
  OperatorRecording recording({});
  const at::Tensor x = at::ones({1000});
  recording.begin_part();
  y = x + 1;
  for (int i = 0; i < 10; ++i) y = y * 2;
  recording.end_part();
  ASSERT_EQ(recording.failure(), "");
  OperatorPlan plan(recording, {y});
  EXPECT_EQ(plan.parts(), 1);
  EXPECT_LE(plan.arena_bytes(), 2 * 4096) << "of ten results, two at a time";
  plan.replay(0);
  EXPECT_EQ(y[0].item<float>(), 2048);
}

TEST(OperatorPlan, VersionsOfWhatWasThereAdvanceAsInAnOrdinaryStep) {
  const at::Tensor counter = at::zeros({1});
  Recorded recorded(numbers(2), [&](const at::Tensor& x) {
    counter.add_(1);
    counter.mul_(2);
    return x.sum() + counter;
  });
  ASSERT_EQ(recorded.why_not, "");
  const auto before = counter._version();
  recorded.replay(numbers(2));
  EXPECT_EQ(counter.item<float>(), 6);
  EXPECT_EQ(counter._version(), before + 2);
}

TEST(OperatorPlan, RandomNumbersGoOn) {
  at::manual_seed(3);
  Recorded recorded(numbers(2), [](const at::Tensor& x) { return at::dropout(x, 0.5, true).sum() + at::rand({1}); });
  ASSERT_EQ(recorded.why_not, "");
  const at::Tensor first = recorded.replay(numbers(2)).clone();
  const at::Tensor second = recorded.replay(numbers(2)).clone();
  at::manual_seed(3);
  for (const at::Tensor& expected : {at::Tensor(), first, second}) {
    const at::Tensor ordinary = recorded.work(numbers(2));
    if (expected.defined()) EXPECT_TRUE(ordinary.equal(expected));
  }
}

TEST(OperatorPlan, WhoHoldsAResultKeepsIt) {
  Recorded recorded(numbers(2), [](const at::Tensor& x) { return x.sum(); });
  ASSERT_EQ(recorded.why_not, "");
  const at::Tensor held = recorded.replay(numbers(2));
  const float value = held.item<float>();
  const at::Tensor renewed = recorded.recorder.renew(0);
  recorded.replay(numbers(2, 2));
  EXPECT_EQ(held.item<float>(), value);
  EXPECT_EQ(renewed.item<float>(), numbers(2, 2).sum().item<float>());
}

TEST(OperatorPlan, TakesTheKernelsOfAKernelScope) {
  const auto pool = [](const at::Tensor& x) { return std::get<0>(at::max_pool2d_with_indices(x, {2, 2}, {2, 2})); };
  const at::Tensor x = at::arange(64, at::kFloat).reshape({1, 1, 8, 8}).sin();
  const KernelScope scope;
  Recorded recorded(x, pool);
  ASSERT_EQ(recorded.why_not, "");
  const KernelScope libtorch_again(false);
  EXPECT_TRUE(recorded.replay(x).equal(pool(x)));
  EXPECT_EQ(recorded.compare(x + 1), "");
}

TEST(OperatorRecording, SaysWhichOperatorOfWhichUnitCannotBeReplayed) {
  const auto why_not = [](const std::function<at::Tensor(const at::Tensor&)>& work) {
    return Recorded(numbers(2), work).why_not;
  };
  EXPECT_THAT(why_not([](const at::Tensor& x) { return x + x.sum().item<float>(); }),
              HasSubstr("aten::_local_scalar_dense cannot be recorded: it looks at a value"));
  EXPECT_THAT(why_not([](const at::Tensor& x) { return x.nonzero(); }), HasSubstr("depends on values"));
  EXPECT_THAT(why_not([](const at::Tensor& x) { return x.to_sparse().to_dense(); }), HasSubstr("cannot be recorded"));
  EXPECT_THAT(why_not([](const at::Tensor& x) {
                const at::Tensor y = at::quantize_per_tensor(x, 0.1, 0, at::kQInt8);
                return y.dequantize();
              }),
              HasSubstr("not dense"));
  const at::Tensor counter = at::zeros({1});
  EXPECT_THAT(why_not([&](const at::Tensor& x) {
                const at::Tensor sum = x.sum() + counter;
                counter.data_ptr<float>()[0] += 1;
                return sum;
              }),
              HasSubstr("written through a pointer"));
  const std::string unit = "net.2 (Linear)";
  EXPECT_THAT(why_not([&](const at::Tensor& x) {
                set_recording_unit(&unit);
                const at::Tensor result = x + x.sum().item<float>();
                set_recording_unit(nullptr);
                return result;
              }),
              HasSubstr("aten::_local_scalar_dense in unit net.2 (Linear) cannot be recorded: it looks at a value"));
}

TEST(OperatorRecording, AnOrdinaryStepThatDoesSomethingElseIsFound) {
  double factor = 2;
  bool squares = false;
  Recorded recorded(numbers(2), [&](const at::Tensor& x) {
    const at::Tensor y = x * factor;
    return squares ? y.square().sum() : y.sum();
  });
  ASSERT_EQ(recorded.why_not, "");
  EXPECT_EQ(recorded.compare(numbers(2, 1)), "");
  factor = 3;
  EXPECT_EQ(recorded.compare(numbers(2, 1)),
            "argument 'other' of aten::mul.Scalar changes from step to step; got 3., recorded 2.");
  factor = 2;
  squares = true;
  EXPECT_THAT(recorded.compare(numbers(2, 1)), HasSubstr("where the recorded one ran aten::sum"));
}

TEST(OperatorRecording, WhatIsKeptIsFound) {
  CpuGraphRecorder recorder;
  at::Tensor x = recorder.begin_step({numbers(2)}, {}, {}).front();
  at::Tensor result;
  at::Tensor kept;
  recorder.watch([&] {
    const at::Tensor y = x.exp();
    kept = y.view({-1});
    result = y.sum();
  });
  ASSERT_EQ(recorder.end_step({result}), "");
  recorder.note_let_go();
  EXPECT_EQ(recorder.held_result({result}), "a tensor of the batch");
  x.reset();
  EXPECT_EQ(recorder.held_result({result}), "what aten::exp gave");
  kept.reset();
  EXPECT_EQ(recorder.held_result({result}), "");
}

TEST(OperatorRecording, WhatSomethingBetweenThePartsLetsGoOfIsFound) {
  const auto held = [](bool lets_go, bool takes) {
    CpuGraphRecorder recorder;
    at::Tensor x = recorder.begin_step({numbers(2)}, {}, {}).front();
    at::Tensor result;
    at::Tensor kept;
    at::Tensor taken;
    recorder.watch([&] { kept = x.exp(); });
    if (takes) taken = kept;
    recorder.watch([&] { result = kept.sum(); });
    if (takes) taken.reset();
    if (lets_go) kept.reset();
    recorder.watch([&] { result.add_(1); });
    kept.reset();
    x.reset();
    EXPECT_EQ(recorder.end_step({result}), "");
    recorder.note_let_go();
    return recorder.held_result({result});
  };
  EXPECT_EQ(held(true, false), "what aten::exp gave");
  EXPECT_EQ(held(true, true), "what aten::exp gave");
  CpuGraphRecorder recorder;
  at::Tensor x = recorder.begin_step({numbers(2)}, {}, {}).front();
  at::Tensor kept;
  at::Tensor taken;
  recorder.watch([&] { kept = x.exp(); });
  taken = kept;
  recorder.watch([&] { kept = kept.sum(); });
  taken.reset();
  x.reset();
  EXPECT_EQ(recorder.end_step({kept}), "");
  recorder.note_let_go();
  EXPECT_EQ(recorder.held_result({kept}), "");
}

}  // namespace
}  // namespace levin
