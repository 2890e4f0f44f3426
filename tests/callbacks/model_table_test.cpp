#include <levin/callbacks/model_table.h>

#include <levin/core/nn/sequential.h>
#include <levin/core/nn/unit.h>

#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

namespace levin {
namespace {

struct BlockImpl : torch::nn::Module {
  BlockImpl() { linear = register_module("linear", torch::nn::Linear(3, 3)); }
  at::Tensor forward(const at::Tensor& x) { return linear(x); }
  torch::nn::Linear linear{nullptr};
};
LEVIN_UNIT(Block);

struct Net : torch::nn::Module {
  Net() {
    net = register_module("net", Sequential(torch::nn::Linear(4, 3), torch::nn::ReLU(), torch::nn::BatchNorm1d(3)));
    block = register_module("block", Block());
    shared = register_module("shared", block->linear);
    block->linear->bias.set_requires_grad(false);
    block->eval();
  }
  Sequential net{nullptr};
  Block block{nullptr};
  torch::nn::Linear shared{nullptr};
};

TEST(ModelTable, CountsEachTensorOnce) {
  const Net net;
  const ModelTable table = tabulate_model(net, 1);
  EXPECT_EQ(table.trainable, 4 * 3 + 3 + 3 + 3 + 3 * 3);
  EXPECT_EQ(table.frozen, 3);
  EXPECT_EQ(table.parameter_bytes, 4 * (table.trainable + table.frozen));
  EXPECT_EQ(table.buffers, 3 + 3 + 1);
  EXPECT_EQ(table.buffer_bytes, 4 * 6 + 8);
}

TEST(ModelTable, Depths) {
  const Net net;
  EXPECT_TRUE(tabulate_model(net, 0).rows.empty());
  const auto rows = tabulate_model(net, 1).rows;
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].name, "net");
  EXPECT_EQ(rows[0].type, "Sequential");
  EXPECT_EQ(rows[0].parameters, 21);
  EXPECT_TRUE(rows[0].training);
  EXPECT_EQ(rows[1].type, "Block");
  EXPECT_EQ(rows[1].parameters, 12);
  EXPECT_FALSE(rows[1].training);
  EXPECT_EQ(rows[2].type, "Linear");
  const auto all = tabulate_model(net, -1).rows;
  ASSERT_EQ(all.size(), 7u);
  EXPECT_EQ(all[1].name, "net.0");
  EXPECT_EQ(all[1].type, "Linear");
  EXPECT_EQ(all[5].name, "block.linear");
}

TEST(ModelTable, Text) {
  const Net net;
  EXPECT_EQ(tabulate_model(net, 1).to_text(),
            "  name   | type       |  params | mode\n"
            "---------------------------------------\n"
            "  net    | Sequential |      21 | train\n"
            "  block  | Block      |      12 | eval\n"
            "  shared | Linear     |      12 | eval\n"
            "---------------------------------------\n"
            "  30        trainable parameters\n"
            "  3         non-trainable parameters\n"
            "  33        parameters in total\n"
            "  7         elements in buffers (0.000 MB)\n"
            "  0.000     MB of parameters");
}

TEST(ModelTable, ShortCounts) {
  EXPECT_EQ(short_count(0), "0");
  EXPECT_EQ(short_count(999), "999");
  EXPECT_EQ(short_count(1234), "1.2 K");
  EXPECT_EQ(short_count(101770), "101 K");
  EXPECT_EQ(short_count(999999), "999 K");
  EXPECT_EQ(short_count(2000000), "2.0 M");
  EXPECT_EQ(short_count(1'230'000'000), "1.2 B");
  EXPECT_EQ(short_count(5'000'000'000'000'000), "5000 T");
}

}  // namespace
}  // namespace levin
