#include <levin/core/planning/cluster.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string_view>
#include <vector>

namespace levin {
namespace {

constexpr double kGigabyte = 1e9;

bool is_positive(double value) { return value > 0 && std::isfinite(value); }

bool is_not_negative(double value) { return value >= 0 && std::isfinite(value); }

/// Whether a cluster may be given without this key.
bool is_optional(std::string_view key) { return key == "pass_us" || key == "optimizer_us"; }

}  // namespace

void Cluster::describe(Schema<Cluster>& schema) {
  constexpr const char* kPositive = "a finite number above 0";
  constexpr const char* kNotNegative = "a finite number of at least 0";
  schema.field("hosts", &Cluster::hosts, "hosts").at_least(1).at_most(100'000);
  schema.field("devices", &Cluster::devices, "devices of a host").at_least(1).at_most(1'024);
  schema
      .field("intra_gb_s", &Cluster::intra_gb_s,
             "bandwidth of a device to others of its host, in 10^9 bytes a second and direction")
      .require(kPositive, is_positive);
  schema
      .field("inter_gb_s", &Cluster::inter_gb_s,
             "bandwidth of a device to other hosts while all of its host send, in 10^9 bytes a second and direction")
      .require(kPositive, is_positive);
  schema.field("latency_us", &Cluster::latency_us, "time of a message without content, in microseconds")
      .require(kNotNegative, is_not_negative);
  schema.field("flops", &Cluster::flops, "floating point operations a second that a device reaches in training")
      .require(kPositive, is_positive);
  schema
      .field("pass_us", &Cluster::pass_us,
             "microseconds that a forward and backward take beside their operations, whatever the batch")
      .require(kNotNegative, is_not_negative);
  schema
      .field("optimizer_us", &Cluster::optimizer_us,
             "microseconds of the optimizer's step over the whole model on one device")
      .require(kNotNegative, is_not_negative);
}

Cluster ConfigCodec<Cluster>::parse(const Config& node, const std::string& path) {
  if (!node.is_mapping())
    throw_wrong_type(node, path, fmt::format("a mapping of {}", fmt::join(schema_of<Cluster>().names(), ", ")));
  Cluster cluster;
  schema_of<Cluster>().apply(cluster, node, path);
  std::vector<std::string> missing;
  for (const std::string& name : schema_of<Cluster>().names())
    if (node.find(name) == nullptr && !is_optional(name)) missing.push_back(name);
  if (!missing.empty())
    throw ConfigError(
        fmt::format("{} needs {} as well; valid: {{hosts: 128, devices: 8, intra_gb_s: 450, "
                    "inter_gb_s: 50, latency_us: 5, flops: 400e12}}",
                    path, fmt::join(missing, ", ")));
  return cluster;
}

Config ConfigCodec<Cluster>::dump(const Cluster& value) { return schema_of<Cluster>().dump(value); }

RankSpan ranks_along(const Cluster& cluster, int64_t ranks, int64_t stride) {
  // Groups that do not divide a host lie across hosts with fewer ranks on each.
  return {.ranks = ranks,
          .per_host = cluster.devices % stride == 0 ? std::gcd(ranks, cluster.devices / stride) : int64_t{1}};
}

double ring_bandwidth(const Cluster& cluster, const RankSpan& span) {
  const double inside = cluster.intra_gb_s * kGigabyte;
  if (!span.crosses_hosts()) return inside;
  return std::min(inside, static_cast<double>(span.per_host) * cluster.inter_gb_s * kGigabyte);
}

double all_gather_seconds(const Cluster& cluster, const RankSpan& span, double bytes) {
  const auto others = static_cast<double>(span.ranks - 1);
  return others * cluster.latency() + others / static_cast<double>(span.ranks) * bytes / ring_bandwidth(cluster, span);
}

double all_reduce_seconds(const Cluster& cluster, const RankSpan& span, double bytes) {
  if (span.ranks == 1) return 0;
  const double ring = 2 * all_gather_seconds(cluster, span, bytes);
  const double depth = std::ceil(std::log2(static_cast<double>(span.ranks)));
  const double trees = 2 * depth * cluster.latency() + 2 * bytes / ring_bandwidth(cluster, span);
  return std::min(ring, trees);
}

double message_seconds(const Cluster& cluster, bool crosses_hosts, double bytes) {
  return cluster.latency() + bytes / ((crosses_hosts ? cluster.inter_gb_s : cluster.intra_gb_s) * kGigabyte);
}

}  // namespace levin
