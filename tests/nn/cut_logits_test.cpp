#include <levin/core/nn/cut_logits.h>

#include "tests/nn/on_thread_ranks.h"

#include <levin/core/base/error.h>
#include <levin/core/comm/dimension_cut.h>
#include <levin/core/nn/linear_cross_entropy.h>
#include <levin/core/nn/linear_partition.h>

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/embedding.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace levin {
namespace {

namespace F = torch::nn::functional;
using ::testing::HasSubstr;

constexpr int64_t kClasses = 12;

/// A use of logits [2, 5, classes] and of targets [2, 5].
struct Idiom {
  const char* name;
  std::function<at::Tensor(const at::Tensor& logits, const at::Tensor& targets)> use;
};

at::Tensor smoothed(const at::Tensor& logits, const at::Tensor& targets, double smoothing, bool sum) {
  auto options = F::CrossEntropyFuncOptions().label_smoothing(smoothing).ignore_index(3);
  if (sum) options.reduction(torch::kSum);
  return F::cross_entropy(logits.flatten(0, 1), targets.flatten(), options);
}

const std::vector<Idiom>& right_idioms() {
  static const std::vector<Idiom> idioms{
      {"flatten", [](auto& l, auto& t) { return F::cross_entropy(l.flatten(0, 1), t.flatten()); }},
      {"view",
       [](auto& l, auto& t) {
         return F::cross_entropy(l.view({-1, l.size(-1)}), t.view(-1));
       }},
      {"shifted",
       [](auto& l, auto& t) {
         return F::cross_entropy(l.slice(1, 0, -1).contiguous().view({-1, l.size(-1)}), t.slice(1, 1).flatten());
       }},
      {"in float64", [](auto& l, auto& t) { return F::cross_entropy(l.flatten(0, 1).to(at::kDouble), t.flatten()); }},
      {"divided by a temperature", [](auto& l, auto& t) { return F::cross_entropy(l.flatten(0, 1) / 2, t.flatten()); }},
      {"capped softly",
       [](auto& l, auto& t) { return F::cross_entropy(3 * (l / 3).tanh().flatten(0, 1), t.flatten()); }},
      {"a number added in place",
       [](auto& l, auto& t) {
         at::Tensor y = l * 1;
         y += 0.5;
         return F::cross_entropy(y.flatten(0, 1), t.flatten());
       }},
      {"smoothed, with what is ignored", [](auto& l, auto& t) { return smoothed(l, t, 0.1, false); }},
      {"summed", [](auto& l, auto& t) { return smoothed(l, t, 0.2, true); }},
      {"row by row", [](auto& l, auto& t) {
         const at::Tensor rows =
             F::cross_entropy(l.flatten(0, 1), t.flatten(), F::CrossEntropyFuncOptions().reduction(torch::kNone));
         return (rows * at::arange(10, rows.options())).sum();
       }}};
  return idioms;
}

const std::vector<Idiom>& refused_idioms() {
  static const std::vector<Idiom> idioms{
      {"aten::log_softmax", [](auto& l, auto& t) { return F::nll_loss(l.flatten(0, 1).log_softmax(1), t.flatten()); }},
      {"aten::softmax", [](auto& l, auto&) { return l.softmax(-1).sum(); }},
      {"aten::square", [](auto& l, auto&) { return l.square().mean(); }},
      {"aten::topk", [](auto& l, auto&) { return std::get<0>(l.topk(2)).sum(); }},
      {"aten::logsumexp", [](auto& l, auto&) { return l.logsumexp(-1).sum(); }},
      {"aten::linear",
       [](auto& l, auto&) {
         return at::linear(l, at::ones({3, l.size(-1)})).sum();
       }},
      {"aten::linear",
       [](auto& l, auto&) {
         return at::linear(at::ones({3, l.size(-1)}), l[0]).sum();
       }},
      {"aten::matmul",
       [](auto& l, auto&) {
         return at::matmul(l, at::ones({l.size(-1), 3})).sum();
       }},
      {"aten::matmul",
       [](auto& l, auto&) {
         return at::matmul(at::ones({3, l.size(-1)}), l.transpose(1, 2)).sum();
       }},
      {"aten::addmm",
       [](auto& l, auto&) {
         return at::addmm(at::ones({3}), l[0], at::ones({l.size(-1), 3})).sum();
       }},
      {"aten::addmm",
       [](auto& l, auto&) {
         return at::addmm(l[0], at::ones({5, 2}), at::ones({2, l.size(-1)})).sum();
       }},
      {"aten::embedding", [](auto& l, auto& t) { return at::embedding(l.flatten(0, 1), t.remainder(2)).sum(); }},
      {"argmax over other", [](auto& l, auto&) { return l.argmax(0); }},
      {"cross_entropy with weights", [](auto& l, auto& t) { return F::cross_entropy(l.transpose(1, 2), t); }}};
  return idioms;
}

at::Tensor share_of(const at::Tensor& logits, const std::shared_ptr<Collective>& group) {
  const int64_t size = logits.size(-1) / group->world_size();
  return make_cut_logits(logits.narrow(-1, group->rank() * size, size).contiguous(),
                         {.group = group, .begin = group->rank() * size, .size = size, .classes = logits.size(-1)});
}

TEST(CutLogits, EveryIdiomOfALossIsRightOrRefused) {
  torch::manual_seed(1);
  const at::Tensor values = at::randn({2, 5, kClasses});
  // Of some classes alone, too: those of one rank.
  for (const int64_t most : {kClasses, kClasses / 2}) {
    const at::Tensor targets = at::randint(most, {2, 5}, at::kLong);
    for (const int64_t ranks : {2, 4})
      testing::on_thread_ranks(ranks, [&](const std::shared_ptr<Collective>& group) {
        for (const Idiom& idiom : right_idioms()) {
          SCOPED_TRACE(idiom.name);
          const at::Tensor whole = values.clone().requires_grad_();
          const at::Tensor expected = idiom.use(whole, targets);
          expected.backward();
          const at::Tensor own = values.clone().requires_grad_();
          const at::Tensor got = idiom.use(share_of(own, group), targets);
          EXPECT_FALSE(are_cut_logits(got));
          EXPECT_TRUE(got.detach().allclose(expected.detach(), 1e-6, 1e-6)) << got << expected;
          got.backward();
          const int64_t size = kClasses / ranks;
          const auto part = [&](const at::Tensor& t) { return t.narrow(-1, group->rank() * size, size); };
          EXPECT_TRUE(part(own.grad()).allclose(part(whole.grad()), 1e-5, 1e-7));
        }
        for (const Idiom& idiom : refused_idioms())
          for (const bool grad : {true, false}) {
            const at::AutoGradMode mode(grad);
            try {
              idiom.use(share_of(values, group), targets);
              ADD_FAILURE() << idiom.name << " was not refused";
            } catch (const Error& error) {
              EXPECT_THAT(error.what(), HasSubstr(idiom.name));
              EXPECT_THAT(error.what(), HasSubstr("levin::full_logits"));
            }
          }
        const c10::InferenceMode inference;
        const at::Tensor share = share_of(values, group);
        EXPECT_TRUE(at::equal(share.argmax(-1), values.argmax(-1)));
        EXPECT_TRUE(at::equal((share / 2).argmax(2, true), values.argmax(2, true)));
        EXPECT_TRUE(at::equal(full_logits(share), values));
        EXPECT_TRUE(at::equal(full_logits(values), values));
      });
  }
}

TEST(CutLogits, SayWhichTargetIsNoClass) {
  testing::on_thread_ranks(2, [&](const std::shared_ptr<Collective>& group) {
    try {
      F::cross_entropy(share_of(at::randn({2, kClasses}), group), at::tensor({3, 12}, at::kLong));
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("a target is no class; got 12; valid: 0 to 11, or -100"));
    }
  });
}

TEST(VocabularyPartition, AnEmbeddingAndItsTiedHeadAreTheWholeOnes) {
  torch::manual_seed(1);
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(kClasses, 6).padding_idx(2));
  table->to(at::kDouble);
  const at::Tensor tokens = at::randint(kClasses, {3, 5}, at::kLong);
  const auto losses = [](const at::Tensor& weight, const at::Tensor& embedded, const at::Tensor& targets) {
    const at::Tensor x = embedded.sin();
    return nn::functional::linear_cross_entropy(x, weight, targets, {.label_smoothing = 0.1}) +
           F::cross_entropy(at::linear(x, weight).flatten(0, 1), targets.flatten());
  };
  const at::Tensor expected = losses(table->weight, table(tokens), tokens);
  expected.backward();
  for (const int64_t ranks : {2, 4})
    testing::on_thread_ranks(ranks, [&](const std::shared_ptr<Collective>& group) {
      const DimensionCut rows(group, 0);
      torch::nn::Embedding own(torch::nn::EmbeddingOptions(kClasses, 6).padding_idx(2));
      own->weight.set_data(rows.part_of(table->weight));
      add_weight_behaviour(own->weight, "table", make_vocabulary_behaviour(group));
      const at::Tensor embedded = own(tokens);
      EXPECT_TRUE(embedded.allclose(table(tokens), 0, 1e-12));
      const at::Tensor got = losses(own->weight, embedded, tokens);
      EXPECT_NEAR(got.item<double>(), expected.item<double>(), 1e-12);
      got.backward();
      EXPECT_TRUE(own->weight.grad().allclose(rows.part_of(table->weight.grad()), 0, 1e-12));
      try {
        own(at::tensor({12}, at::kLong));
        ADD_FAILURE() << "nothing was thrown";
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("an index is not in the embedding 'table'; got 12; valid: 0 to 11"));
      }
    });
}

}  // namespace
}  // namespace levin
