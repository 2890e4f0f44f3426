#include <levin/core/checkpoint/state_bytes.h>

#include <levin/core/base/error.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace levin {
namespace {

TEST(StateBytes, EveryValueSurvivesExactly) {
  State tree = State::map();
  tree["nothing"] = State();
  tree["whole"] = int64_t{1} << 62;
  tree["real"] = 2.0;
  tree["nan"] = std::numeric_limits<double>::quiet_NaN();
  tree["infinite"] = -std::numeric_limits<double>::infinity();
  tree["text"] = std::string("a\0b\n", 4);
  tree["list"] = State(State::List{true, "x", at::arange(6).reshape({2, 3})});
  tree["transposed"] = at::arange(6, at::kFloat).reshape({2, 3}).t();
  tree["empty"] = at::empty({0, 4});
  tree["scalar"] = at::scalar_tensor(0.1, at::kDouble);
  tree["half"] = at::ones({3}, at::kBFloat16);
  tree["conjugate"] = at::complex(at::arange(3, at::kDouble), at::ones({3}, at::kDouble)).conj();

  const State back = state_from_bytes(state_to_bytes(tree));
  EXPECT_TRUE(back.at("nothing").is_null());
  EXPECT_EQ(back.at("whole").as_int(), int64_t{1} << 62);
  EXPECT_TRUE(back.at("real").is_double());
  EXPECT_TRUE(std::isnan(back.at("nan").as_double()));
  EXPECT_EQ(back.at("infinite").as_double(), -std::numeric_limits<double>::infinity());
  EXPECT_EQ(back.at("text").as_string(), std::string("a\0b\n", 4));
  EXPECT_TRUE(back.at("list").as_list().at(0).as_bool());
  for (const char* name : {"transposed", "empty", "scalar", "half", "conjugate"}) {
    const at::Tensor& saved = tree.at(name).as_tensor();
    const at::Tensor& loaded = back.at(name).as_tensor();
    EXPECT_EQ(loaded.scalar_type(), saved.scalar_type()) << name;
    EXPECT_EQ(loaded.sizes(), saved.sizes()) << name;
    EXPECT_TRUE(loaded.equal(saved)) << name;
  }
}

TEST(StateBytes, BytesThatAreCutShortAreRefused) {
  State tree = State::map();
  tree["x"] = at::ones({5});
  const std::string bytes = state_to_bytes(tree);
  for (const size_t length : {size_t{3}, bytes.size() / 2, bytes.size() - 1})
    EXPECT_THROW(state_from_bytes(bytes.substr(0, length)), Error) << length;
}

TEST(StateBytes, NumbersThatCannotBeAreRefusedBeforeMemoryIsTaken) {
  State tree = State::map();
  tree["x"] = at::ones({5});
  const std::string bytes = state_to_bytes(tree);
  // At the end: the element type, the number of dimensions, the one size, five floats.
  for (const size_t from_end : {20 + 8, 20 + 16, 20 + 24})
    for (const int64_t number : {int64_t{-1}, int64_t{1} << 40, std::numeric_limits<int64_t>::max()}) {
      std::string broken = bytes;
      std::memcpy(broken.data() + broken.size() - from_end, &number, sizeof number);
      EXPECT_THROW(state_from_bytes(broken), Error) << from_end << " " << number;
    }
}

// Quantized tensors have fewer bytes than they say or mean nothing without their scale, sparse ones have no memory.
TEST(StateBytes, TensorsWhoseElementsAreNotTheirValueAreRefused) {
  State tree = State::map();
  tree["x"] = at::ones({5}, at::kByte);
  const std::string bytes = state_to_bytes(tree);
  for (const at::ScalarType type : {at::kQInt8, at::kQUInt8, at::kQInt32, at::kQUInt4x2, at::kQUInt2x4}) {
    std::string broken = bytes;
    const auto number = static_cast<int64_t>(type);
    std::memcpy(broken.data() + broken.size() - (5 + 24), &number, sizeof number);
    EXPECT_THROW(state_from_bytes(broken), Error) << c10::toString(type);
  }
  tree["x"] = at::quantize_per_tensor(at::ones({5}), 0.1, 0, at::kQInt8);
  EXPECT_THROW(state_to_bytes(tree), Error);
  tree["x"] = at::eye(2).to_sparse();
  EXPECT_THROW(state_to_bytes(tree), Error);
}

}  // namespace
}  // namespace levin
