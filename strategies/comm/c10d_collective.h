#pragma once

#include <levin/core/comm/collective.h>
#include <levin/core/comm/rank_status.h>
#include <levin/strategies/comm/process_group.h>

#include <memory>
#include <string>
#include <vector>

namespace c10d {
class Backend;
}

namespace levin {

class BackendWatch;

/// The ranks of a process group of c10d. Tensors that are moved but not reduced may have any type; tensors that are not
/// contiguous are copied on the way. The mean of integers is that of their exact sum, rounded towards zero; that of
/// float16 does not overflow where its terms do not. A Work of send or receive over Gloo is complete only once it has
/// been waited for; NCCL ignores tags.
class C10dCollective : public Collective {
 public:
  /// `store` and `options` are what the group was made with; `make_group` makes sub-groups in the same way. While the
  /// rank waits in a collective, `rank_status` (which may be nullptr) says in which.
  C10dCollective(c10::intrusive_ptr<c10d::ProcessGroup> group, c10::intrusive_ptr<c10d::Store> store,
                 ProcessGroupOptions options, RankStatus* rank_status = nullptr,
                 ProcessGroupFactory make_group = make_process_group);
  ~C10dCollective() override;

  /// The process group, for c10d's Reducer.
  const c10::intrusive_ptr<c10d::ProcessGroup>& process_group() const { return group_; }

  int64_t rank() const override { return options_.rank; }
  int64_t world_size() const override { return options_.world_size; }

  std::unique_ptr<Work> all_reduce(at::Tensor tensor, ReduceOp op) override;
  std::unique_ptr<Work> broadcast(at::Tensor tensor, int64_t root) override;
  std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input) override;
  std::unique_ptr<Work> reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op) override;
  std::unique_ptr<Work> send(at::Tensor tensor, int64_t to, int64_t tag) override;
  std::unique_ptr<Work> receive(at::Tensor tensor, int64_t from, int64_t tag) override;
  void barrier() override;

  std::string broadcast_bytes(const std::string& bytes, int64_t root) override;
  std::vector<std::string> gather_bytes(const std::string& bytes) override;

  std::shared_ptr<Collective> subgroup(std::span<const int64_t> ranks) override;
  /// Also ends what is under way in sub-groups. Called by this object itself when a backend of a device, whose
  /// operations the host does not wait for, says that one has failed or timed out.
  void abort(const std::string& reason) override;
  /// Throws CommunicationError with the reason after abort(), for those who use the process group.
  void throw_if_aborted(const char* operation) const;
  Store& store() override { return *store_; }

 private:
  class PendingWork;
  struct Context;

  c10d::Backend& backend_for(const at::Tensor& tensor) const;
  /// The tensor as the backend takes it: contiguous, and on the CPU where its backend lacks operations on devices.
  at::Tensor transportable(const at::Tensor& tensor) const;
  /// The same for one that is only written to.
  at::Tensor place_for(const at::Tensor& tensor) const;
  void check_tag(int64_t tag, const char* operation) const;
  void check_rank(int64_t rank, const char* operation, const char* role) const;

  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  c10::intrusive_ptr<c10d::Store> c10d_store_;
  std::unique_ptr<Store> store_;
  ProcessGroupOptions options_;
  ProcessGroupFactory make_group_;
  at::Device bytes_device_;           ///< where bytes travel
  bool stages_on_host_ = false;       ///< Gloo knows little more of devices than all_reduce and broadcast
  std::shared_ptr<Context> context_;  ///< which works share, as they may outlive this object
  int64_t subgroups_made_ = 0;
  std::unique_ptr<BackendWatch> watch_;  ///< of the device's backend, where it is no Gloo
};

}  // namespace levin
