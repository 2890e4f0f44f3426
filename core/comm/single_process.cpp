#include <levin/core/comm/single_process.h>

#include <levin/core/base/error.h>
#include <levin/core/comm/memory_store.h>

#include <fmt/format.h>

namespace levin {
namespace {

class DoneWork : public Work {
 public:
  void wait() override {}
  bool is_completed() const override { return true; }
};

class SingleProcessCollective : public Collective {
 public:
  int64_t rank() const override { return 0; }
  int64_t world_size() const override { return 1; }

  std::unique_ptr<Work> all_reduce(at::Tensor, ReduceOp) override { return done(); }
  std::unique_ptr<Work> broadcast(at::Tensor, int64_t root) override {
    require_rank_zero(root, "broadcast");
    return done();
  }
  std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input) override { return copy(output, input); }
  std::unique_ptr<Work> reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp) override {
    return copy(output, input);
  }
  std::unique_ptr<Work> send(at::Tensor, int64_t to, int64_t) override {
    throw Error("comm", fmt::format("cannot send to rank {} in a group of one", to));
  }
  std::unique_ptr<Work> receive(at::Tensor, int64_t from, int64_t) override {
    throw Error("comm", fmt::format("cannot receive from rank {} in a group of one", from));
  }
  void barrier() override {}

  std::string broadcast_bytes(const std::string& bytes, int64_t root) override {
    require_rank_zero(root, "broadcast");
    return bytes;
  }
  std::vector<std::string> gather_bytes(const std::string& bytes) override { return {bytes}; }

  std::shared_ptr<Collective> subgroup(std::span<const int64_t> ranks) override {
    if (ranks.empty()) return nullptr;
    for (const int64_t rank : ranks) require_rank_zero(rank, "subgroup");
    return make_single_process_collective();
  }
  void abort(const std::string&) override {}
  Store& store() override { return *store_; }

 private:
  static std::unique_ptr<Work> done() { return std::make_unique<DoneWork>(); }

  static std::unique_ptr<Work> copy(at::Tensor& output, const at::Tensor& input) {
    if (output.numel() != input.numel())
      throw Error("comm", fmt::format("output and input differ in size; got {} and {} elements in a group of one",
                                      output.numel(), input.numel()));
    output.view(-1).copy_(input.reshape(-1));
    return done();
  }

  static void require_rank_zero(int64_t rank, const char* operation) {
    if (rank != 0) throw Error("comm", fmt::format("{} names rank {}; valid: 0 in a group of one", operation, rank));
  }

  const std::unique_ptr<Store> store_ = make_memory_store();
};

}  // namespace

std::shared_ptr<Collective> make_single_process_collective() { return std::make_shared<SingleProcessCollective>(); }

}  // namespace levin
