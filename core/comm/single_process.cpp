#include <levin/core/comm/single_process.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>

#include <condition_variable>
#include <map>
#include <mutex>

namespace levin {
namespace {

class DoneWork : public Work {
 public:
  void wait() override {}
  bool is_completed() const override { return true; }
};

class MemoryStore : public Store {
 public:
  void set(const std::string& key, const std::string& value) override {
    {
      const std::lock_guard lock(shared_->mutex);
      shared_->values[key] = value;
    }
    shared_->changed.notify_all();
  }

  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    std::unique_lock lock(shared_->mutex);
    if (!shared_->changed.wait_for(lock, timeout, [&] { return shared_->values.count(key) > 0; }))
      throw Error("comm", fmt::format("no rank set the key '{}' within {} ms", key, timeout.count()));
    return shared_->values[key];
  }

  int64_t add(const std::string& key, int64_t amount) override {
    const std::lock_guard lock(shared_->mutex);
    const std::string& old = shared_->values[key];
    const int64_t sum = (old.empty() ? 0 : std::stoll(old)) + amount;
    shared_->values[key] = std::to_string(sum);
    return sum;
  }

  bool contains(const std::string& key) override {
    const std::lock_guard lock(shared_->mutex);
    return shared_->values.count(key) > 0;
  }

  std::unique_ptr<Store> clone() const override {
    auto copy = std::make_unique<MemoryStore>();
    copy->shared_ = shared_;
    return copy;
  }

 private:
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::map<std::string, std::string> values;
  };
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
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
  Store& store() override { return store_; }

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

  MemoryStore store_;
};

}  // namespace

std::shared_ptr<Collective> make_single_process_collective() { return std::make_shared<SingleProcessCollective>(); }

}  // namespace levin
