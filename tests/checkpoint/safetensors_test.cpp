#include <levin/core/checkpoint/safetensors.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/real.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include "checkpoint_fixture.h"
#include "tests/support/run_program.h"
#include "tests/support/tree.h"

#include <sys/wait.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace levin {
namespace {

using testing::message_of;

class SafetensorsTest : public testing::CheckpointTest {
 protected:
  void write(const std::vector<NamedTensor>& tensors, const std::map<std::string, std::string>& metadata = {}) const {
    const auto file = FileSystem::current().create(file_);
    write_safetensors(*file, tensors, metadata);
    file->close();
  }
  /// A file with this header and so many bytes of data.
  void write_raw(const std::string& header, size_t data_bytes) const {
    const uint64_t length = header.size();
    std::string bytes(reinterpret_cast<const char*>(&length), sizeof(length));
    testing::write_bytes(file_, bytes + header + std::string(data_bytes, 'x'));
  }
  std::string refusal() const {
    return message_of([&] { SafetensorsFile file(file_); });
  }

  const std::string file_ = path("tensors.safetensors");
};

constexpr std::array kTypes{at::kDouble, at::kFloat,        at::kHalf,          at::kBFloat16,
                            at::kLong,   at::kInt,          at::kShort,         at::kChar,
                            at::kByte,   at::kBool,         at::kUInt16,        at::kUInt32,
                            at::kUInt64, at::kComplexFloat, at::kFloat8_e4m3fn, at::kFloat8_e5m2};

std::vector<NamedTensor> tensor_of_every_type() {
  std::vector<NamedTensor> tensors;
  for (const auto type : kTypes)
    tensors.emplace_back("type " + std::string(c10::toString(type)), at::arange(6, at::kFloat).view({2, 3}).to(type));
  return tensors;
}

TEST_F(SafetensorsTest, RoundTripOfEveryType) {
  const auto tensors = tensor_of_every_type();
  write(tensors, {{"format", "pt"}});
  const SafetensorsFile file(file_);
  EXPECT_EQ(file.names().size(), tensors.size());
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
  for (const auto& [name, tensor] : tensors) {
    testing::expect_same_tensor(file.read(name), tensor, name);
    EXPECT_EQ(file.shape(name), (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(file.dtype(name), tensor.scalar_type());
    EXPECT_EQ(file.bytes(name), tensor.nbytes());
  }
}

TEST_F(SafetensorsTest, EmptyTensorsScalarsAndOddNames) {
  const std::vector<NamedTensor> tensors{{"", at::scalar_tensor(3.5, at::kDouble)},
                                         {"none", at::empty({0})},
                                         {"none of three", at::empty({3, 0, 2}, at::kLong)},
                                         {"a.b/c~d \"quoted\" \\ \n", at::arange(3)},
                                         {"Gewicht \xc3\xa4\xe2\x82\xac \xf0\x9f\x99\x82", at::arange(2, at::kShort)}};
  write(tensors);
  const SafetensorsFile file(file_);
  EXPECT_EQ(file.names().size(), tensors.size());
  for (const auto& [name, tensor] : tensors) testing::expect_same_tensor(file.read(name), tensor, name);
}

TEST_F(SafetensorsTest, FileWithoutTensors) {
  write({});
  EXPECT_TRUE(SafetensorsFile(file_).names().empty());
}

TEST_F(SafetensorsTest, OtherStridesAreWrittenInRowMajorOrder) {
  const at::Tensor image = at::arange(2 * 3 * 4 * 5, at::kFloat).view({2, 3, 4, 5});
  write({{"channels last", image.contiguous(at::MemoryFormat::ChannelsLast)},
         {"transposed", image.transpose(0, 3)},
         {"part", image.slice(3, 1, 4, 2)},
         {"repeated", at::arange(3).unsqueeze(1).expand({3, 4})}});
  const SafetensorsFile file(file_);
  testing::expect_same_tensor(file.read("channels last"), image, "channels last");
  testing::expect_same_tensor(file.read("transposed"), image.transpose(0, 3), "transposed");
  testing::expect_same_tensor(file.read("part"), image.slice(3, 1, 4, 2), "part");
  testing::expect_same_tensor(file.read("repeated"), at::arange(3).unsqueeze(1).expand({3, 4}), "repeated");
  EXPECT_TRUE(file.read("channels last").is_contiguous());
}

TEST_F(SafetensorsTest, DataAreAligned) {
  write({{"flag", at::zeros({3}, at::kBool)}, {"wide", at::zeros({5}, at::kDouble)}, {"x", at::zeros({1}, at::kHalf)}});
  const std::string bytes = testing::read_bytes(file_);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  EXPECT_EQ(length % 8, 0U);
  EXPECT_EQ(bytes[8], '{');
  EXPECT_EQ(SafetensorsFile(file_).names(), (std::vector<std::string>{"wide", "x", "flag"}));
}

TEST_F(SafetensorsTest, ParametersAreWrittenWithoutTheirHistory) {
  at::Tensor weight = at::rand({3}).requires_grad_();
  write({{"weight", weight}, {"product", weight * 2}});
  EXPECT_FALSE(SafetensorsFile(file_).read("product").requires_grad());
}

TEST_F(SafetensorsTest, RefusesToWriteWhatTheFormatCannotHold) {
  EXPECT_EQ(message_of([&] {
              write({{"a", at::zeros({1})}, {"a", at::zeros({1})}});
            }),
            "[checkpoint] cannot save two tensors of the name 'a' in one file");
  EXPECT_NE(message_of([&] {
              write({{"z", at::zeros({1}, at::kComplexDouble)}});
            }).find("cannot save tensor 'z'; got element type ComplexDouble; valid: F64, F32"),
            std::string::npos);
  EXPECT_NE(message_of([&] { write({{"s", at::zeros({2, 2}).to_sparse()}}); }).find("got a sparse"), std::string::npos);
  EXPECT_NE(message_of([&] { write({{"u", at::Tensor()}}); }).find("got an undefined tensor"), std::string::npos);
  EXPECT_NE(message_of([&] { write({{"__metadata__", at::zeros({1})}}); }).find("reserves"), std::string::npos);
  EXPECT_NE(message_of([&] { write({{"\xff", at::zeros({1})}}); }).find("not UTF-8"), std::string::npos);
}

TEST_F(SafetensorsTest, UnknownNameSuggestsTheNearest) {
  write({{"net.weight", at::zeros({1})}});
  EXPECT_EQ(message_of([&] { SafetensorsFile(file_).read("net.wieght"); }),
            "[checkpoint] " + file_ + " holds no tensor 'net.wieght'; did you mean 'net.weight'?");
}

TEST_F(SafetensorsTest, RefusesEveryTruncation) {
  write({{"a", at::arange(3)}, {"b", at::zeros({2, 2})}});
  const std::string whole = testing::read_bytes(file_);
  for (size_t size = 0; size < whole.size(); ++size) {
    testing::write_bytes(file_, whole.substr(0, size));
    EXPECT_NE(refusal().find("[checkpoint] " + file_ + " is not a whole safetensors file; got "), std::string::npos)
        << size << ": " << refusal();
  }
  testing::write_bytes(file_, whole + "x");
  EXPECT_NE(refusal().find("41 bytes of data where the header says 40"), std::string::npos) << refusal();
}

TEST_F(SafetensorsTest, RefusesBrokenHeaders) {
  const auto entry = [](const char* name, const char* type, const char* shape, const char* offsets) {
    return std::string("\"") + name + "\":{\"dtype\":\"" + type + "\",\"shape\":" + shape +
           ",\"data_offsets\":" + offsets + "}";
  };
  struct Case {
    std::string header;
    size_t data_bytes;
    std::string message;
  };
  const std::vector<Case> cases{
      {"not json", 0, "cannot be understood"},
      {"[]", 0, "no JSON object"},
      {"{\"a\":3}", 0, "cannot be understood"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "cannot be understood"},
      {"{\"__metadata__\":{\"a\":1}}", 0, "cannot be understood"},
      {"{" + entry("a", "F33", "[1]", "[0,4]") + "}", 4, "unknown element type; got F33; valid: F64"},
      {"{" + entry("a", "F32", "[-1]", "[0,4]") + "}", 4, "cannot be understood"},
      {"{" + entry("a", "F32", "[1.5]", "[0,4]") + "}", 4, "cannot be understood"},
      {"{" + entry("a", "F32", "[1]", "[4,0]") + "}", 4, "tensor 'a' of shape [1] and type F32 at bytes 4 to 0"},
      {"{" + entry("a", "F32", "[1]", "[0,4,8]") + "}", 4, "without two offsets"},
      {"{" + entry("a", "F32", "[2]", "[0,4]") + "}", 4, "tensor 'a' of shape [2]"},
      {"{" + entry("a", "F32", "[4294967296,4294967296]", "[0,0]") + "}", 0, "tensor 'a' of shape"},
      {"{" + entry("a", "F32", "[18446744073709551615]", "[0,4]") + "}", 4, "beyond all memory"},
      {"{" + entry("a", "U8", "[4]", "[0,4]") + "," + entry("b", "U8", "[4]", "[2,6]") + "}", 6, "an overlap before"},
      {"{" + entry("a", "U8", "[4]", "[0,4]") + "," + entry("b", "U8", "[4]", "[6,10]") + "}", 10, "a gap before"},
  };
  for (const auto& broken : cases) {
    write_raw(broken.header, broken.data_bytes);
    EXPECT_NE(refusal().find(broken.message), std::string::npos) << broken.header << "\n" << refusal();
    EXPECT_NE(refusal().find(file_), std::string::npos);
  }
}

TEST_F(SafetensorsTest, RefusesAHeaderLongerThanTheFile) {
  testing::write_bytes(file_, std::string(8, '\xff') + "{}");
  EXPECT_NE(refusal().find("a header of 18446744073709551615 bytes in a file of 10 bytes"), std::string::npos);
}

TEST_F(SafetensorsTest, OpensInPython) {
  auto tensors = tensor_of_every_type();
  const at::Tensor image = at::arange(24, at::kFloat).view({1, 2, 3, 4});
  tensors.emplace_back("channels/last.\xc3\xa4", image.contiguous(at::MemoryFormat::ChannelsLast));
  tensors.emplace_back("scalar", at::scalar_tensor(7));
  tensors.emplace_back("none", at::empty({0, 2}));
  write(tensors, {{"format", "pt"}});

  const auto read = testing::run_program(
      {testing::torch_python(), testing::source_path("tests/checkpoint/read_safetensors.py"), file_});
  if (read.status == 77) GTEST_SKIP() << testing::torch_python() << " has no safetensors and torch; set LEVIN_PYTHON";
  ASSERT_EQ(read.status, 0) << read.err;

  // One line a tensor, in the order of names: name, type, shape, sum of i * element[i].
  std::map<std::string, std::string> expected;
  for (const auto& [name, tensor] : tensors) {
    std::ostringstream line;
    const at::Tensor values = tensor.is_complex() ? at::real(tensor) : tensor;
    const at::Tensor flat = values.to(at::kDouble).contiguous().view({-1});
    line << name << "|" << safetensors_type_name(tensor.scalar_type()) << "|";
    for (const int64_t size : tensor.sizes()) line << size << ",";
    line << "|" << (flat * at::arange(flat.numel(), at::kDouble)).sum().item<double>();
    expected[name] = line.str();
  }
  std::string lines;
  for (const auto& [name, line] : expected) lines += line + "\n";
  EXPECT_EQ(read.out, lines);
}

}  // namespace
}  // namespace levin
