#include <levin/strategies/ddp/horovod.h>

#include <levin/core/checkpoint/state_bytes.h>
#include <levin/core/interfaces/cluster_environment.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/optim/optimizer_state.h>
#include <levin/core/optim/parameter_names.h>
#include <levin/strategies/comm/device_backends.h>
#include <levin/strategies/ddp/communication_hooks.h>
#include <levin/strategies/learning_rate_scale.h>

#include <torch/optim/optimizer.h>

namespace levin {
namespace {

DdpOptions to_ddp(const HorovodOptions& options) {
  DdpOptions ddp;
  ddp.bucket_cap_mb = static_cast<double>(options.fusion_threshold) / kBytesPerMib;
  ddp.gradient_compression = options.compression;
  ddp.scale_lr = options.scale_lr;
  ddp.backend = options.backend;
  ddp.timeout = options.timeout;
  ddp.broadcast_buffers = options.broadcast_buffers;
  return ddp;
}

}  // namespace

void HorovodOptions::describe(Schema<HorovodOptions>& schema) {
  using O = HorovodOptions;
  schema.field("fusion_threshold", &O::fusion_threshold, "size of a gradient bucket (bytes)")
      .at_least(1)
      .at_most(int64_t{1} << 40);
  schema.field("cycle_time", &O::cycle_time, "accepted without effect").at_least(0);
  schema.field("compression", &O::compression, "compression of gradients to float16 or bfloat16")
      .one_of(gradient_compressions());
  describe_scale_lr(schema, "ranks");
  schema
      .field("backend", &O::backend,
             "communication of tensors; auto: nccl for CUDA, shared_memory on one host, else gloo")
      .one_of(DeviceBackends::instance().option_values());
  schema.field("timeout", &O::timeout, "longest wait for other ranks in a collective (s)")
      .above(0)
      .at_most(kMostSeconds);
  schema.field("broadcast_buffers", &O::broadcast_buffers, "broadcast rank 0's buffers before each step");
}

Horovod::Horovod(const Options& options) : Ddp(to_ddp(options)) {}

void Horovod::broadcast_optimizers(const std::vector<std::shared_ptr<torch::optim::Optimizer>>& optimizers) {
  if (environment().world_size() == 1) return;
  const optim::ParameterNames names(current_module());
  for (const auto& optimizer : optimizers) {
    const bool first = collective().rank() == 0;
    const std::string bytes =
        collective().broadcast_bytes(first ? state_to_bytes(optim::optimizer_state_dict(*optimizer, names)) : "", 0);
    if (!first) optim::load_optimizer_state_dict(*optimizer, names, state_from_bytes(bytes));
  }
}

}  // namespace levin
