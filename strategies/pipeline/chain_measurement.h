#pragma once

#include <levin/core/data/batch.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/nn/sequential.h>
#include <levin/strategies/pipeline/pipeline_partition.h>

#include <cstddef>
#include <vector>

namespace levin {

/// Lists the elements of a sequential, with the parameters and bytes that are known of them without running them:
/// parameters, their gradients and two tensors of that size as Adam's state.
std::vector<ChainUnit> describe_chain(SequentialImpl& sequential);

/// Runs training_step up to its call of the sequential, and then each element forward and backward by itself, the best
/// of `repetitions` times: adds the seconds, and the bytes of what an element gives to the next one. Random numbers,
/// buffers and logs are as before; there are no gradients. The module is on the host: of the sequential, the rank's
/// device has one element at a time.
void measure_chain(Module& module, SequentialImpl& sequential, const Batch& micro_batch, int64_t repetitions,
                   std::vector<ChainUnit>& units);

}  // namespace levin
