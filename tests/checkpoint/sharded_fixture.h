#pragma once

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/state.h>

#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include "checkpoint_fixture.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <limits>
#include <random>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace levin::testing {

/// A rank's part of a whole tensor: the elements from `begin` to `end` of it, flattened.
inline TensorLeaf shard_of(const at::Tensor& whole, int64_t begin, int64_t end, const std::string& name) {
  const at::Tensor part = whole.contiguous().flatten().narrow(0, begin, end - begin).clone();
  return TensorLeaf{part, {Placement::Kind::kSharded, name, begin, whole.sizes().vec()}};
}

/// The tree of one of `ranks` ranks among which every tensor of the sections "model" and "optimizers" is divided at
/// `cuts(number of elements)`: the ranks - 1 places where one rank's part ends. Everything else is alike on all.
template <class Cuts>
std::vector<State> shard_tree(const State& tree, int64_t ranks, const Cuts& cuts) {
  std::vector<State> result(static_cast<size_t>(ranks), tree);
  const auto divide = [&](const at::Tensor& whole, const std::string& name, const auto& place_in) {
    std::vector<int64_t> ends = cuts(whole.numel());
    ends.push_back(whole.numel());
    int64_t begin = 0;
    for (size_t rank = 0; rank < result.size(); ++rank) {
      place_in(result[rank]) = shard_of(whole, begin, ends[rank], name);
      begin = ends[rank];
    }
  };
  for (const auto& [name, value] : tree.at("model").as_map())
    divide(value.as_tensor(), name, [&key = name](State& rank) -> State& { return rank["model"][key]; });
  for (const auto& [name, moments] : tree.at("optimizers").as_list().front().at("state").as_map())
    for (const auto& [moment, value] : moments.as_map())
      divide(value.as_tensor(), name, [&key = name, &second = moment](State& rank) -> State& {
        return rank["optimizers"].as_list().front()["state"][key][second];
      });
  return result;
}

/// Equal parts, the last ones smaller.
inline std::vector<State> shard_evenly(const State& tree, int64_t ranks) {
  return shard_tree(tree, ranks, [ranks](int64_t count) {
    const int64_t part = (count + ranks - 1) / ranks;
    std::vector<int64_t> ends;
    for (int64_t rank = 1; rank < ranks; ++rank) ends.push_back(std::min(count, rank * part));
    return ends;
  });
}

/// The real file system but for paths that contain a text: after a number of calls on these, all of them fail. For
/// several threads.
class FailingPaths : public FileSystem {
 public:
  explicit FailingPaths(std::string text) : text_(std::move(text)) { FileSystem::replace(this); }
  ~FailingPaths() override { FileSystem::replace(nullptr); }

  void fail_after(int64_t calls) { calls_left_ = calls; }
  void heal() { calls_left_ = std::numeric_limits<int64_t>::max(); }
  int64_t calls() const { return calls_; }

  std::unique_ptr<WritableFile> create(const std::string& path) override {
    call(path);
    return std::make_unique<File>(*this, path, FileSystem::create(path));
  }

 private:
  class File : public WritableFile {
   public:
    File(FailingPaths& owner, std::string path, std::unique_ptr<WritableFile> file)
        : owner_(owner), path_(std::move(path)), file_(std::move(file)) {}
    using WritableFile::append;
    void append(const void* data, size_t size) override {
      owner_.call(path_);
      file_->append(data, size);
    }
    void flush() override {
      owner_.call(path_);
      file_->flush();
    }
    void sync() override {
      owner_.call(path_);
      file_->sync();
    }
    void close() override {
      owner_.call(path_);
      file_->close();
    }

   private:
    FailingPaths& owner_;
    const std::string path_;
    const std::unique_ptr<WritableFile> file_;
  };

  void call(const std::string& path) {
    if (path.find(text_) == std::string::npos) return;
    ++calls_;
    if (calls_left_.fetch_sub(1) <= 0)
      throw Error("files", "cannot write " + path + ": " + std::generic_category().message(ENOSPC));
  }

  const std::string text_;
  std::atomic<int64_t> calls_left_ = std::numeric_limits<int64_t>::max();
  std::atomic<int64_t> calls_ = 0;
};

}  // namespace levin::testing
