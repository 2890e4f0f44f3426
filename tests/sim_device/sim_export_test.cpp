#include <levin/core/export/export_model.h>

#include <levin/core/nn/move_to_device.h>

#include "tests/support/sim_device/sim_device.h"
#include "tests/support/tiny.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <string>
#include <vector>

namespace levin::testing {
namespace {

// An export computes on the CPU. An optimizer holds the parameters, so that they must be the same tensors afterwards.
TEST(SimExport, LeavesParametersAndBuffersOnTheirDevices) {
  levin::Sequential net{torch::nn::Linear(4, 2), torch::nn::BatchNorm1d(2)};
  move_to_device(*net, sim::device(1));
  std::vector<at::Tensor> tensors = net->parameters();
  for (const at::Tensor& buffer : net->buffers()) tensors.push_back(buffer);
  std::vector<at::Tensor> values;
  for (const at::Tensor& tensor : tensors) values.push_back(tensor.detach().cpu().clone());

  const ExportedFunction function = [&net](const Batch& batch) { return Batch{{"y", net(batch["x"])}}; };
  export_model(*net, function, {{"x", torch::rand({4, 4})}}, fresh_folder("sim_export") + "/model.pt");

  std::vector<at::Tensor> after = net->parameters();
  for (const at::Tensor& buffer : net->buffers()) after.push_back(buffer);
  ASSERT_EQ(after.size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_TRUE(after[i].is_same(tensors[i]));
    EXPECT_EQ(tensors[i].device(), sim::device(1));
    EXPECT_TRUE(tensors[i].detach().cpu().equal(values[i]));
  }
}

}  // namespace
}  // namespace levin::testing
