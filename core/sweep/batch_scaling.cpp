#include <levin/core/sweep/batch_scaling.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>

#include <cmath>
#include <string_view>

namespace levin::sweep {
namespace {

const Config* find_path(const Config& config, std::string_view path) {
  const Config* node = &config;
  while (node != nullptr && node->is_mapping()) {
    const size_t dot = path.find('.');
    node = node->find(path.substr(0, dot));
    if (dot == std::string_view::npos) return node;
    path.remove_prefix(dot + 1);
  }
  return nullptr;
}

int64_t ranks_of(const RunDevices& devices) { return devices.count * devices.hosts; }

}  // namespace

Settings batch_size_of(const SweepOptions& options, const Config& resolved, const RunDevices& devices) {
  if (!options.global_batch_size) return {};
  const int64_t ranks = ranks_of(devices);
  if (*options.global_batch_size % ranks != 0)
    throw ConfigError(
        fmt::format("sweep.global_batch_size must be a multiple of the number of devices; got {} for {} "
                    "devices",
                    *options.global_batch_size, ranks));
  if (find_path(resolved, "data.batch_size") == nullptr)
    throw ConfigError("sweep.global_batch_size sets data.batch_size, which the program's data module does not have");
  return {{"data.batch_size", ConfigCodec<int64_t>::dump(*options.global_batch_size / ranks)}};
}

Settings learning_rate_of(const SweepOptions& options, const Config& resolved, const RunDevices& devices) {
  if (!options.learning_rate_scaling) return {};
  const auto& [option, reference, rule] = *options.learning_rate_scaling;
  const Config* rate = find_path(resolved, option);
  const Config* batch_size = find_path(resolved, "data.batch_size");
  if (rate == nullptr || !rate->is_scalar())
    throw ConfigError(
        fmt::format("sweep.learning_rate_scaling.option: there is no option '{}'; hint: the dotted name "
                    "of the learning rate, such as model.lr",
                    option));
  if (batch_size == nullptr)
    throw ConfigError(
        "sweep.learning_rate_scaling needs data.batch_size, which the program's data module does not have");
  const Config* accumulated = find_path(resolved, "trainer.accumulate_grad_batches");
  if (accumulated == nullptr || !accumulated->is_scalar())
    throw ConfigError("sweep.learning_rate_scaling: trainer.accumulate_grad_batches must be one number");
  const double global =
      static_cast<double>(ranks_of(devices)) *
      static_cast<double>(ConfigCodec<int64_t>::parse(*batch_size, "data.batch_size")) *
      static_cast<double>(ConfigCodec<int64_t>::parse(*accumulated, "trainer.accumulate_grad_batches"));
  const double ratio = global / static_cast<double>(reference);
  const double scaled = ConfigCodec<double>::parse(*rate, option) * (rule == "sqrt" ? std::sqrt(ratio) : ratio);
  return {{option, Config::scalar(fmt::format("{:.6g}", scaled), false, rate->origin())}};
}

}  // namespace levin::sweep
