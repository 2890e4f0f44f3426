#include <levin/core/options/mesh_strategy.h>

#include <levin/core/base/error.h>
#include <levin/core/base/schema.h>
#include <levin/core/comm/device_mesh.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/options/registries.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace levin {
namespace {

constexpr const char* kPath = "trainer.strategy";
constexpr const char* kSize = "size";

/// What a mesh says of a dimension.
struct Part {
  std::string_view dimension;
  std::string_view strategy;
  std::optional<int64_t> size = 1;  ///< nothing: what the others leave
  Config options = Config::mapping();
};

using Parts = std::array<Part, kMeshDimensions.size()>;

Parts unread_parts() {
  Parts parts;
  for (size_t i = 0; i < parts.size(); ++i)
    parts[i] = {.dimension = kMeshDimensions[i].name, .strategy = kMeshDimensions[i].strategy};
  return parts;
}

const std::vector<std::string>& rank_options() {
  static const std::vector<std::string> names{"start_method",  "backend",      "timeout",
                                              "start_timeout", "stall_report", "hang_timeout"};
  return names;
}

std::optional<int64_t> read_size(const Config& node, const std::string& path) {
  if (node.is_scalar() && node.text() == "auto") return std::nullopt;
  const auto wrong = [&] {
    throw_wrong_type(node, path, "a number of ranks, at least 1, or auto (what the other sizes leave)");
  };
  if (!node.is_scalar() || node.quoted()) wrong();
  int64_t size = 0;
  try {
    size = ConfigCodec<int64_t>::parse(node, path);
  } catch (const ConfigError&) {
    wrong();
  }
  if (size < 1) wrong();
  return size;
}

void read_part(Part& part, const Config& node) {
  const std::string path = fmt::format("{}.{}", kPath, part.dimension);
  if (!node.is_mapping()) {
    part.size = read_size(node, path);
    return;
  }
  const Config* const size = node.find(kSize);
  part.size = size == nullptr ? std::nullopt : read_size(*size, path + "." + kSize);
  for (const auto& [key, origin, value] : node.entries()) {
    if (key == kSize) continue;
    if (key == "data_parallel" || key == "shard_optimizer" || key == "shard_group")
      throw ConfigError(
          fmt::format("{}.{} is what the sizes of the mesh say; hint: leave it out, and give the sizes of "
                      "replicate and shard",
                      path, key));
    if (is_rank_option(key))
      throw ConfigError(fmt::format("{}.{} is an option of all ranks; hint: write it beside the dimensions, as {}.{}",
                                    path, key, kPath, key));
    part.options.set(key, value, origin);
  }
}

std::string arithmetic(const Parts& parts, int64_t ranks) {
  std::string text = fmt::format("{} {} =", ranks, ranks == 1 ? "rank" : "ranks");
  bool is_first = true;
  for (const Part& part : parts) {
    if (part.size == 1) continue;
    text += fmt::format("{} {} {}", is_first ? "" : " x", part.dimension, part.size ? std::to_string(*part.size) : "?");
    is_first = false;
  }
  return is_first ? text + " 1" : text;
}

/// Gives a size that is auto what the others leave.
void complete_sizes(Parts& parts, int64_t ranks) {
  constexpr const char* kHint =
      "hint: the sizes' product is the number of ranks: devices of a host times num_nodes, or what a launcher has "
      "started; one size may be auto";
  const auto unknown = std::ranges::count_if(parts, [](const Part& part) { return !part.size; });
  int64_t product = 1;
  // Beyond the number of ranks the product no longer matters, and might overflow.
  for (const Part& part : parts)
    product = product > ranks ? product : product * std::min(part.size.value_or(1), ranks + 1);
  if (unknown > 1)
    throw ConfigError(fmt::format("{}: only one size may be auto; got {}; {}", kPath, arithmetic(parts, ranks), kHint));
  if (unknown == 0 ? product != ranks : ranks % product != 0)
    throw ConfigError(
        fmt::format("{}: the sizes do not fit the ranks; got {}; {}", kPath, arithmetic(parts, ranks), kHint));
  for (Part& part : parts) part.size = part.size.value_or(ranks / product);
}

void refuse_options(const Part& part, std::string_view why) {
  if (!part.options.entries().empty())
    throw ConfigError(fmt::format("{}.{}.{} does not work {}; hint: leave it out", kPath, part.dimension,
                                  part.options.entries().front().key, why));
}

}  // namespace

bool is_rank_option(std::string_view name) { return std::ranges::find(rank_options(), name) != rank_options().end(); }

bool is_mesh(const Config& strategy) {
  if (!strategy.is_mapping() || strategy.find("name") != nullptr) return false;
  const auto dimensions = std::ranges::count_if(
      kMeshDimensions, [&](const MeshDimension& dimension) { return strategy.find(dimension.name) != nullptr; });
  const Config* const pipeline = strategy.find(DeviceMesh::kPipeline);
  if (dimensions != 1 || pipeline == nullptr) return dimensions > 0;
  return !pipeline->is_mapping() || pipeline->find(kSize) != nullptr || strategy.entries().size() > 1;
}

Config strategy_of_mesh(const Config& mesh, int64_t ranks) {
  auto parts = unread_parts();
  auto& [pipeline, replicate, shard] = parts;
  Config shared = Config::mapping();
  for (const auto& [key, origin, value] : mesh.entries()) {
    const auto part = std::ranges::find(parts, key, &Part::dimension);
    if (part != parts.end()) {
      read_part(*part, value);
    } else if (is_rank_option(key)) {
      shared.set(key, value, origin);
    } else {
      std::vector<std::string> valid = rank_options();
      for (const Part& other : parts) valid.emplace_back(other.dimension);
      throw ConfigError(fmt::format("{}.{} is no dimension of a mesh, and no option of its ranks{}", kPath, key,
                                    valid_names_hint(key, valid)));
    }
  }
  complete_sizes(parts, ranks);
  // Options of a dimension that turns out to have one rank are checked, and do nothing.
  for (const Part& part : parts)
    registries()
        .strategies.require(std::string(part.strategy))
        .resolve(part.options, fmt::format("{}.{}", kPath, part.dimension));

  const auto as_text = [](int64_t number) { return Config::scalar(std::to_string(number)); };
  const Part& outer = *pipeline.size > 1 ? pipeline : *shard.size > 1 ? shard : replicate;
  Config strategy = Config::mapping(mesh.origin());
  strategy.set("name", Config::scalar(std::string(outer.strategy), false, mesh.origin()));
  strategy.merge(outer.options);
  strategy.merge(shared);
  if (&outer != &replicate && *replicate.size > 1)
    refuse_options(replicate, fmt::format("beside {}, which averages gradients itself", outer.dimension));
  if (&outer == &shard) strategy.set("shard_group", as_text(*shard.size));
  if (&outer != &pipeline) return strategy;
  strategy.set("data_parallel", as_text(*replicate.size * *shard.size));
  if (*shard.size == 1) return strategy;
  const Config* const stage = shard.options.find("stage");
  if (stage != nullptr && stage->text() != "1")
    throw ConfigError(
        fmt::format("{}.shard.stage is {}; valid beside pipeline: 1 (ranks of a stage divide the optimizer's state)",
                    kPath, stage->describe()));
  shard.options.erase("stage");
  refuse_options(shard, "beside pipeline, where shard has the one option stage: 1");
  strategy.set("shard_optimizer", Config::scalar("true"));
  strategy.set("shard_group", as_text(*shard.size));
  return strategy;
}

}  // namespace levin
