#pragma once

#include <levin/core/base/schema.h>

#include <cstdint>
#include <string>

namespace levin {

/// Machines to plan for: hosts with devices that are alike, and what communication between them costs by the
/// alpha-beta model: a message of n bytes takes `latency + n / bandwidth` (Thakur, Rabenseifner and Gropp,
/// "Optimization of collective communication operations in MPICH", 2005).
struct Cluster {
  int64_t hosts = 1;
  int64_t devices = 1;    ///< of a host
  double intra_gb_s = 1;  ///< 10^9 bytes a second that a device sends to others of its host
  double inter_gb_s = 1;  ///< 10^9 bytes a second that a device sends to other hosts; all devices of a host at once
  double latency_us = 0;  ///< of a message
  double flops = 1;       ///< floating point operations a second that a device reaches in training
  /// Microseconds that a forward and backward of the whole model take beside its operations, whatever the batch:
  /// starting kernels, reading weights, adding up gradients.
  double pass_us = 0;
  double optimizer_us = 0;  ///< microseconds of the optimizer's step over the whole model

  int64_t ranks() const { return hosts * devices; }
  double latency() const { return latency_us * 1e-6; }  ///< in seconds
  static void describe(Schema<Cluster>& schema);
};

/// As any described struct, but for that every key has to be there, except for pass_us and optimizer_us.
template <>
struct ConfigCodec<Cluster> {
  static std::string type_name() { return "mapping"; }
  static Cluster parse(const Config& node, const std::string& path);
  static Config dump(const Cluster& value);
};

/// Ranks of a collective, of which so many are on each host.
struct RankSpan {
  int64_t ranks = 1;
  int64_t per_host = 1;

  bool crosses_hosts() const { return ranks > per_host; }
};

/// Returns where the ranks of one group along a dimension of a mesh are: so many, each `stride` after the one before
/// it, which is the product of the sizes of the dimensions within. Ranks are counted host by host. Of groups that lie
/// differently, the one with the fewest ranks on a host counts.
RankSpan ranks_along(const Cluster& cluster, int64_t ranks, int64_t stride);

/// Bytes a second that each rank of a ring passes on. Where the ring crosses hosts there are as many rings as ranks on
/// a host, each through a device of its own, so that the links between hosts are used together.
double ring_bandwidth(const Cluster& cluster, const RankSpan& span);

/// Seconds that gathering `bytes`, of which each rank has a part, takes in a ring, or reducing and scattering them:
/// (p - 1) latency + (p - 1) / p bytes / bandwidth.
double all_gather_seconds(const Cluster& cluster, const RankSpan& span, double bytes);

/// Seconds of an all-reduce: the quicker one of a ring, which reduces and scatters, then gathers, and of two trees, of
/// which each reduces half of the bytes and sends it back, in pieces: 2 log2(p) latency + 2 bytes / bandwidth (Sanders,
/// Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009).
double all_reduce_seconds(const Cluster& cluster, const RankSpan& span, double bytes);

/// Seconds of one message.
double message_seconds(const Cluster& cluster, bool crosses_hosts, double bytes);

}  // namespace levin
