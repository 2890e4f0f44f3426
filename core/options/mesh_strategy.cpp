#include <levin/core/options/mesh_strategy.h>

#include <levin/core/base/error.h>
#include <levin/core/base/schema.h>
#include <levin/core/comm/device_mesh.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/options/registries.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

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
constexpr std::string_view kOfShard = "shard_";      ///< with it a pipeline's options of how a stage is divided begin
constexpr std::string_view kOfTensor = "tensor_";    ///< and those of others of how layers are cut
constexpr std::string_view kOfContext = "context_";  ///< and how sequences are

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
    if (part.dimension == DeviceMesh::kPipeline && key.starts_with(kOfShard) && key != "shard_group" &&
        key != "shard_optimizer")
      throw ConfigError(fmt::format("{}{}.{} is an option of the ranks that divide a stage; hint: write it as {}.{}.{}",
                                    origin.prefix(), path, key, kPath, DeviceMesh::kShard,
                                    key.substr(kOfShard.size())));
    if (is_said_by_sizes(key))
      throw ConfigError(
          fmt::format("{}{}.{} is what the sizes of the mesh say; hint: leave it out, and give the sizes of "
                      "replicate and shard",
                      origin.prefix(), path, key));
    if (is_rank_option(key))
      throw ConfigError(fmt::format("{}{}.{} is an option of all ranks; hint: write it beside the dimensions, as {}.{}",
                                    origin.prefix(), path, key, kPath, key));
    part.options.set(key, value, origin);
  }
}

std::string arithmetic(const Parts& parts, int64_t ranks) {
  const bool is_one = std::ranges::all_of(parts, [](const Part& part) { return part.size == 1; });
  std::vector<std::string> factors;
  for (const Part& part : parts)
    if (is_one || part.size != 1)
      factors.push_back(fmt::format("{} {}", part.dimension, part.size ? std::to_string(*part.size) : "?"));
  return fmt::format("{} {} = {}", ranks, ranks == 1 ? "rank" : "ranks", fmt::join(factors, " x "));
}

/// Gives a size that is auto what the others leave.
void complete_sizes(Parts& parts, int64_t ranks, const std::string& place) {
  constexpr const char* kHint =
      "hint: the sizes' product is the number of ranks: devices of a host times num_nodes, or what a launcher has "
      "started; one size may be auto";
  const auto unknown = std::ranges::count_if(parts, [](const Part& part) { return !part.size; });
  int64_t product = 1;
  // Beyond the number of ranks the product no longer matters, and might overflow.
  for (const Part& part : parts)
    product = product > ranks ? product : product * std::min(part.size.value_or(1), ranks + 1);
  if (unknown > 1)
    throw ConfigError(
        fmt::format("{}{}: only one size may be auto; got {}; {}", place, kPath, arithmetic(parts, ranks), kHint));
  if (unknown == 0 ? product != ranks : ranks % product != 0)
    throw ConfigError(
        fmt::format("{}{}: the sizes do not fit the ranks; got {}; {}", place, kPath, arithmetic(parts, ranks), kHint));
  for (Part& part : parts) part.size = part.size.value_or(ranks / product);
}

void refuse_options(const Part& part, std::string_view why) {
  if (part.options.entries().empty()) return;
  const Config::Entry& option = part.options.entries().front();
  throw ConfigError(fmt::format("{}{}.{}.{} does not work {}; hint: leave it out", option.origin.prefix(), kPath,
                                part.dimension, option.key, why));
}

/// Gives the strategy of another dimension the options of `part` that it has too, and the part's size.
void compose(Config& strategy, Part& part, std::string_view prefix, const std::vector<std::string>& options,
             std::string_view beside) {
  for (const std::string& option : options) {
    const Config* const value = part.options.find(option);
    if (value == nullptr) continue;
    strategy.set(fmt::format("{}{}", prefix, option), *value, value->origin());
    part.options.erase(option);
  }
  refuse_options(part, fmt::format("beside {}, where {} has the options {} and {}", beside, part.dimension,
                                   fmt::join(options.begin(), options.end() - 1, ", "), options.back()));
  strategy.set(fmt::format("{}group", prefix), Config::scalar(std::to_string(*part.size)));
}

[[noreturn]] void throw_unknown(const Config::Entry& entry) {
  std::vector<std::string> valid = rank_options();
  for (const MeshDimension& dimension : kMeshDimensions) {
    valid.emplace_back(dimension.name);
    const auto& fields = registries().strategies.require(std::string(dimension.strategy)).fields;
    if (!is_said_by_sizes(entry.key) && std::ranges::find(fields, entry.key, &FieldDoc::name) != fields.end())
      throw ConfigError(fmt::format("{0}{1}.{2} is an option of one dimension of the mesh; hint: {1}.{3}.{2}",
                                    entry.origin.prefix(), kPath, entry.key, dimension.name));
  }
  throw ConfigError(fmt::format("{}{}.{} is no dimension of a mesh, and no option of its ranks{}",
                                entry.origin.prefix(), kPath, entry.key, valid_names_hint(entry.key, valid)));
}

struct Mesh {
  Parts parts = unread_parts();
  Config shared = Config::mapping();  ///< options of all ranks
};

/// Options of a dimension with every default.
Config resolved_options(const Part& part) {
  return registries()
      .strategies.require(std::string(part.strategy))
      .resolve(part.options, fmt::format("{}.{}", kPath, part.dimension));
}

Config resolved_shared(const Mesh& mesh) { return registries().strategies.require("ddp").resolve(mesh.shared, kPath); }

Mesh read(const Config& node) {
  Mesh mesh;
  for (const Config::Entry& entry : node.entries()) {
    const auto part = std::ranges::find(mesh.parts, entry.key, &Part::dimension);
    if (part != mesh.parts.end())
      read_part(*part, entry.value);
    else if (is_rank_option(entry.key))
      mesh.shared.set(entry.key, entry.value, entry.origin);
    else
      throw_unknown(entry);
  }
  // Options of a dimension that turns out to have one rank are checked, and do nothing.
  for (const Part& part : mesh.parts) resolved_options(part);
  resolved_shared(mesh);
  return mesh;
}

/// Each dimension as a mapping, or a size alone as a number where it says nothing else.
Config with_sizes(Config mesh, bool as_mappings) {
  for (const MeshDimension& dimension : kMeshDimensions) {
    Config* const node = mesh.find(dimension.name);
    if (node == nullptr) continue;
    if (as_mappings && node->is_scalar()) {
      Config mapping = Config::mapping(node->origin());
      mapping.set(kSize, *node, node->origin());
      *node = std::move(mapping);
    } else if (!as_mappings && node->is_mapping() && node->entries().size() == 1 && node->find(kSize) != nullptr) {
      const Config size = *node->find(kSize);
      *node = size;
    }
  }
  return mesh;
}

}  // namespace

bool is_rank_option(std::string_view name) { return std::ranges::find(rank_options(), name) != rank_options().end(); }

bool is_said_by_sizes(std::string_view name) {
  return name == "data_parallel" || name.starts_with(kOfContext) || name.starts_with(kOfTensor) ||
         name.starts_with(kOfShard);
}

std::vector<FieldDoc> fields_of(const MeshDimension& dimension, const Registry<Strategy>& strategies) {
  std::vector<FieldDoc> fields{{.name = kSize,
                                .type = "integer or auto",
                                .default_value = "auto",
                                .constraint = "at least 1",
                                .doc = "ranks along the dimension; auto: what the other sizes leave"}};
  const auto* strategy = strategies.find(std::string(dimension.strategy));
  if (strategy == nullptr) return fields;
  for (const FieldDoc& field : strategy->fields)
    if (!is_rank_option(field.name) && !is_said_by_sizes(field.name)) fields.push_back(field);
  return fields;
}

void refuse_misspelt_mesh(const Config& strategy) {
  if (!strategy.is_mapping() || strategy.find("name") != nullptr || is_mesh(strategy)) return;
  const Registry<Strategy>& strategies = registries().strategies;
  std::vector<std::string> dimensions;
  for (const MeshDimension& dimension : kMeshDimensions) dimensions.emplace_back(dimension.name);
  for (const Config::Entry& entry : strategy.entries()) {
    // `{fsdp: {stage: 2}}` is a strategy with its options.
    if (is_rank_option(entry.key) || strategies.find(entry.key) != nullptr) continue;
    if (nearest_name(entry.key, dimensions).empty()) continue;
    throw ConfigError(fmt::format("{}{}.{} is no dimension of a mesh, and no strategy{}", entry.origin.prefix(), kPath,
                                  entry.key, valid_names_hint(entry.key, dimensions)));
  }
}

Config merge_meshes(const Config& base, const Config& later) {
  Config merged = with_sizes(base, /*as_mappings=*/true);
  merged.merge(with_sizes(later, /*as_mappings=*/true));
  return with_sizes(std::move(merged), /*as_mappings=*/false);
}

Config resolve_mesh(const Config& node) {
  const Mesh mesh = read(node);
  if (!TypedFormScope::is_active()) return node;
  Config form = Config::mapping();
  for (const Part& part : mesh.parts) {
    if (part.size == 1) continue;
    Config options = resolved_options(part);
    options.set(kSize, part.size ? ConfigCodec<int64_t>::dump(*part.size) : Config::scalar("auto"));
    form.set(part.dimension, std::move(options));
  }
  form.merge(resolved_shared(mesh));
  return form;
}

bool is_mesh(const Config& strategy) {
  if (!strategy.is_mapping() || strategy.find("name") != nullptr) return false;
  const auto dimensions = std::ranges::count_if(
      kMeshDimensions, [&](const MeshDimension& dimension) { return strategy.find(dimension.name) != nullptr; });
  const Config* const pipeline = strategy.find(DeviceMesh::kPipeline);
  if (dimensions != 1 || pipeline == nullptr) return dimensions > 0;
  return !pipeline->is_mapping() || pipeline->find(kSize) != nullptr || strategy.entries().size() > 1;
}

Config strategy_of_mesh(const Config& mesh, int64_t ranks) {
  auto [parts, shared] = read(mesh);
  auto& [pipeline, replicate, shard, context, tensor] = parts;
  complete_sizes(parts, ranks, mesh.origin().prefix());
  const auto as_text = [](int64_t number) { return Config::scalar(std::to_string(number)); };
  if (*context.size > 1)
    for (const Part* other : {&pipeline, &tensor})
      if (*other->size > 1)
        throw ConfigError(
            fmt::format("{}{}: context {} does not work beside {} {} yet; valid beside context: replicate and shard",
                        mesh.origin().prefix(), kPath, *context.size, other->dimension, *other->size));
  const Part& outer = *pipeline.size > 1  ? pipeline
                      : *shard.size > 1   ? shard
                      : *context.size > 1 ? context
                      : *tensor.size > 1  ? tensor
                                          : replicate;
  Config strategy = Config::mapping(mesh.origin());
  strategy.set("name", Config::scalar(std::string(outer.strategy), false, mesh.origin()));
  strategy.merge(outer.options);
  strategy.merge(shared);
  if (&outer != &replicate && *replicate.size > 1)
    refuse_options(replicate, fmt::format("beside {}, which averages gradients itself", outer.dimension));
  if (&outer == &shard) strategy.set("shard_group", as_text(*shard.size));
  if (&outer != &tensor && *tensor.size > 1)
    compose(strategy, tensor, kOfTensor, {"plan", "sequence_parallel"}, outer.dimension);
  if (&outer != &context && *context.size > 1)
    compose(strategy, context, kOfContext, {"dimension", "tensors", "method"}, outer.dimension);
  if (&outer == &tensor) strategy.set("tensor_group", as_text(*tensor.size));
  if (&outer == &context) strategy.set("context_group", as_text(*context.size));
  if (&outer != &pipeline) return strategy;
  strategy.set("data_parallel", as_text(*replicate.size * *shard.size));
  if (*shard.size == 1) return strategy;
  compose(strategy, shard, kOfShard, {"stage", "prefetch", "bucket_cap_mb", "keep_window_gradients"}, "pipeline");
  strategy.set("shard_optimizer", Config::scalar("true"));
  return strategy;
}

}  // namespace levin
