#include <levin/strategies/replicas/backward_bridge.h>

#include <levin/core/base/error.h>

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>

#include <unordered_map>
#include <utility>

namespace levin {

using torch::autograd::variable_list;

namespace {

/// What makes autograd queue a node with those of a device, whose thread takes them in the order in which they were
/// made: a tensor there. The CPU's needs none.
at::Tensor turn_for(const at::Device& device) {
  return device.is_cpu() ? at::Tensor() : at::empty({0}, at::TensorOptions(device));
}

}  // namespace

/// What a replica's thread needs to run backward.
struct BackwardBridge::Replica {
  variable_list leaves;            ///< what gradients are computed for ...
  std::vector<size_t> leaf_edges;  ///< ... and the edge of the last node that each goes to
  variable_list outputs;           ///< whose graph it is
  variable_list output_gradients;  ///< of the backward pass under way
  variable_list gradients;         ///< what it computed
};

/// What the two nodes share. It does not refer to them, so that nothing keeps itself alive.
struct BackwardBridge::Graphs {
  std::shared_ptr<ReplicaThreads> threads;
  std::vector<Replica> replicas;
  at::Device device;  ///< of the first replica
  std::shared_ptr<ReplicaThreads::Ticket> running;
  bool released = false;

  void backward(size_t index, bool keep_graph) {
    Replica& replica = replicas[index];
    variable_list outputs;
    variable_list output_gradients;
    for (size_t i = 0; i < replica.outputs.size(); ++i) {
      if (!replica.output_gradients[i].defined()) continue;
      outputs.push_back(replica.outputs[i]);
      output_gradients.push_back(replica.output_gradients[i].to(outputs.back().device(), /*non_blocking=*/true));
    }
    replica.output_gradients.clear();
    if (!keep_graph) replica.outputs.clear();
    replica.gradients.clear();
    if (outputs.empty() || replica.leaves.empty()) return;
    const c10::DeviceGuard device(outputs.front().device());
    replica.gradients = torch::autograd::grad(outputs, replica.leaves, output_gradients, keep_graph,
                                              /*create_graph=*/false, /*allow_unused=*/true);
  }
};

class BackwardBridge::StartNode : public torch::autograd::Node {
 public:
  explicit StartNode(std::shared_ptr<Graphs> graphs) : graphs_(std::move(graphs)) {}

  std::string name() const override { return "LevinReplicasStartBackward"; }

  variable_list apply(variable_list&& gradients) override {
    if (c10::GradMode::is_enabled())
      throw Error("data_parallel",
                  "gradients of gradients do not pass from the gathered outputs into the replicas; valid: create_graph "
                  "inside training_step; hint: compute such a loss in training_step, not in training_step_end");
    if (graphs_->released)
      throw Error("data_parallel",
                  "backward ran a second time through the replicas' graphs, which the first time has freed; hint: "
                  "backward(..., retain_graph = true) the first time");
    size_t next = 0;
    for (size_t replica = 1; replica < graphs_->replicas.size(); ++replica) {
      auto& of_replica = graphs_->replicas[replica];
      of_replica.output_gradients.assign(gradients.begin() + static_cast<int64_t>(next),
                                         gradients.begin() + static_cast<int64_t>(next + of_replica.outputs.size()));
      next += of_replica.outputs.size();
    }
    const bool keep_graph = torch::autograd::get_current_graph_task_keep_graph();
    graphs_->released = !keep_graph;
    graphs_->running = graphs_->threads->start(static_cast<int64_t>(graphs_->replicas.size()),
                                               [graphs = graphs_.get(), keep_graph](int64_t replica) {
                                                 graphs->backward(static_cast<size_t>(replica), keep_graph);
                                               });
    return {turn_for(graphs_->device)};  // to the last node, only to say that it may come
  }

 private:
  std::shared_ptr<Graphs> graphs_;
};

class BackwardBridge::FinishNode : public torch::autograd::Node {
 public:
  explicit FinishNode(std::shared_ptr<Graphs> graphs) : graphs_(std::move(graphs)) {
    if (graphs_->device.is_cpu())
      add_input_metadata(undefined_input());
    else
      add_input_metadata(turn_for(graphs_->device));
  }
  ~FinishNode() override {
    // A backward pass that failed elsewhere has left the threads at work on the graphs.
    graphs_->threads->wait_idle();
  }

  std::string name() const override { return "LevinReplicasFinishBackward"; }

  /// The edge to a tensor's gradient.
  size_t edge_to(const at::Tensor& tensor) {
    const auto [found, is_new] = edges_.try_emplace(tensor.unsafeGetTensorImpl(), devices_.size());
    if (is_new) {
      add_next_edge(torch::autograd::impl::gradient_edge(tensor));
      devices_.push_back(tensor.device());
    }
    return found->second;
  }

  variable_list apply(variable_list&&) override {
    graphs_->threads->join(std::exchange(graphs_->running, nullptr));
    variable_list sums(devices_.size());
    for (auto& replica : graphs_->replicas) {
      for (size_t i = 0; i < replica.gradients.size(); ++i) {
        at::Tensor& gradient = replica.gradients[i];
        if (!gradient.defined()) continue;
        at::Tensor& sum = sums[replica.leaf_edges[i]];
        at::Tensor here = gradient.to(devices_[replica.leaf_edges[i]], /*non_blocking=*/true);
        sum = sum.defined() ? sum + here : here;
        gradient.reset();
      }
      replica.gradients.clear();
    }
    return sums;
  }

 private:
  std::shared_ptr<Graphs> graphs_;
  std::unordered_map<const c10::TensorImpl*, size_t> edges_;
  std::vector<at::Device> devices_;  ///< of each edge
};

BackwardBridge::BackwardBridge(std::shared_ptr<ReplicaThreads> threads, int64_t replicas, const at::Device& device)
    : graphs_(std::make_shared<Graphs>(Graphs{.device = device})),
      finish_(std::shared_ptr<FinishNode>(new FinishNode(graphs_), torch::autograd::deleteNode)) {
  graphs_->threads = std::move(threads);
  graphs_->replicas.resize(static_cast<size_t>(replicas));
}

void BackwardBridge::add_leaf(const at::Tensor& outer, int64_t replica, const at::Tensor& inner) {
  LEVIN_CHECK(replica > 0, "the first replica's graph needs no leaf of its own");
  Replica& of_replica = graphs_->replicas[static_cast<size_t>(replica)];
  of_replica.leaves.push_back(inner);
  of_replica.leaf_edges.push_back(finish_->edge_to(outer));
}

void BackwardBridge::connect(std::vector<StepOutput>& outputs, const at::Device& device) {
  std::shared_ptr<StartNode> start(new StartNode(graphs_), torch::autograd::deleteNode);
  start->add_next_edge({finish_, 0});
  const auto connect_one = [&](size_t replica, at::Tensor& tensor) {
    if (!tensor.defined()) return;
    at::Tensor here = tensor.detach().to(device, /*non_blocking=*/true);
    if (tensor.requires_grad()) {
      graphs_->replicas[replica].outputs.push_back(tensor);
      torch::autograd::set_history(here, start);
    }
    tensor = std::move(here);
  };
  for (size_t replica = 1; replica < outputs.size(); ++replica) {
    connect_one(replica, outputs[replica].loss());
    for (auto& [name, tensor] : outputs[replica].outputs().items()) connect_one(replica, tensor);
  }
}

}  // namespace levin
