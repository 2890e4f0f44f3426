#pragma once

#include <levin/core/export/exported_function.h>

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>

#include <memory>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace levin {

/// What a function computes in both modes, as LibTorch's tracer recorded it. Inputs of the graphs are the script module
/// and the tensors `inputs`; every value has the type and sizes that it had with the example's rows.
struct ModelTrace {
  torch::jit::Module script;  ///< parameters and buffers under their own names; `forward` follows its mode, evaluation
  std::shared_ptr<torch::jit::Graph> evaluation;
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
  Batch example;  ///< the inputs, with which the evaluation graph was traced
  // Of each input and output. A size below 0 changes with the batch: -1 is the first of `size_names`, and so on; one
  // that is beyond them has no name.
  std::vector<std::vector<int64_t>> input_sizes;
  std::vector<std::vector<int64_t>> output_sizes;
  std::vector<std::string> size_names;
  std::vector<std::string> fixed;  ///< what ties the graphs to the example's batch size, in words
  /// What the graphs took from the example's values, in words; empty: nothing that trials saw.
  std::string follows_values;
  /// Where the script is another model than the function when it is trained, in words; empty: nowhere, or not tried.
  std::string trains_otherwise;
};

/// Traces in both modes, each with two batch sizes: constants that differ between them as the sizes do become sizes of
/// the inputs, and a few more sizes and other values are tried. Tensors of the example with other numbers of rows, as
/// of a batch of graphs, have sizes of their own: each number is one size. `tries_training`: gradients and buffers in
/// training mode are compared too. The module's buffers and modes and the random generators are afterwards as they
/// were. Throws levin::Error, also where the graphs compute something else than the function, or the function writes to
/// parameters.
ModelTrace trace_model(torch::nn::Module& module, const ExportedFunction& function, const Batch& example,
                       bool tries_training = false);

/// What a function computes in evaluation mode of one batch. Inputs of the graph are the script module and the tensors
/// `inputs`, all those of the batch; nodes have the paths of their units as scopes.
struct EvaluationTrace {
  std::shared_ptr<torch::jit::Graph> graph;
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
};

/// Traces once, with the example as it is and the module where it is: for those who look at the graph and do not run
/// it. The module's buffers and modes and the random generators are afterwards as they were. Throws levin::Error.
EvaluationTrace trace_evaluation(torch::nn::Module& module, const ExportedFunction& function, const Batch& example);

}  // namespace levin
