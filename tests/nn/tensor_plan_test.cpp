#include <levin/core/nn/tensor_plan.h>

#include <levin/core/base/error.h>
#include <levin/core/nn/parallelize.h>
#include <levin/core/nn/transformer/transformer_block.h>

#include <gmock/gmock.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include <array>
#include <cstddef>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

namespace levin {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct PlannedImpl : torch::nn::Module, HasTensorPlan {
  explicit PlannedImpl(TensorPlan given) : plan(std::move(given)) {
    register_module("qkv", torch::nn::Linear(8, 24));
    register_module("out", torch::nn::Linear(8, 8));
    register_module("up", torch::nn::Linear(torch::nn::LinearOptions(8, 12).bias(false)));
    table = register_parameter("table", torch::zeros({6, 8}));
  }
  TensorPlan tensor_plan() const override { return plan; }
  TensorPlan plan;
  at::Tensor table;
};
TORCH_MODULE(Planned);

struct RootImpl : torch::nn::Module {
  explicit RootImpl(const TensorPlan& plan) {
    register_module("a", Planned(plan));
    register_module("b", Planned(plan));
  }
};

std::vector<std::string> described(const std::vector<CutWeight>& weights) {
  std::vector<std::string> all;
  for (const CutWeight& weight : weights)
    all.push_back(weight.name +
                  (weight.rule.cut == TensorCut::kColumn ? " column"
                   : weight.rule.cut == TensorCut::kRow  ? " row"
                                                         : " vocabulary") +
                  (weight.bias.defined() ? " " + weight.bias_name : ""));
  return all;
}

const TensorRule kQkv{.pattern = "qkv", .cut = TensorCut::kColumn, .parts = 3, .heads = 4};
const TensorRule kOut{.pattern = "out", .cut = TensorCut::kRow, .heads = 4};

TEST(TensorPlan, NamesTheWeightsOfEveryModuleThatHasOne) {
  const auto made = std::make_shared<RootImpl>(TensorPlan{kQkv, kOut});
  RootImpl& root = *made;
  EXPECT_THAT(described(weights_to_cut(root, 2, {}, "plan")),
              ElementsAre("a.qkv.weight column a.qkv.bias", "a.out.weight row a.out.bias",
                          "b.qkv.weight column b.qkv.bias", "b.out.weight row b.out.bias"));
  // Further rules add and replace.
  EXPECT_THAT(described(weights_to_cut(root, 2,
                                       {{.pattern = "b.*", .cut = TensorCut::kWhole},
                                        {.pattern = "a.up", .cut = TensorCut::kColumn},
                                        {.pattern = "a.table", .cut = TensorCut::kVocabulary}},
                                       "plan")),
              ElementsAre("a.table vocabulary", "a.qkv.weight column a.qkv.bias", "a.out.weight row a.out.bias",
                          "a.up.weight column"));
}

TEST(TensorPlan, OfLevinsBlocksIsAlongHeadsAndHiddenFeatures) {
  nn::TransformerBlock block(
      nn::TransformerBlockOptions{.attention = {.width = 8, .heads = 4, .key_value_heads = 2}, .mlp = {.hidden = 12}});
  EXPECT_THAT(described(weights_to_cut(*block, 2, {}, "plan")),
              ElementsAre("self_attn.q_proj.weight column", "self_attn.k_proj.weight column",
                          "self_attn.v_proj.weight column", "self_attn.o_proj.weight row",
                          "mlp.gate_proj.weight column", "mlp.up_proj.weight column", "mlp.down_proj.weight row"));
}

TEST(TensorPlan, SaysWhatDoesNotFit) {
  const auto refusal = [](const TensorPlan& plan, int64_t ranks, const TensorPlan& further = {}) {
    const auto root = std::make_shared<RootImpl>(plan);
    try {
      weights_to_cut(*root, ranks, further, "strategy.tensor.plan");
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  EXPECT_THAT(refusal({kQkv, kOut}, 3),
              HasSubstr("tensor_plan of Planned 'a': the weight 'qkv.weight' cannot be cut by column over 3 ranks: it "
                        "has 4 heads; valid: a multiple of 3 (the next is 6), or over 2 ranks"));
  EXPECT_THAT(refusal({kQkv, kOut}, 8),
              HasSubstr("it has 4 heads; valid: a multiple of 8 (the next is 8), or over 2 or 4 ranks"));
  EXPECT_THAT(refusal({{.pattern = "up"}, kOut}, 8),
              HasSubstr("it has 12 outputs; valid: a multiple of 8 (the next is 16), or over 2 or 3 or 4 or 6 ranks"));
  EXPECT_THAT(refusal({{.pattern = "qkv", .parts = 3}, kOut}, 5),
              HasSubstr("it has 24 outputs; valid: a multiple of 15 (the next is 30), or over 2 or 4 ranks"));
  EXPECT_THAT(refusal({kQkv, kOut, {.pattern = "table", .cut = TensorCut::kVocabulary}}, 4),
              HasSubstr("'table' cannot be cut by vocabulary over 4 ranks: it has 6 rows; valid: a multiple of 4 (the "
                        "next is 8), or over 2 or 3 ranks"));
  EXPECT_THAT(refusal({{.pattern = "qkv", .heads = 5}, kOut}, 5), HasSubstr("its 24 outputs do not consist of"));
  EXPECT_THAT(refusal({{.pattern = "qvk"}, kOut}, 2),
              HasSubstr("the pattern 'qvk' matches no weight; did you mean 'qkv'?"));
  EXPECT_THAT(refusal({{.pattern = "*"}, kOut}, 2), HasSubstr("matches twice; got 'out' as the second pattern"));
  EXPECT_THAT(refusal({kQkv}, 2), HasSubstr("it cuts layers by column and none by row"));
  EXPECT_THAT(refusal({kOut}, 2), HasSubstr("it cuts layers by row and none by column"));
  EXPECT_THAT(refusal({kQkv, {.pattern = "out", .cut = TensorCut::kRow, .parts = 2}}, 2),
              HasSubstr("parts are at least 1 (but by column: 1)"));
  EXPECT_THAT(refusal({}, 2), HasSubstr("cuts layers by their modules' plans, and"));
  EXPECT_THAT(refusal({kQkv, kOut}, 2, {{.pattern = "*.out", .cut = TensorCut::kWhole}}),
              HasSubstr("strategy.tensor.plan: layers are cut by column and none by row"));
  EXPECT_THAT(refusal({kQkv, kOut}, 2, {{.pattern = "c.*", .cut = TensorCut::kWhole}}),
              HasSubstr("strategy.tensor.plan: the pattern 'c.*' matches no weight"));
}

TEST(TensorPlan, OfModulesThatHaveTiedWeightsCutsTheBiasOfTheHead) {
  struct Head : torch::nn::Module, HasTensorPlan {
    explicit Head(const at::Tensor& tied) {
      register_parameter("weight", tied);
      register_parameter("bias", torch::zeros({tied.size(0)}));
    }
    TensorPlan tensor_plan() const override { return {{.pattern = "weight", .cut = TensorCut::kVocabulary}}; }
  };
  const auto root = std::make_shared<torch::nn::Module>();
  const auto rows =
      std::make_shared<PlannedImpl>(TensorPlan{{.pattern = "table", .cut = TensorCut::kVocabulary}, kQkv, kOut});
  root->register_module("rows", rows);
  root->register_module("head", std::make_shared<Head>(rows->table));
  EXPECT_THAT(described(weights_to_cut(*root, 2, {}, "plan")),
              ElementsAre("rows.table vocabulary head.bias", "rows.qkv.weight column rows.qkv.bias",
                          "rows.out.weight row rows.out.bias"));
}

TEST(TensorPlan, NamesATiedWeightByAnyOfItsNames) {
  struct Head : torch::nn::Module {
    explicit Head(const at::Tensor& tied) {
      register_parameter("weight", tied);
      register_parameter("bias", torch::zeros({tied.size(0)}));
    }
  };
  const auto root = std::make_shared<torch::nn::Module>();
  const auto rows = std::make_shared<PlannedImpl>(TensorPlan{kQkv, kOut});
  root->register_module("rows", rows);
  root->register_module("head", std::make_shared<Head>(rows->table));
  const auto cut = [&](const std::vector<std::string>& patterns) {
    TensorPlan further;
    for (const std::string& pattern : patterns) further.push_back({.pattern = pattern, .cut = TensorCut::kVocabulary});
    return described(weights_to_cut(*root, 2, further, "plan")).front();
  };
  for (const std::vector<std::string>& patterns : std::vector<std::vector<std::string>>{
           {"head"}, {"head.weight"}, {"rows.table"}, {"rows.table", "head"}, {"head", "rows.*able"}})
    EXPECT_EQ(cut(patterns), "rows.table vocabulary head.bias") << patterns.front();
  try {
    weights_to_cut(
        *root, 2,
        {{.pattern = "head", .cut = TensorCut::kVocabulary}, {.pattern = "rows.table", .cut = TensorCut::kRow}},
        "plan");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("the weight 'rows.table' matches twice"));
  }
}

/// A module of a library, which has no plan.
struct ForeignImpl : torch::nn::Module {
  ForeignImpl() {
    register_module("up", torch::nn::Linear(8, 16));
    register_module("down", torch::nn::Linear(16, 8));
  }
};

const TensorPlan kUpDown{{.pattern = "up", .cut = TensorCut::kColumn}, {.pattern = "down", .cut = TensorCut::kRow}};

TEST(Parallelize, GivesAPlanToModulesWhoseTypesHaveNone) {
  const auto root = std::make_shared<torch::nn::Module>();
  for (const char* name : {"a", "b", "c"}) root->register_module(name, std::make_shared<ForeignImpl>());
  const auto& children = root->named_children();
  EXPECT_THROW(weights_to_cut(*root, 2, {}, "plan"), ConfigError);
  parallelize(*children["a"], kUpDown);
  parallelize(*children["c"], kUpDown);
  EXPECT_THAT(described(weights_to_cut(*root, 2, {}, "plan")),
              ElementsAre("a.up.weight column a.up.bias", "a.down.weight row a.down.bias",
                          "c.up.weight column c.up.bias", "c.down.weight row c.down.bias"));
  parallelize(*children["c"], {});  // the newest counts
  EXPECT_THAT(described(weights_to_cut(*root, 2, {}, "plan")),
              ElementsAre("a.up.weight column a.up.bias", "a.down.weight row a.down.bias"));
  parallelize(*children["c"], {{.pattern = "op", .cut = TensorCut::kColumn}});
  try {
    weights_to_cut(*root, 2, {}, "plan");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("tensor_plan of Foreign 'c': the pattern 'op' matches no weight"));
  }
}

TEST(Parallelize, TakesThePlaceOfWhatATypeSays) {
  const auto root = std::make_shared<RootImpl>(TensorPlan{kQkv, kOut});
  parallelize(*root->named_children()["a"], {});
  EXPECT_THAT(described(weights_to_cut(*root, 2, {}, "plan")),
              ElementsAre("b.qkv.weight column b.qkv.bias", "b.out.weight row b.out.bias"));
}

TEST(Parallelize, IsOfOneModuleAloneAndEndsWithIt) {
  alignas(ForeignImpl) std::array<std::byte, sizeof(ForeignImpl)> memory{};
  const auto build = [&memory] {
    return std::shared_ptr<ForeignImpl>(new (memory.data()) ForeignImpl,
                                        [](ForeignImpl* module) { module->~ForeignImpl(); });
  };
  auto first = build();
  parallelize(*first, kUpDown);
  EXPECT_TRUE(tensor_plan_of(*first));
  first.reset();
  const auto second = build();  // where the first one was
  EXPECT_FALSE(tensor_plan_of(*second));
}

TEST(Parallelize, IsRefusedForWhatNothingOwns) {
  ForeignImpl on_the_stack;
  try {
    parallelize(on_the_stack, kUpDown);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("levin::parallelize was given Foreign while nothing owns it"));
  }
}

}  // namespace
}  // namespace levin
