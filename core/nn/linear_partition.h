#pragma once

#include <levin/core/nn/tensor_plan.h>
#include <levin/core/nn/weight_behaviour.h>

#include <memory>

namespace levin {

class Collective;

/// Makes the behaviour of a weight [out / ranks, in] of which each rank of `group` holds some of the outputs (Shoeybi
/// et al., "Megatron-LM", 2019, arXiv:1909.08053): every rank gives the whole input and gets its part of the output.
/// Gradients of the input are added up in backward. Forwards and backwards of a layer are collectives of the group.
/// Gradients of gradients do not pass: levin::Error.
std::shared_ptr<WeightBehaviour> make_column_behaviour(std::shared_ptr<Collective> group);

/// Makes that of a weight [out, in / ranks] of which each rank holds some of the inputs: every rank gives its part of
/// the input, which a column layer has made, and gets the whole output. The bias is whole on every rank, and is added
/// once.
std::shared_ptr<WeightBehaviour> make_row_behaviour(std::shared_ptr<Collective> group);

/// Makes that of a weight [rows / ranks, features] of which each rank holds some of the rows: of an embedding, whose
/// result is that of all rows, and of a head, which gives cut logits (make_cut_logits); of both where they are tied.
std::shared_ptr<WeightBehaviour> make_vocabulary_behaviour(std::shared_ptr<Collective> group);

/// Makes that of a weight that is cut so; not kWhole.
std::shared_ptr<WeightBehaviour> make_partition_behaviour(TensorCut cut, std::shared_ptr<Collective> group);

/// Returns a tensor that is identical on every rank, whose gradients are added up over the ranks in backward.
at::Tensor with_summed_gradients(const at::Tensor& tensor, const std::shared_ptr<Collective>& group);
/// Returns the sum of the ranks' tensors, whose gradient is that of each.
at::Tensor sum_over_ranks(const at::Tensor& tensor, const std::shared_ptr<Collective>& group);

}  // namespace levin
