#include <levin/core/interfaces/strategy.h>

#include <levin/core/base/error.h>
#include <levin/core/interfaces/cluster_environment.h>
#include <levin/core/interfaces/module.h>

#include <ATen/ops/tensor.h>
#include <fmt/format.h>

namespace levin {

StepOutput Strategy::forward_backward(const Batch& batch, StepPhases& phases, const AccumulationWindow&) {
  StepOutput output = phases.forward(batch);
  if (!output.has_loss()) return output;
  phases.before_backward(output);
  phases.backward(output);
  phases.after_backward();
  return output;
}

DividedModel& Strategy::divided_model() {
  static DividedModel whole;
  return whole;
}

int64_t Strategy::rank() { return environment().rank(); }
int64_t Strategy::world_size() { return environment().world_size(); }

std::string Strategy::broadcast(const std::string& value) {
  return world_size() == 1 ? value : collective().broadcast_bytes(value, 0);
}

std::pair<bool, bool> Strategy::any_rank(bool first, bool second) {
  // Between hosts, which must not wait for their devices.
  const at::Tensor answers = at::tensor({first ? 1.0 : 0.0, second ? 1.0 : 0.0}, at::kDouble);
  collective().all_reduce(answers, ReduceOp::kMax)->wait();
  const double* any = answers.const_data_ptr<double>();
  return {any[0] > 0, any[1] > 0};
}

Strategy::DataParallelRank Strategy::data_parallel_rank() { return {.rank = rank(), .size = world_size()}; }

GraphSupport Strategy::graph_support() {
  return {.recorder = nullptr, .why_not = fmt::format("the strategy '{}' does not record steps", name())};
}

void Strategy::manual_backward(const at::Tensor& loss, const BackwardOptions& options) {
  loss.backward(/*gradient=*/{}, options.retain_graph);
}

}  // namespace levin
