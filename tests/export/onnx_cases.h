#pragma once

#include <levin/core/data/batch.h>

#include <ATen/TracerMode.h>
#include <torch/nn.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

/// Uses of every operator that an export to ONNX knows, with values at the edges: NaN, infinities, zeros of both signs,
/// masks that leave nothing, sizes that broadcast, whole numbers and truth values, negative dimensions.
namespace levin::testing {

struct OnnxCase {
  std::string name;
  Batch example;
  std::function<Batch(const Batch&)> function;
  std::shared_ptr<torch::nn::Module> module = std::make_shared<torch::nn::SequentialImpl>();
  bool without_rows = true;  ///< whether onnxruntime runs it with no rows
};

class OnnxCases {
 public:
  /// A function of one tensor.
  OnnxCase& one(const std::string& name, const at::Tensor& x, const std::function<at::Tensor(const at::Tensor&)>& f) {
    return several(name, {{"x", x}}, [f](const Batch& batch) { return f(batch["x"]); });
  }
  /// A function of two.
  OnnxCase& two(const std::string& name, const at::Tensor& x, const at::Tensor& z,
                const std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>& f) {
    return several(name, {{"x", x}, {"z", z}}, [f](const Batch& batch) { return f(batch["x"], batch["z"]); });
  }
  OnnxCase& several(const std::string& name, const Batch& example, const std::function<at::Tensor(const Batch&)>& f) {
    return batches(name, example, [f](const Batch& batch) { return Batch{{"y", f(batch)}}; });
  }
  /// A function of one tensor that gives a list.
  OnnxCase& lists(const std::string& name, const at::Tensor& x,
                  const std::function<std::vector<at::Tensor>(const at::Tensor&)>& f) {
    return batches(name, {{"x", x}}, [f](const Batch& batch) {
      Batch result;
      const auto parts = f(batch["x"]);
      for (size_t i = 0; i < parts.size(); ++i) result.set("y" + std::to_string(i), parts[i]);
      return result;
    });
  }
  OnnxCase& batches(const std::string& name, const Batch& example, const std::function<Batch(const Batch&)>& f) {
    cases_.push_back({.name = name, .example = example, .function = f});
    return cases_.back();
  }
  /// A unit of torch::nn.
  template <class Holder>
  OnnxCase& unit(const std::string& name, Holder holder, const at::Tensor& x) {
    OnnxCase& added = one(name, x, [holder](const at::Tensor& input) mutable { return holder->forward(input); });
    added.module = holder.ptr();
    return added;
  }

  const std::vector<OnnxCase>& all() const { return cases_; }

 private:
  std::vector<OnnxCase> cases_;
};

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Three rows of numbers at the edges.
inline at::Tensor odd_numbers() {
  return torch::tensor({-kInfinity, -90.0F, -2.5F, -1.0F, -0.5F, -0.0F, 0.0F, 0.5F, 1.0F, 1.5F, 2.5F, 7.0F, 20.5F,
                        90.0F, 1e6F, kInfinity, kNan, -kNan})
      .view({3, 6});
}
/// Partners of them.
inline at::Tensor odd_partners() {
  return torch::tensor({2.0F, -3.0F, 0.0F, -1.0F, 0.1F, -0.0F, 3.0F, kNan, 1.0F, -0.5F, 2.0F, kInfinity, -2.0F, 0.5F,
                        -kInfinity, 1.0F, 2.0F, kInfinity})
      .view({3, 6});
}
inline at::Tensor whole_numbers() { return torch::tensor({-7, -2, -1, 0, 1, 3, 5, 8, -9, 4, 2, 6}).view({3, 4}); }
inline at::Tensor truths() { return torch::tensor({1, 0, 1, 0, 0, 0, 1, 1, 1, 1, 0, 1}).view({3, 4}).to(at::kBool); }
/// Numbers from -2.25 to 2.25, for the same sizes the same; constants, not operators, of a trace.
inline at::Tensor plain(at::IntArrayRef sizes) {
  const at::tracer::impl::NoTracerDispatchMode untraced;
  const int64_t count = c10::multiply_integers(sizes);
  return (torch::arange(count) * 7 % 19 - 9).to(at::kFloat).div(4).view(sizes);
}

void add_elementwise_cases(OnnxCases& cases);
void add_shape_cases(OnnxCases& cases);
void add_reduction_cases(OnnxCases& cases);
void add_product_cases(OnnxCases& cases);
void add_unit_cases(OnnxCases& cases);

}  // namespace levin::testing
