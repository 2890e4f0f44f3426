#pragma once

#include <levin/core/nn/unit_call.h>

#include <memory>
#include <string>

namespace levin {

class MeasuredForward;
class ResultChoice;

/// Runs a call so that autograd keeps its inputs only: what the operations in it save for backward is dropped, and
/// computed again when backward first asks for it, by running the forward once more. What was recomputed goes as soon
/// as backward has used it. Gradients are those of an ordinary call, to the bit: non-reentrant checkpointing, after
/// Chen, Xu, Zhang and Guestrin, "Training deep nets with sublinear memory cost", 2016, and `use_reentrant=False` of
/// PyTorch.
///
/// The forward runs again under the random state, autocast and other modes of the first time, on the thread that
/// backward runs on, and stops after the last tensor that is needed. Buffers of the call's module are put back
/// afterwards. Calls inside a checkpointed call may be checkpointed too. Where no gradients are recorded, the call just
/// runs.
///
/// `keep`: which results are kept, and taken by the second run; nullptr: none. What they keep goes with what is
/// recomputed. `meter` measures the first run, where it is not nullptr.
///
/// Backward throws levin::Error when an input, or a parameter that an operation saved, was modified in place since, and
/// when the forward does not save the same tensors again. `name` is what these messages call it. `offload`: inputs on
/// CUDA wait in pinned memory of the host.
void run_checkpointed(UnitCall& call, const std::string& name, bool offload,
                      std::shared_ptr<const ResultChoice> keep = nullptr,
                      std::shared_ptr<MeasuredForward> meter = nullptr);

/// Whether the calling thread runs such a forward again for backward.
bool is_recomputing();

}  // namespace levin
