#include <levin/core/sweep/run_devices.h>

#include <levin/core/options/options.h>

#include <string>

namespace levin::sweep {
namespace {

/// "2" and "[0, 1]" are a number of GPUs and certain ones; so is a text with commas.
bool names_devices(const Config& devices) {
  return devices.is_sequence() || (devices.is_scalar() && devices.text().find(',') != std::string::npos);
}

}  // namespace

RunDevices run_devices(const Config& trainer, const DeviceCount& available) {
  const auto options = parse_options<TrainerOptions>(trainer, "trainer");
  const auto devices = resolve_devices(options.accelerator, options.devices, options.gpus, available);
  const Config& wanted = options.gpus.config().is_null() ? options.devices.config() : options.gpus.config();
  return {.count = static_cast<int64_t>(devices.size()),
          .hosts = options.num_nodes,
          .are_gpus = !devices.front().is_cpu(),
          .all = wanted.is_scalar() && (wanted.text() == "auto" || wanted.text() == "-1"),
          .are_named = names_devices(wanted)};
}

}  // namespace levin::sweep
