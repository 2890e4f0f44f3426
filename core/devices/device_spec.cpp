#include <levin/core/devices/device_spec.h>

#include <levin/core/accelerators/accelerator_registry.h>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

namespace levin {
namespace {

constexpr const char* kDevicesValid =
    "valid: a count (2 or \"2\"), a list of indices ([1, 3] or \"1,3\"), -1 for all, or auto";
constexpr const char* kGpusValid =
    "valid: null or 0 (the CPU), a count, -1 (all), a list of indices ([1, 3]), or a string of indices (\"1, 3\")";

[[noreturn]] void refuse(const Config& node, const char* option, const char* valid) {
  const std::string place = node.origin().prefix();
  throw ConfigError(fmt::format("{}trainer.{} is not understood; got {}; {}", place, option, node.describe(), valid));
}

/// Ranks or GPUs of one host: more than any has, few enough to be started.
constexpr int64_t kMostDevices = 1024;

[[noreturn]] void refuse_range(const Config& node, const char* option, int64_t got) {
  throw_out_of_range(node.origin(), fmt::format("trainer.{}", option),
                     fmt::format("a count of at most {}, or indices from 0 to {}", kMostDevices, kMostDevices - 1),
                     std::to_string(got));
}

std::optional<int64_t> to_integer(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

/// "1, 3" as numbers; a comma at the end is allowed ("1,").
std::optional<std::vector<int64_t>> to_indices(std::string_view text) {
  std::vector<int64_t> indices;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    const auto index = to_integer(text.substr(0, comma));
    if (!index) return std::nullopt;
    indices.push_back(*index);
    text = comma == std::string_view::npos ? "" : text.substr(comma + 1);
    if (text.find_first_not_of(' ') == std::string_view::npos) break;
  }
  return indices;
}

/// What an option asks for, before it is held against the machine.
struct Request {
  enum class Kind { kAuto, kNone, kCount, kAll, kIndices } kind = Kind::kAuto;
  int64_t count = 0;
  std::vector<int64_t> indices;
};

Request request_count(int64_t count, const Config& node, const char* option, const char* valid) {
  if (count == -1) return {Request::Kind::kAll, 0, {}};
  if (count < 0) refuse(node, option, valid);
  if (count == 0) return {Request::Kind::kNone, 0, {}};
  if (count > kMostDevices) refuse_range(node, option, count);
  return {Request::Kind::kCount, count, {}};
}

Request request_indices(std::vector<int64_t> indices, const Config& node, const char* option, const char* valid) {
  if (indices.size() == 1 && indices.front() == -1) return {Request::Kind::kAll, 0, {}};
  if (indices.empty()) refuse(node, option, valid);
  for (const int64_t index : indices) {
    if (index < 0) refuse(node, option, valid);
    if (index >= kMostDevices) refuse_range(node, option, index);
  }
  return {Request::Kind::kIndices, 0, std::move(indices)};
}

std::vector<int64_t> indices_of(const Config& node, const char* option, const char* valid) {
  std::vector<int64_t> indices;
  for (const auto& item : node.items()) {
    const auto index = item.is_scalar() ? to_integer(item.text()) : std::nullopt;
    if (!index) refuse(node, option, valid);
    indices.push_back(*index);
  }
  return indices;
}

Request parse_devices(const Config& node) {
  if (node.is_null()) return {};
  if (node.is_sequence())
    return request_indices(indices_of(node, "devices", kDevicesValid), node, "devices", kDevicesValid);
  if (!node.is_scalar()) refuse(node, "devices", kDevicesValid);
  if (node.text() == "auto") return {};
  if (const auto count = to_integer(node.text())) {
    if (*count == 0) refuse(node, "devices", kDevicesValid);
    return request_count(*count, node, "devices", kDevicesValid);
  }
  const auto indices = to_indices(node.text());
  if (!indices) refuse(node, "devices", kDevicesValid);
  return request_indices(*indices, node, "devices", kDevicesValid);
}

Request parse_gpus(const Config& node) {
  if (node.is_null()) return {Request::Kind::kNone, 0, {}};
  if (node.is_sequence()) {
    if (node.items().empty()) return {Request::Kind::kNone, 0, {}};
    return request_indices(indices_of(node, "gpus", kGpusValid), node, "gpus", kGpusValid);
  }
  if (!node.is_scalar()) refuse(node, "gpus", kGpusValid);
  if (!node.quoted()) {
    if (const auto count = to_integer(node.text())) return request_count(*count, node, "gpus", kGpusValid);
  }
  const auto indices = to_indices(node.text());
  if (!indices) refuse(node, "gpus", kGpusValid);
  return request_indices(*indices, node, "gpus", kGpusValid);
}

/// The accelerator that the option names; of `auto` the first that has devices.
const Accelerator& named_accelerator(const std::string& name, const DeviceCount& count) {
  const AcceleratorRegistry& registry = AcceleratorRegistry::instance();
  if (name == "tpu") refuse_tpu("accelerator");
  if (name == "gpu") return *registry.find("cuda");
  if (const Accelerator* named = registry.find(name)) return *named;
  std::vector<std::string> names{"auto", "gpu"};
  for (const Accelerator* accelerator : registry.all()) {
    if (name == "auto" && (accelerator->type() == at::kCPU || count(*accelerator) > 0)) return *accelerator;
    names.push_back(accelerator->name());
  }
  std::sort(names.begin(), names.end());
  throw ConfigError(
      fmt::format("unknown trainer.accelerator '{}'{}; hint: other kinds of devices come with "
                  "AcceleratorRegistry::instance().add(...), "
                  "see docs/extending.md",
                  name, valid_names_hint(name, names)));
}

std::vector<at::Device> devices_of(const Accelerator& accelerator, const Request& request, int64_t available,
                                   const char* option, const GpuChoice& choose) {
  std::vector<int64_t> indices = request.indices;
  const bool is_named = request.kind == Request::Kind::kIndices;
  if (is_named && choose)
    throw ConfigError(fmt::format(
        "trainer.{} names the GPUs and trainer.auto_select_gpus is true; hint: give a count, or leave one of them out",
        option));
  const int64_t count = request.kind == Request::Kind::kCount ? request.count : -1;
  if (!is_named && choose && available > 0) {
    indices = choose(count);
  } else if (!is_named) {
    for (int64_t i = 0; i < (count == -1 ? available : count); ++i) indices.push_back(i);
  }
  if (available == 0)
    throw ConfigError(fmt::format("trainer.{} asks for devices of '{}', and none can be used here; hint: {}", option,
                                  accelerator.name(), accelerator.hint_for_none()));
  std::vector<at::Device> devices;
  for (const int64_t index : indices) {
    if (index >= available)
      throw ConfigError(fmt::format(
          "trainer.{0} asks for {1}:{2}; valid: {1}:0 to {1}:{3} on this machine{4}", option, accelerator.name(), index,
          available - 1,
          available == 1 ? "; hint: under a launcher that shows each rank a device of its own, leave it out" : ""));
    devices.emplace_back(accelerator.type(), static_cast<at::DeviceIndex>(index));
  }
  return devices;
}

}  // namespace

DeviceSpec ConfigCodec<DeviceSpec>::parse(const Config& node, const std::string&) {
  parse_devices(node);
  return node.is_null() ? DeviceSpec() : DeviceSpec(node);
}

Config ConfigCodec<DeviceSpec>::dump(const DeviceSpec& value) {
  if (!TypedFormScope::is_active()) return value.config();
  const Request request = parse_devices(value.config());
  switch (request.kind) {
    case Request::Kind::kAll:
      return ConfigCodec<int64_t>::dump(-1);
    case Request::Kind::kCount:
      return ConfigCodec<int64_t>::dump(request.count);
    case Request::Kind::kIndices:
      return ConfigCodec<std::vector<int64_t>>::dump(request.indices);
    default:
      return Config::scalar("auto");
  }
}

GpuSpec ConfigCodec<GpuSpec>::parse(const Config& node, const std::string&) {
  parse_gpus(node);
  return GpuSpec(node);
}

void refuse_tpu(const std::string& option) {
  throw ConfigError(
      fmt::format("trainer.{} asks for TPUs, and LibTorch has no XLA back end for C++; hint: take GPUs "
                  "(accelerator: cuda), or PyTorch/XLA from Python",
                  option));
}

int64_t count_devices(const Accelerator& accelerator) { return accelerator.device_count(); }

std::vector<at::Device> resolve_devices(const std::string& accelerator, const DeviceSpec& devices, const GpuSpec& gpus,
                                        const DeviceCount& count, const GpuChoice& choose) {
  const Accelerator& named = named_accelerator(accelerator, count);
  const Request device_request = parse_devices(devices.config());
  if (choose && accelerator == "cpu")
    throw ConfigError("trainer.accelerator is cpu and trainer.auto_select_gpus is true; hint: leave one of them out");

  if (!gpus.config().is_null()) {
    if (device_request.kind != Request::Kind::kAuto)
      throw ConfigError("trainer.gpus and trainer.devices are both given; hint: keep devices, the present spelling");
    if (accelerator == "cpu" && parse_gpus(gpus.config()).kind != Request::Kind::kNone)
      throw ConfigError("trainer.gpus asks for GPUs and trainer.accelerator for the CPU; hint: leave one of them out");
    const Request request = parse_gpus(gpus.config());
    if (request.kind == Request::Kind::kNone) return {at::Device(at::kCPU)};
    const Accelerator& cuda = *AcceleratorRegistry::instance().find("cuda");
    return devices_of(cuda, request, count(cuda), "gpus", choose);
  }

  if (named.type() == at::kCPU) {
    if (device_request.kind == Request::Kind::kIndices)
      throw ConfigError(
          "trainer.devices names indices, which the CPU does not have; valid: a count of ranks such as 2");
    // "auto" and "all" of the one CPU are one rank.
    const int64_t ranks = device_request.kind == Request::Kind::kCount ? device_request.count : 1;
    return std::vector<at::Device>(static_cast<size_t>(ranks), at::Device(at::kCPU));
  }
  const char* const option = device_request.kind == Request::Kind::kAuto ? "accelerator" : "devices";
  return devices_of(named, device_request, count(named), option, choose);
}

}  // namespace levin
