#pragma once

#include <levin/core/interfaces/parallel_model.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace levin {

class Module;

/// Which server has which parameters of a module, whole ones, so that servers have about as many elements each, and
/// how they travel: packed into flat buffers in the host's memory, one for each server and type.
class ServedParameters {
 public:
  /// Servers are the ranks 0 to `servers` - 1. Throws ConfigError where there are fewer parameters than servers. The
  /// shards of a server share memory with the module's parameters, or, `own_memory`, are copies of their own.
  ServedParameters(Module& module, int64_t servers, int64_t rank, bool own_memory);

  /// Whether this rank serves any.
  bool is_server() const { return rank_ < servers_; }
  int64_t elements(int64_t server) const;
  /// What this rank's optimizer steps instead of each parameter: the parameter with gradients of its own where this
  /// rank serves it, else a tensor without elements, so that optimizers have the same groups on all ranks.
  std::vector<ParallelModel::Entry> entries() const;

  /// Takes note of parameters that are trained from here on; buffers hold these alone. Their set only grows, alike on
  /// all ranks.
  void note_trained();
  /// One flat tensor for each type that the server's trained parameters have.
  using Packet = std::vector<at::Tensor>;
  /// Memory for gradients: behind those of a type, for each of its parameters whether there is one.
  Packet gradient_packet(int64_t server) const;
  /// Memory for values.
  Packet value_packet(int64_t server) const;

  /// Copies the gradients of the module's parameters to a packet and takes them off the parameters. `all`: those that
  /// there are not count as zero.
  void take_gradients(int64_t server, bool all, Packet& packet);
  /// The mean of this rank's own gradients of what it serves and of those in packets of others, added in their order,
  /// becomes, or is added to, the gradients of its shards; what no rank has a gradient for gets none. Shards of other
  /// servers get gradients without elements.
  void average_gradients(bool all, const std::vector<Packet>& of_others);
  /// A packet's gradients become those of the shards, and shards of other servers get gradients without elements, so
  /// that an optimizer keeps the same things on all ranks.
  void set_gradients(const Packet& packet);
  void set_empty_gradients();
  /// Drops the gradients of the module's parameters, but those of these shards: their window was left without a step.
  void drop_gradients(const std::vector<at::Tensor>& but_of = {});
  /// Copies of the values of the shards.
  void copy_values(Packet& packet) const;
  /// The values of a server's packet become those of the module's parameters.
  void set_values(int64_t server, const Packet& packet);
  /// Values that this rank serves, from its module: all ranks' modules are alike.
  void load_shards();
  /// The trained parameters that this rank serves: their shards.
  std::vector<at::Tensor> trained_shards() const;

 private:
  struct Entry {
    std::string name;
    at::Tensor tensor;  ///< of the module
    at::Tensor local_shard;
    int64_t server = 0;
    bool is_trained = false;
  };
  /// The trained parameters of a server that have a type.
  struct Section {
    at::ScalarType type;
    std::vector<size_t> entries;
    int64_t elements = 0;
  };

  void lay_out();
  Packet packet(int64_t server, bool gradients) const;
  template <class Use>
  void for_each(int64_t server, const Packet& packet, const Use& use) const;

  const int64_t servers_;
  const int64_t rank_;
  const bool own_memory_;
  std::vector<Entry> entries_;
  std::vector<std::vector<Section>> sections_;  ///< of each server
};

}  // namespace levin
