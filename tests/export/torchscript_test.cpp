// Models as TorchScript: LibTorch and Python get the very numbers of the module, in both modes, with any batch size.

#include "../support/run_program.h"
#include "../support/tiny.h"
#include "exported_models.h"
#include "tests/support/tree.h"

#include <gtest/gtest.h>
#include <torch/script.h>

#include <filesystem>
#include <map>

namespace levin {
namespace {

using testing::ExportedModel;

std::vector<at::Tensor> results_of(const torch::jit::Module& script, const Batch& batch,
                                   const std::vector<std::string>& inputs) {
  torch::jit::Stack stack;
  for (const auto& name : inputs) stack.emplace_back(batch[name]);
  const c10::IValue value = const_cast<torch::jit::Module&>(script).forward(stack);
  if (value.isTensor()) return {value.toTensor()};
  std::vector<at::Tensor> results;
  for (const auto& entry : value.toGenericDict()) results.push_back(entry.value().toTensor());
  return results;
}

std::map<std::string, at::Tensor> copies_of(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> copies;
  for (const auto& [name, tensor] : named_tensors(module)) copies[name] = tensor.detach().clone();
  return copies;
}

class TorchScriptExport : public ::testing::TestWithParam<std::string> {};

TEST_P(TorchScriptExport, HasTheResultsOfTheModuleInBothModesWithAnyNumberOfRows) {
  ExportedModel model = testing::exported_model(GetParam());
  const std::string path = testing::fresh_folder("torchscript") + "/model.pt";
  const ExportReport report = export_model(*model.module, model.function, model.batch(4), path);
  EXPECT_EQ(report.fixed, std::vector<std::string>());
  EXPECT_EQ(report.files, std::vector<std::string>{path});

  auto script = torch::jit::load(path);
  EXPECT_FALSE(script.is_training());
  // Its module takes kernels of Levin's own, the program operators of LibTorch: equal to rounding.
  const bool has_own_kernels = GetParam() == "llama";
  const torch::NoGradGuard no_gradients;
  for (const bool training : {false, true}) {
    model.module->train(training);
    script.train(training);
    for (const int64_t rows : {1, 4, 9}) {
      if (rows == 1 && training) continue;  // BatchNorm wants more
      const Batch batch = model.batch(rows);
      const auto kept = copies_of(*model.module);
      torch::manual_seed(3);
      const Batch expected = model.function(batch);
      torch::manual_seed(3);
      const auto results = results_of(script, batch, report.inputs);
      ASSERT_EQ(results.size(), expected.items().size());
      for (size_t i = 0; i < results.size(); ++i)
        EXPECT_TRUE(has_own_kernels ? at::allclose(results[i], expected.items()[i].second, 1e-5, 1e-5)
                                    : at::equal(results[i], expected.items()[i].second))
            << rows << " rows, training " << training << ", " << expected.items()[i].first;
    }
  }
  // BatchNorm has taken its statistics in both.
  for (const auto& buffer : script.named_buffers())
    EXPECT_TRUE(at::equal(buffer.value, model.module->named_buffers()[buffer.name])) << buffer.name;
}

TEST_P(TorchScriptExport, KeepsTheNamesOfParametersAndBuffers) {
  const ExportedModel model = testing::exported_model(GetParam());
  const std::string path = testing::fresh_folder("torchscript") + "/model.pt";
  export_model(*model.module, model.function, model.batch(4), path);
  const auto script = torch::jit::load(path);
  std::map<std::string, at::Tensor> in_file;
  for (const auto& parameter : script.named_parameters()) in_file[parameter.name] = parameter.value;
  for (const auto& buffer : script.named_buffers()) in_file[buffer.name] = buffer.value;
  size_t own = 0;
  for (const auto& [name, tensor] : named_tensors(*model.module)) {
    ++own;
    ASSERT_TRUE(in_file.contains(name)) << name;
    EXPECT_TRUE(at::equal(in_file.at(name), tensor)) << name;
    EXPECT_EQ(in_file.at(name).requires_grad(), tensor.requires_grad()) << name;
  }
  EXPECT_EQ(in_file.size(), own);
}

TEST_P(TorchScriptExport, LeavesTheModuleAndTheGeneratorsAsTheyWere) {
  const ExportedModel model = testing::exported_model(GetParam());
  model.module->train();
  model.module->children().front()->eval();
  std::map<std::string, bool> modes;
  for (const auto& part : model.module->named_modules()) modes[part.key()] = part.value()->is_training();
  const auto before = copies_of(*model.module);
  torch::manual_seed(5);
  const at::Tensor expected = torch::rand({4});
  const Batch batch = model.batch(4);
  torch::manual_seed(5);
  export_model(*model.module, model.function, batch, testing::fresh_folder("torchscript") + "/model.pt");
  EXPECT_TRUE(at::equal(torch::rand({4}), expected));
  for (const auto& part : model.module->named_modules())
    EXPECT_EQ(part.value()->is_training(), modes.at(part.key())) << part.key();
  for (const auto& [name, tensor] : named_tensors(*model.module)) {
    EXPECT_TRUE(at::equal(tensor, before.at(name))) << name;
    EXPECT_FALSE(tensor.grad().defined()) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, TorchScriptExport,
                         ::testing::Values("mlp", "cnn", "resnet", "recurrent", "gpt2", "llama", "encoder", "vit",
                                           "vae", "masked"),
                         [](const auto& info) { return info.param; });

TEST(TorchScriptInPython, GivesTheSameNumbersAndTrainsOn) {
  const std::string folder = testing::fresh_folder("torchscript_python");
  for (const ExportedModel& model : testing::exported_models()) {
    const ExportReport report =
        export_model(*model.module, model.function, model.batch(4), folder + "/" + model.name + ".pt");
    model.module->eval();
    const torch::NoGradGuard no_gradients;
    for (const int64_t rows : {1, 9}) {
      const Batch batch = model.batch(rows);
      std::vector<NamedTensor> tensors;
      for (size_t i = 0; i < report.inputs.size(); ++i)
        tensors.emplace_back("input" + std::to_string(i), batch[report.inputs[i]]);
      const Batch results = model.function(batch);
      for (size_t i = 0; i < report.outputs.size(); ++i)
        tensors.emplace_back("output" + std::to_string(i), results[report.outputs[i]]);
      const auto file = FileSystem::current().create(folder + "/" + model.name + std::to_string(rows) + ".safetensors");
      write_safetensors(*file, tensors);
      file->close();
    }
  }
  const auto read = testing::run_program(
      {testing::torch_python(), "-W", "ignore", testing::source_path("tests/export/use_torchscript.py"), folder});
  ASSERT_EQ(read.status, 0) << read.out << read.err;
  EXPECT_EQ(read.out, "10 models\n");
}

}  // namespace
}  // namespace levin
