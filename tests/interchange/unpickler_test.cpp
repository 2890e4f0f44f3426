// Pickles that a few bytes make large: nested, shared, copied and with shapes beyond all memory.

#include <levin/core/interchange/unpickler.h>

#include <levin/core/base/error.h>
#include <levin/core/interchange/lightning.h>
#include <levin/core/interchange/weights.h>

#include "../support/memory_growth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace levin {
namespace {

using ::testing::HasSubstr;

/// Puts a pickle together, opcode by opcode.
class Pickle {
 public:
  Pickle& add(const std::string& opcodes) {
    bytes_ += opcodes;
    return *this;
  }
  Pickle& text(const std::string& value) {
    bytes_ += 'X';
    number(static_cast<uint32_t>(value.size()));
    return add(value);
  }
  Pickle& integer(int64_t value) {
    bytes_ += "\x8a\x08";
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  Pickle& name(const std::string& module, const std::string& of) { return add("c" + module + "\n" + of + "\n"); }
  /// Remembers the value on top.
  Pickle& put(uint32_t place) {
    bytes_ += 'r';
    return number(place);
  }
  Pickle& get(uint32_t place) {
    bytes_ += 'j';
    return number(place);
  }
  std::string str() const { return "\x80\x02" + bytes_ + "."; }

 private:
  Pickle& number(uint32_t value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }

  std::string bytes_;
};

/// Storages have 64 bytes.
const PickleValue* unpickle(PickleDocument& document, const std::string& bytes) {
  return Unpickler(document, bytes,
                   [&](const PickleValue&) {
                     PickleValue* const storage = document.text("torch.FloatStorage", PickleValue::Kind::kStorage);
                     storage->integer = 64;
                     storage->tensor = at::zeros({64}, at::kByte);
                     return storage;
                   })
      .read();
}

std::string pickle_error(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string unpickle_error(const std::string& bytes) {
  return pickle_error([&] {
    PickleDocument document;
    unpickle(document, bytes);
  });
}

/// What is said of a value by those who look for its tensors, and who make a tree of all of it.
std::string tensors_error(const std::string& bytes) {
  PickleDocument document;
  const PickleValue* const root = unpickle(document, bytes);
  return pickle_error([&] { for_each_tensor(*root, [](const std::string&, const at::Tensor&) {}); });
}

std::string state_error(const std::string& bytes) {
  PickleDocument document;
  const PickleValue* const root = unpickle(document, bytes);
  return pickle_error([&] { state_from_pickle(*root); });
}

/// A call of torch._tensor._rebuild_from_type_v2 whose function is it again, and so on; the last one makes a dict.
std::string rebuilt(int levels) {
  Pickle pickle;
  pickle.name("torch._tensor", "_rebuild_from_type_v2").put(0);
  for (int i = 1; i < levels; ++i) pickle.add("(").get(0).add("N");
  pickle.add("(").name("collections", "OrderedDict").add("N)");
  for (int i = 0; i < levels; ++i) pickle.add("Nt");
  return pickle.add("R").str();
}

TEST(Unpickler, WhatRebuildsMayCallWhatRebuildsButNotWithoutEnd) {
  for (const int levels : {1, 2, 10}) {
    PickleDocument document;
    EXPECT_TRUE(unpickle(document, rebuilt(levels))->is(PickleValue::Kind::kDict)) << levels;
  }
  EXPECT_THAT(unpickle_error(rebuilt(100'000)), HasSubstr("too deep inside each other; got more than 400 levels"));
}

/// Dictionaries, each of which has the one before twice: 2^levels where each is visited.
std::string doubled(uint32_t levels, bool as_modules) {
  Pickle pickle;
  pickle.add("}").put(0).add("0");
  for (uint32_t i = 1; i <= levels; ++i) {
    if (as_modules) pickle.name("torch.nn", "Module").add(")\x81}(").text("_parameters").add("}").text("_modules");
    pickle.add("}(").text("a").get(i - 1).text("b").get(i - 1).add("u");
    if (as_modules) pickle.add("ub");
    pickle.put(i).add(i < levels ? "0" : "");
  }
  return pickle.str();
}

TEST(Unpickler, DictionariesThatAreSharedAgainAndAgainAreNotVisitedWithoutEnd) {
  EXPECT_LT(doubled(60, false).size(), 2000U);
  const std::string dicts = doubled(60, false);
  for (const std::string& error : {tensors_error(dicts), state_error(dicts), tensors_error(doubled(60, true))})
    EXPECT_THAT(error, HasSubstr("stand for too many; got more than 2000000"));
  for (const std::string& bytes : {doubled(10, false), doubled(10, true)}) {
    EXPECT_EQ(tensors_error(bytes), "") << "what is shared a little is read";
    EXPECT_EQ(state_error(bytes), "");
  }
  EXPECT_LT(testing::memory_growth([&] { state_error(dicts); }), 1000) << "MiB";
}

TEST(Unpickler, DictionariesThatContainEachOtherAreRefused) {
  // a = {"b": b, "c": b}, b = {"a": a, "c": a}
  const std::string pickle = Pickle()
                                 .add("}")
                                 .put(0)
                                 .add("}")
                                 .put(1)
                                 .add("(")
                                 .text("a")
                                 .get(0)
                                 .text("c")
                                 .get(0)
                                 .add("u0(")
                                 .text("b")
                                 .get(1)
                                 .text("c")
                                 .get(1)
                                 .add("u")
                                 .str();
  for (const std::string& error : {tensors_error(pickle), state_error(pickle)})
    EXPECT_THAT(error, HasSubstr("too deep inside each other"));
}

TEST(Unpickler, LongTextsThatAreSharedAreNotCopiedWithoutEnd) {
  Pickle pickle;
  pickle.text(std::string(100'000, 'x')).put(0).add("0](");
  for (int i = 0; i < 100'000; ++i) pickle.get(0);
  EXPECT_THAT(state_error(pickle.add("e").str()), HasSubstr("copied again and again"));
}

TEST(Unpickler, EntriesThatAreLookedThroughCountToo) {
  // A dict of 20,000 numbers below 20,000 keys: none of them is a tensor.
  Pickle pickle;
  pickle.add("}(");
  for (int i = 0; i < 20'000; ++i) pickle.text(std::to_string(i)).add("N");
  pickle.add("u").put(0).add("0}(");
  for (int i = 0; i < 20'000; ++i) pickle.text(std::to_string(i)).get(0);
  EXPECT_THAT(tensors_error(pickle.add("u").str()), HasSubstr("stand for too many"));
}

TEST(Unpickler, CopiesDoNotMultiply) {
  Pickle list;
  list.add("](");
  for (int i = 0; i < 20'000; ++i) list.add("N");
  list.add("e");
  Pickle dict;
  dict.add("}(");
  for (int i = 0; i < 20'000; ++i) dict.add("NN");
  dict.add("u");
  Pickle text;
  text.text(std::string(100'000, 'x'));
  const auto call = [](const std::string& module, const std::string& of) {
    return Pickle().name(module, of).get(0).add("\x85R0");
  };
  const std::vector<std::pair<Pickle, Pickle>> cases{
      {list, call("builtins", "list")},
      {list, call("builtins", "tuple")},
      {list, call("builtins", "set")},
      {list, call("torch", "Size")},
      {dict, call("collections", "OrderedDict")},
      {dict, call("builtins", "dict")},
      {text, call("_codecs", "encode")},
      {text, Pickle().get(0).text("y").add("\x93"
                                           "0")},                              // a class by its name
      {text, Pickle().get(0).text("y").add("\x93)R0")},                        // and an object of it
      {text, Pickle().add("(").text("storage").get(0).text("0").add("NtQ0")},  // a storage by its type
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto& [value, copy] = cases[i];
    Pickle pickle = value;
    pickle.put(0).add("0");
    const std::string one = copy.str();
    const std::string opcodes = one.substr(2, one.size() - 3);
    for (int times = 0; times < 10'000; ++times) pickle.add(opcodes);
    const std::string bytes = pickle.add("N").str();
    EXPECT_THAT(unpickle_error(bytes), HasSubstr("copied again and again")) << i;
    EXPECT_LT(testing::memory_growth([&] { unpickle_error(bytes); }), 200) << i;
    EXPECT_EQ(unpickle_error(Pickle(value).put(0).add("0").add(opcodes).add("N").str()), "") << i;
  }
}

/// torch._utils._rebuild_tensor_v2 of a shape.
std::string tensor_of_shape(const std::vector<int64_t>& shape) {
  Pickle pickle;
  pickle.name("torch._utils", "_rebuild_tensor_v2").add("(NQ").integer(0).add("(");
  for (const int64_t size : shape) pickle.integer(size);
  pickle.add("t(");
  for (size_t i = 0; i < shape.size(); ++i) pickle.integer(0);
  return pickle.add("t\x89}tR").str();
}

/// An array that NumPy pickled, of a shape and without elements.
std::string array_of_shape(const std::vector<int64_t>& shape) {
  Pickle pickle;
  pickle.name("numpy._core.multiarray", "_reconstruct").add("NN\x86R(").integer(1).add("(");
  for (const int64_t size : shape) pickle.integer(size);
  pickle.add("t").name("numpy", "dtype").text("f4").add("\x89\x88\x87R\x89").add(std::string("C\0", 2));
  return pickle.add("tb").str();
}

TEST(Unpickler, ShapesBeyondAllMemoryAreRefused) {
  constexpr int64_t kHuge = int64_t{1} << 62;
  for (const auto& make : {tensor_of_shape, array_of_shape}) {
    EXPECT_EQ(unpickle_error(make({0, 3})), "");
    for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{
             {0, kHuge, kHuge}, {kHuge, kHuge, 0}, {0, -1}, {kHuge}, {kHuge, 8}, {2, kHuge}}) {
      const std::string error = unpickle_error(make(shape));
      EXPECT_THAT(error, HasSubstr("a pickle is damaged, or is none: a")) << shape.front();
      EXPECT_EQ(error.find("Exception raised"), std::string::npos) << error;
    }
  }
}

}  // namespace
}  // namespace levin
