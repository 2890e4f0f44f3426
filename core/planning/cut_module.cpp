#include <levin/core/planning/cut_module.h>

#include <levin/core/base/error.h>
#include <levin/core/comm/collective.h>
#include <levin/core/comm/dimension_cut.h>
#include <levin/core/nn/linear_partition.h>
#include <levin/core/nn/move_to_device.h>
#include <levin/core/nn/weight_behaviour.h>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

namespace levin {
namespace {

class DoneWork final : public Work {
 public:
  void wait() override {}
  bool is_completed() const override { return true; }
};

}  // namespace

/// A group of which this is rank 0, without the others.
class CutModule::AbsentRanks final : public Collective {
 public:
  explicit AbsentRanks(int64_t ranks) : ranks_(ranks) {}

  const SummedBytes& summed() const { return summed_; }

  int64_t rank() const override { return 0; }
  int64_t world_size() const override { return ranks_; }
  std::unique_ptr<Work> all_reduce(at::Tensor tensor, ReduceOp /*op*/) override {
    const bool in_backward = torch::autograd::get_current_graph_task_id() >= 0;
    (in_backward ? summed_.backward : summed_.forward) += static_cast<int64_t>(tensor.nbytes());
    ++summed_.times;
    return std::make_unique<DoneWork>();
  }
  std::unique_ptr<Work> broadcast(at::Tensor /*tensor*/, int64_t /*root*/) override {
    return std::make_unique<DoneWork>();
  }
  std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input) override {
    for (int64_t rank = 0; rank < ranks_; ++rank) output.narrow(0, rank * input.numel(), input.numel()).copy_(input);
    return std::make_unique<DoneWork>();
  }
  std::unique_ptr<Work> reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp /*op*/) override {
    output.copy_(input.narrow(0, 0, output.numel()));
    return std::make_unique<DoneWork>();
  }
  std::unique_ptr<Work> send(at::Tensor, int64_t, int64_t) override { throw_absent(); }
  std::unique_ptr<Work> receive(at::Tensor, int64_t, int64_t) override { throw_absent(); }
  void barrier() override {}
  std::string broadcast_bytes(const std::string& bytes, int64_t) override { return bytes; }
  std::vector<std::string> gather_bytes(const std::string& bytes) override {
    return std::vector<std::string>(static_cast<size_t>(ranks_), bytes);
  }
  std::shared_ptr<Collective> subgroup(std::span<const int64_t>) override { throw_absent(); }
  void abort(const std::string&) override {}
  Store& store() override { throw_absent(); }

 private:
  [[noreturn]] static void throw_absent() { throw InternalError("the other ranks of a planned group are not there"); }

  int64_t ranks_;
  SummedBytes summed_;
};

CutModule::CutModule(const std::vector<CutWeight>& weights, int64_t ranks)
    : group_(std::make_shared<AbsentRanks>(ranks)) {
  const at::NoGradGuard no_grad;
  for (const CutWeight& weight : weights) {
    const bool is_row = weight.rule.cut == TensorCut::kRow;
    take_share(weight.weight, is_row ? 1 : 0, weight.rule.parts);
    if (!is_row && weight.bias.defined()) take_share(weight.bias, 0, weight.rule.parts);
    add_weight_behaviour(weight.weight, weight.name, make_partition_behaviour(weight.rule.cut, group_));
  }
}

CutModule::~CutModule() {
  const at::NoGradGuard no_grad;
  for (const Cut& cut : cuts_) {
    if (has_weight_behaviours(cut.tensor)) remove_weight_behaviours(cut.tensor);
    cut.tensor.mutable_grad() = at::Tensor();
    replace_data(cut.tensor, cut.whole);
  }
}

void CutModule::take_share(const at::Tensor& tensor, int64_t dim, int64_t parts) {
  cuts_.push_back({tensor, tensor.detach()});
  tensor.mutable_grad() = at::Tensor();
  replace_data(tensor, DimensionCut(group_, dim, parts).part_of(tensor));
}

const SummedBytes& CutModule::summed() const { return group_->summed(); }

std::vector<int64_t> ranks_to_cut_over(const std::vector<CutWeight>& weights, int64_t most) {
  int64_t divided = 0;
  for (const CutWeight& weight : weights) {
    divided = std::gcd(divided, weight.weight.size(weight.rule.cut == TensorCut::kRow ? 1 : 0) / weight.rule.parts);
    if (weight.rule.heads > 0) divided = std::gcd(divided, weight.rule.heads);
  }
  std::vector<int64_t> numbers;
  for (int64_t ranks = 2; ranks <= std::min(most, divided); ++ranks)
    if (divided % ranks == 0) numbers.push_back(ranks);
  return numbers;
}

}  // namespace levin
