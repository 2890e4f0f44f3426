// Every operator of the table, at the edges of what it takes: onnxruntime gives LibTorch's numbers.

#include <levin/core/export/model_trace.h>
#include <levin/core/export/onnx_operators.h>

#include "../loggers/test_python.h"
#include "../support/run_program.h"
#include "../support/tiny.h"
#include "exported_models.h"
#include "onnx_cases.h"
#include "tests/support/tree.h"

#include <gtest/gtest.h>

#include <set>

namespace levin {
namespace {

using testing::OnnxCase;

std::vector<OnnxCase> onnx_cases() {
  torch::manual_seed(1);
  testing::OnnxCases cases;
  testing::add_elementwise_cases(cases);
  testing::add_shape_cases(cases);
  testing::add_reduction_cases(cases);
  testing::add_product_cases(cases);
  testing::add_unit_cases(cases);
  return cases.all();
}

/// Writes inputs of so many rows and what the case makes of them, for run_operators.py. Returns whether it did:
/// LibTorch refuses some without rows.
bool write_results(const OnnxCase& of, const ExportReport& report, int64_t rows, const std::string& folder) {
  const torch::NoGradGuard no_gradients;
  of.module->eval();
  const Batch batch = of.example.slice(0, rows);
  Batch results;
  try {
    results = of.function(batch);
  } catch (const c10::Error&) {
    if (rows == 0) return false;
    throw;
  }
  std::vector<NamedTensor> tensors;
  for (const auto& name : report.inputs) tensors.emplace_back("in." + name, batch[name]);
  for (const auto& [name, tensor] : results.items()) tensors.emplace_back("out." + name, tensor);
  const auto file = FileSystem::current().create(fmt::format("{}/{}.{}.safetensors", folder, of.name, rows));
  write_safetensors(*file, tensors);
  file->close();
  return true;
}

/// Adds the names of the operators that a case runs, those that write in place as those that do not.
void add_operators(const OnnxCase& of, std::set<std::string>& used) {
  const ModelTrace trace = trace_model(*of.module, of.function, of.example);
  for (const torch::jit::Node* node : trace.evaluation->nodes()) {
    std::string name = node->kind().toQualString();
    if (name.ends_with('_')) name.pop_back();
    used.insert(name);
  }
}

TEST(OnnxOperators, GiveLibTorchsNumbersAtTheEdges) {
  const std::string folder = testing::fresh_folder("operators");
  int64_t files = 0;
  for (const OnnxCase& of : onnx_cases()) {
    SCOPED_TRACE(of.name);
    ExportReport report;
    EXPECT_NO_THROW(report = export_model(*of.module, of.function, of.example, folder + "/" + of.name + ".onnx"));
    if (report.files.empty()) continue;
    EXPECT_EQ(report.fixed, std::vector<std::string>());
    for (const int64_t rows : {0, 1, 3}) {
      if (rows > 0 || of.without_rows) files += write_results(of, report, rows, folder) ? 1 : 0;
    }
  }
  if (const std::string missing = testing::missing_module("onnxruntime"); !missing.empty()) GTEST_SKIP() << missing;
  const auto run = testing::run_program(
      {testing::test_python(), "-W", "ignore", testing::source_path("tests/export/run_operators.py"), folder});
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(run.out, std::to_string(files) + " results\n");
}

TEST(OnnxOperators, AreAllAmongTheCases) {
  std::set<std::string> used;
  for (const OnnxCase& of : onnx_cases()) add_operators(of, used);
  for (const std::string_view name : onnx_operators())
    EXPECT_TRUE(used.contains(std::string(name))) << name << " has no case in onnx_cases.cpp";
}

}  // namespace
}  // namespace levin
