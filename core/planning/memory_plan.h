#pragma once

#include <levin/core/base/config.h>
#include <levin/core/comm/pipeline_schedule.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace levin {

/// Bytes as a linear function of the examples in a batch.
struct BatchBytes {
  double fixed = 0;
  double per_example = 0;

  /// Fits two measured points; with one batch size only, all bytes count as per example.
  static BatchBytes through(int64_t batch, int64_t bytes, int64_t other_batch, int64_t other_bytes);
  int64_t at(int64_t batch) const;

  BatchBytes& operator+=(const BatchBytes& other);
};

/// Activations that a forward saves for backward.
struct ActivationNeeds {
  BatchBytes bytes;
  int64_t weight_copies = 0;  ///< bytes of them that are parameters converted by autocast
};

/// Memory of some parameters of a model.
struct WeightNeeds {
  int64_t elements = 0;
  int64_t bytes = 0;               ///< in the type of the optimizer's step
  int64_t trainable_elements = 0;  ///< frozen parameters have no gradient
  int64_t trainable_bytes = 0;
  std::vector<int64_t> tensors = {};  ///< elements of each

  WeightNeeds& operator+=(const WeightNeeds& other);
};

/// Memory of the levin::Sequential that a pipeline would cut.
struct ChainNeeds {
  struct Element {
    WeightNeeds weights;        ///< tied weights count in each element that has them
    BatchBytes saved;           ///< by its forward for backward; its input too, when it is the first to save it
    BatchBytes result;          ///< its output to the next element
    double flops = 0;           ///< floating point operations of its forward for each example
    int64_t weight_copies = 0;  ///< bytes of `saved` that are parameters converted by autocast
    /// Among TrainingNeeds::units, those with weights that no other element has; the rest of its weights is shared.
    std::vector<size_t> units = {};
    BatchBytes summed = {};  ///< of cut layers: bytes that tensor ranks add up, forward and backward
  };
  std::vector<Element> elements;   ///< none: there is no such sequential, or a step does not call it once
  WeightNeeds outside;             ///< weights in no element, which every stage holds
  BatchBytes saved_before;         ///< saved by the rest of the step, on the first stage
  BatchBytes saved_after;          ///< saved by the rest of the step, on the last stage
  double flops_before = 0;         ///< as those of an element, of the rest of the step before the sequential
  double flops_after = 0;          ///< behind it: head and loss
  BatchBytes summed_outside = {};  ///< by tensor ranks in none of the elements; the last stage has it
};

/// A part of a forward and backward on one device, from one gradient of a parameter (at first: from the beginning) to
/// the next.
struct StepPart {
  /// Allocated at most, beside parameters, the optimizer's state, the batch and gradients of earlier parts.
  BatchBytes most;
  BatchBytes at_end;           ///< the same when the gradient is there, which counts
  std::optional<size_t> unit;  ///< of the parameter, among `units`
  int64_t gradient = 0;        ///< bytes
};

/// Measurements of a training step on one device, from which a plan is made.
struct TrainingNeeds {
  WeightNeeds weights;             ///< of the whole model
  std::vector<WeightNeeds> units;  ///< units that stage 3 gathers one by one, each with its own weights
  WeightNeeds outside;             ///< in no unit, or shared by several: gathered for the whole step under stage 3
  /// Bytes of an element in forward and backward under mixed precision; unset: as in the parameters.
  std::optional<int64_t> compute_size;
  int64_t buffers = 0;          ///< bytes
  int64_t optimizer_state = 0;  ///< bytes of its tensors that have as many elements as their parameter
  int64_t counters = 0;         ///< bytes of the rest of the optimizer's state, which no rank divides
  bool element_wise = true;     ///< the optimizer can step a part of a parameter
  bool tensor_wise = true;      ///< it can step some of the parameters, whole ones
  bool is_on_host = false;      ///< the device's memory is the host's: offload would save nothing

  int64_t batch_size = 1;        ///< examples in a batch of one rank, or of all together
  bool divides_batch = false;    ///< batch_size is that of all ranks together
  int64_t micro_batches = 1;     ///< number in an optimizer step
  double flops_per_example = 0;  ///< floating point operations of forward and backward; 0: unknown
  ActivationNeeds activations;
  /// Activations when units are recomputed in backward: `kept`, plus one of `inside` at a time; empty without units.
  ActivationNeeds kept;
  std::vector<ActivationNeeds> inside;
  std::vector<StepPart> step;  ///< in order; empty: not measured
  ChainNeeds chain;

  /// The same of one of so many ranks that divide layers among each other.
  std::map<int64_t, std::shared_ptr<const TrainingNeeds>> cut = {};
  BatchBytes summed = {};      ///< of such a rank: bytes that they add up in a batch, forward and backward
  BatchBytes in_forward = {};  ///< of them, in forward, which recomputing repeats
  int64_t sums = 0;            ///< how many sums these are

  int64_t batch_on(int64_t devices) const;
  /// Returns those of `cut`, in the batches of this.
  TrainingNeeds of_tensor_rank(int64_t ranks) const;
  /// Returns the part of so many bytes, of all these parameters alike, that the rank has which has most, of ranks that
  /// divide them: evenly or, where the optimizer needs whole parameters, as balanced_owners does.
  int64_t largest_part(int64_t bytes, const WeightNeeds& of, int64_t ranks) const;
};

/// One way to train, as the sizes of a mesh, and its memory on each rank, in bytes; device memory unless said
/// otherwise. The sizes' product is the number of devices.
struct PlanRow {
  int64_t pipeline = 1;  ///< stages; the row is for the rank that needs most
  int64_t replicate = 1;
  int64_t shard = 1;
  int64_t tensor = 1;
  int64_t stage = 0;              ///< what the ranks along shard divide; 0: their number is 1
  bool offload = false;           ///< of shard, without pipeline: divided tensors are in the host's memory
  std::string schedule = "1f1b";  ///< of pipeline
  int64_t chunks = 1;             ///< of pipeline, on each rank
  double bubble = 0;              ///< of pipeline: the part of a step in which a rank is idle, chunks being alike
  bool checkpoints = false;       ///< units (of pipeline: stages) are recomputed in backward
  int64_t parameters = 0;  ///< buffers, and under mixed precision a rank's part of what the optimizer steps, included
  int64_t gradients = 0;
  int64_t optimizer = 0;
  int64_t activations = 0;  ///< of a batch
  /// When a rank holds most: gradients of activations and what operations need while they run; less the activations
  /// that backward has freed by then.
  int64_t backward = 0;
  /// Whole for a moment only: units of stage 3, buckets of stage 2 and of replicas with several batches, a stage's
  /// gradients.
  int64_t gathered = 0;
  int64_t widened = 0;        ///< when activations are freed: wide gradients, what a stage's ranks send each other
  int64_t host = 0;           ///< with offload, the most that is in the host's memory at once
  int64_t sent_pipeline = 0;  ///< bytes that a rank sends along each dimension in an optimizer step
  int64_t sent_replicate = 0;
  int64_t sent_shard = 0;
  int64_t sent_tensor = 0;
  int64_t largest_batch = 0;  ///< examples on a rank that fit; 0: not even one; kAnyBatch: memory sets no limit
  bool is_possible = true;    ///< the optimizer can be divided (by shard)
  bool fits = false;

  static constexpr int64_t kAnyBatch = int64_t{1} << 40;
  int64_t devices() const { return pipeline * replicate * shard * tensor; }
  /// Returns how many ranks have batches of their own.
  int64_t batches() const { return replicate * shard; }
  /// Returns how many dimensions have several ranks.
  int64_t dimensions() const;
  /// Returns the strategy that divides so: single_device, ddp, sharded, pipeline or tensor.
  std::string strategy() const;
  /// Returns the peak on the device.
  int64_t total() const {
    return parameters + gradients + optimizer + std::max(activations + backward + gathered, widened);
  }
  int64_t sent() const { return sent_pipeline + sent_replicate + sent_shard + sent_tensor; }
  /// Returns how the pipeline divides a batch of so many examples.
  PipelineShape shape(int64_t batch) const;
};

/// Returns a row's way to train: along one dimension by the strategy's name, "sharded, stage 3 + checkpointing", else
/// as YAML has it, "{replicate: 2, shard: 4}".
std::string strategy_text(const PlanRow& row);
/// Returns the strategy that a row is about, as YAML has it.
Config strategy_config(const PlanRow& row);
/// Returns the options that choose it. `devices`: those that choose its devices, "--trainer.devices=8".
std::string how_to_set(const PlanRow& row, const std::string& devices);

/// Returns each row's place in a table that leaves out meshes of several dimensions that another row beats: it takes no
/// more memory and costs no more, and recomputes and offloads as much. Rows of equal memory and cost: the first one
/// stays. `costs`: what each row costs, in any unit; rows of pipelines are compared with each other alone.
std::vector<size_t> rows_to_show(const std::vector<PlanRow>& rows, const std::vector<double>& costs);

/// Returns the line of a table that says how many rows are left out.
std::string note_on_left_out(size_t count);

/// Ways to train on a number of devices.
struct MemoryPlan {
  int64_t devices = 1;
  int64_t memory = 0;  ///< bytes for each rank
  int64_t batch_size = 1;
  std::vector<PlanRow> rows;  ///< those of one dimension first

  /// Returns the row that fits and sends least; among those that send the same, one without offload, then one without
  /// recomputing, then the simplest. A pipeline, whose ranks are idle at times, only when nothing else fits, and layers
  /// that are cut, whose ranks wait for each other in each of them, only when no pipeline does. nullptr when none fits.
  const PlanRow* cheapest() const;
};

/// Returns the meshes of so many devices that a model can be trained on, those of one dimension first: all
/// factorizations over pipeline (where the chain has an element for each stage), replicate and shard, this with stages
/// 1 to 3 (beside the schedule zero_bubble with stage 1 alone), and tensor (where layers can be cut). `schedules`:
/// those that pipelines are planned with.
std::vector<PlanRow> meshes(const TrainingNeeds& needs, int64_t devices, const std::vector<std::string>& schedules);

/// Plans each mesh of `devices` devices of `memory` bytes each, with all other options at their defaults. With Psi
/// elements of p bytes as a parameter, g as a gradient and s as optimizer state, and S ranks along shard (Rajbhandari
/// et al., "ZeRO: Memory optimizations toward training trillion parameter models", 2020, arXiv:1910.02054), a rank
/// holds
///
///     shard: 1  (p + g + s) Psi
///     stage 1   (p + g) Psi + s Psi / S
///     stage 2   p Psi + (g + s) Psi / S
///     stage 3   (p + g + s) Psi / S
///
/// and a ring sends 2 Psi (S - 1) / S elements for each rank and step: gradients are reduced and scattered, then
/// parameters (stages 1 and 2) are gathered. Stage 3 gathers parameters twice, before forward and backward. R ranks
/// along replicate reduce what each of them has left of the gradients: 2 (Psi / S) (R - 1) / R elements. In a step of
/// several micro-batches stages 2 and 3 reduce, and stage 3 gathers, for each of them.
///
/// Where the optimizer needs whole tensors, Psi / S is what the rank with most of them has, at most the largest tensor
/// more, and gradients are all-reduced.
///
/// Under mixed precision the ranks along shard hold whole parameters and gradients in `compute_size`, and their part
/// of both in the optimizer's type besides, of gradients during its step; the others have both in the optimizer's type,
/// and autocast's copies.
///
/// With offload stage 3 has its part of parameters, gradients and state in the host's memory, and on the device what is
/// whole for a moment, buffers and activations. It is planned where the device is not the host and all ranks
/// divide one copy. The other stages are not: what they keep whole stays on the device, and what they divide is little
/// on many ranks.
///
/// T ranks along tensor hold 1 / T of the weights that are cut, with their gradients, state and activations, and all of
/// the rest. One of them was measured (TrainingNeeds::cut), and a ring sends 2 (T - 1) / T of what it adds up.
///
/// A pipeline is planned with its schedule 1f1b, 8 micro-batches and a cut that makes parameters alike. With p stages
/// and m micro-batches stage s, from 0 on, holds what it saves for min(m, p - s) of them and is idle for
/// (p - 1) / (m + p - 1) of a step (Narayanan et al., "PipeDream", 2019, arXiv:1806.03377). It sends results to the
/// next stage and gradients of its inputs to the one before. Beside it, replicate and shard divide the state of a stage
/// as above; with stage 1 gradients are whole while the batch runs, and once more when the ranks of a stage reduce
/// them. With stages 2 and 3 each micro-batch reduces, and stage 3 gathers what its chunk computes with, twice. Weights
/// that several elements have, or none, stay as with stage 1.
MemoryPlan plan_memory(const TrainingNeeds& needs, int64_t devices, int64_t memory);

/// Plans one way to train in the same manner: `way` says the sizes, stage, offload, schedule, chunks and checkpoints,
/// and the rest is filled in. A pipeline's rank holds what its schedule says.
PlanRow plan_row(const TrainingNeeds& needs, int64_t memory, const PlanRow& way);

/// Cuts a chain as `pipeline` does with balance_by: parameters: part k has the elements [ends[k - 1], ends[k]). There
/// must be as many elements as parts, or more.
std::vector<size_t> cut_by_parameters(const ChainNeeds& chain, int64_t parts);

/// Returns the plans as a table, in MiB, without meshes that others beat, with the cheapest row of each and the options
/// that choose it.
std::string plan_table(const std::vector<MemoryPlan>& plans);

}  // namespace levin
