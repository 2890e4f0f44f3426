#pragma once

#include <levin/core/base/state.h>
#include <levin/core/checkpoint/state_path.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace levin::testing {

/// A folder of its own for each test, removed afterwards.
class CheckpointTest : public ::testing::Test {
 protected:
  CheckpointTest() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = ::testing::TempDir() + "levin_" + test->test_suite_name() + "_" + test->name() + "_" +
              std::to_string(::getpid());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~CheckpointTest() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  std::string folder_;
};

inline std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline void flip_bit(const std::string& path, size_t position) {
  // In place: cutting a file and writing it again is slow on file systems that then wait for the disk.
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(static_cast<std::streamoff>(position));
  const int byte = file.get();
  ASSERT_NE(byte, std::char_traits<char>::eof()) << path << " at " << position;
  file.seekp(static_cast<std::streamoff>(position));
  file.put(static_cast<char>(byte ^ 1));
}

/// The message that `action` throws, or an empty string.
template <class Action>
std::string message_of(const Action& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

inline void expect_same_tensor(const at::Tensor& a, const at::Tensor& b, const std::string& name) {
  ASSERT_EQ(a.defined(), b.defined()) << name;
  if (!a.defined()) return;
  ASSERT_EQ(a.scalar_type(), b.scalar_type()) << name;
  ASSERT_EQ(a.sizes(), b.sizes()) << name;
  const at::Tensor first = a.contiguous();
  const at::Tensor second = b.contiguous();
  if (first.nbytes() == 0) return;
  EXPECT_EQ(std::memcmp(first.const_data_ptr(), second.const_data_ptr(), first.nbytes()), 0) << name;
}

/// Equal in structure, types and every bit of every tensor.
inline void expect_same(const State& a, const State& b) {
  std::map<std::string, const State*> rest;
  for_each_leaf(b, [&](const std::string& path, const State& leaf) { rest[path] = &leaf; });
  for_each_leaf(a, [&](const std::string& path, const State& leaf) {
    ASSERT_TRUE(rest.contains(path)) << path;
    const State& other = *rest.at(path);
    rest.erase(path);
    ASSERT_STREQ(leaf.type_name(), other.type_name()) << path;
    if (leaf.is_tensor()) {
      expect_same_tensor(leaf.as_tensor(), other.as_tensor(), path);
    } else {
      EXPECT_EQ(plain_text(leaf), plain_text(other)) << path;
    }
  });
  EXPECT_TRUE(rest.empty()) << rest.begin()->first;
}

/// A small tree with every section that a training run saves; `value` tells two of them apart.
inline State sample_tree(int64_t value) {
  State tree = State::map();
  tree["model"]["net.0.weight"] = at::full({4, 3}, static_cast<double>(value));
  tree["model"]["net.0.bias"] = at::arange(4, at::kFloat);
  State optimizer = State::map();
  optimizer["state"]["net.0.weight"]["exp_avg"] = at::rand({4, 3});
  optimizer["lr"] = 1e-3;
  tree["optimizers"].push_back(optimizer);
  tree["rng"]["cpu"] = at::arange(16, at::kByte);
  tree["loops"]["global_step"] = value;
  tree["loops"]["epoch"] = int64_t{2};
  tree["hyper_parameters"]["hidden"] = int64_t{128};
  tree["versions"]["levin"] = "0.1.0";
  return tree;
}

}  // namespace levin::testing
