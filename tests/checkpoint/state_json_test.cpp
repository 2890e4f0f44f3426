#include <levin/core/checkpoint/state_json.h>

#include <levin/core/base/error.h>
#include <levin/core/checkpoint/checkpoint_info.h>
#include <levin/core/checkpoint/state_path.h>

#include <ATen/ops/zeros.h>
#include "checkpoint_fixture.h"

#include <cmath>
#include <limits>

namespace levin {
namespace {

using testing::message_of;

/// Encodes a tree, and decodes it from the text and the tensors.
State round_trip(const State& tree, const std::vector<std::string>& sections = {}) {
  TensorsByFile tensors;
  const std::string text = encode_state(tree, tensors);
  return decode_state(
      text, "state.json",
      [&](const TensorReference& reference) -> State {
        for (const auto& [name, leaf] : tensors.at(reference.file))
          if (name == reference.name) return leaf.value.contiguous();
        throw std::runtime_error("no tensor " + reference.name);
      },
      sections);
}

State decoded(const std::string& text) {
  return decode_state(text, "state.json", [](const TensorReference&) { return at::arange(6).view({2, 3}); });
}

TEST(StateJson, PlainValuesKeepTypeAndValue) {
  State tree = State::map();
  State& values = tree["values"];
  values["null"] = State();
  values["true"] = true;
  values["int"] = int64_t{2};
  values["largest"] = std::numeric_limits<int64_t>::max();
  values["smallest"] = std::numeric_limits<int64_t>::min();
  values["double"] = 2.0;
  values["third"] = 1.0 / 3.0;
  values["negative zero"] = -0.0;
  values["tiny"] = std::numeric_limits<double>::denorm_min();
  values["huge"] = std::numeric_limits<double>::max();
  values["1e20"] = 1e20;
  values["text"] = "2";
  values["empty text"] = "";
  values["unicode"] = "\xc3\xa4\n\t\"\\\x01";
  values["bytes"] = std::string("\xff\x00\xfe", 3);
  values["empty list"] = State::list();
  values["empty map"] = State::map();
  values["nested"] = State::List{State(1), State(1.0), State(State::List{State("x")}), State::map()};
  const State back = round_trip(tree);
  testing::expect_same(tree, back);
  EXPECT_TRUE(back.at("values").at("double").is_double());
  EXPECT_TRUE(std::signbit(back.at("values").at("negative zero").as_double()));
  EXPECT_EQ(back.at("values").at("third").as_double(), 1.0 / 3.0);
  EXPECT_EQ(back.at("values").at("tiny").as_double(), std::numeric_limits<double>::denorm_min());
}

TEST(StateJson, NotANumberAndInfinities) {
  State tree = State::map();
  tree["nan"] = std::nan("");
  tree["inf"] = std::numeric_limits<double>::infinity();
  tree["-inf"] = -std::numeric_limits<double>::infinity();
  const State back = round_trip(tree);
  EXPECT_TRUE(std::isnan(back.at("nan").as_double()));
  EXPECT_EQ(back.at("inf").as_double(), std::numeric_limits<double>::infinity());
  EXPECT_EQ(back.at("-inf").as_double(), -std::numeric_limits<double>::infinity());
}

TEST(StateJson, OddKeysSurvive) {
  State tree = State::map();
  for (const char* key : {"", ".", "a.b", "a/b", "a~b", "~1", "$tensor", "$$double", "$", "\xe2\x82\xac", "\"", "0"}) {
    tree["callbacks"][key] = State(int64_t{1});
    tree["optimizers"][key]["value"] = at::arange(3);
    tree["metrics"][key] = at::arange(2);
    tree["model"][key] = at::arange(4);
    tree[std::string("top") + key] = at::arange(5);
  }
  tree["special"]["$tensor"] = "not a tensor";
  tree["metrics"]["a"] = State::Map{{"b", at::arange(7)}};
  testing::expect_same(tree, round_trip(tree));
}

TEST(StateJson, TensorsGoToTheFileOfTheirSection) {
  State tree = State::map();
  tree["model"]["a.b/c"] = at::arange(1);
  tree["model"]["extra"]["x"] = at::arange(2);
  tree["optimizers"].push_back(State::Map{{"exp/avg", at::arange(3)}});
  tree["optimizers_note"] = at::arange(4);
  tree["rng"]["cpu"] = at::arange(5);
  TensorsByFile tensors;
  encode_state(tree, tensors);
  std::map<std::string, std::vector<std::string>> names;
  for (const auto& [file, items] : tensors)
    for (const auto& [name, leaf] : items) names[file].push_back(name);
  EXPECT_EQ(names, (std::map<std::string, std::vector<std::string>>{
                       {kModelFile, {"a.b/c"}},
                       {kOptimizerFile, {"optimizers/0/exp~1avg"}},
                       {kTensorsFile, {"model/extra/x", "optimizers_note", "rng/cpu"}}}));
}

TEST(StateJson, TensorsAreSharedNotCopied) {
  State tree = State::map();
  tree["model"]["weight"] = at::rand({3});
  TensorsByFile tensors;
  encode_state(tree, tensors);
  EXPECT_TRUE(tensors.at(kModelFile).at(0).second.value.is_same(tree["model"]["weight"].as_tensor()));
}

TEST(StateJson, MemoryFormatIsRestored) {
  const at::Tensor image = at::rand({2, 3, 4, 5});
  State tree = State::map();
  tree["model"]["channels_last"] = image.contiguous(at::MemoryFormat::ChannelsLast);
  tree["model"]["transposed"] = image.transpose(1, 3);
  tree["model"]["row_major"] = image;
  tree["model"]["part"] = image.slice(3, 0, 2);
  tree["model"]["undefined"] = at::Tensor();
  const State back = round_trip(tree);
  testing::expect_same(tree, back);
  const State& model = back.at("model");
  EXPECT_EQ(model.at("channels_last").as_tensor().strides(), tree["model"]["channels_last"].as_tensor().strides());
  EXPECT_EQ(model.at("transposed").as_tensor().strides(), tree["model"]["transposed"].as_tensor().strides());
  EXPECT_TRUE(model.at("row_major").as_tensor().is_contiguous());
  EXPECT_TRUE(model.at("part").as_tensor().is_contiguous());
}

TEST(StateJson, PlacementIsKept) {
  State tree = State::map();
  tree["metrics"]["shard"] =
      TensorLeaf{at::arange(3), {Placement::Kind::kSharded, "net/weight", int64_t{1} << 40, {int64_t{1} << 40, 3}}};
  tree["metrics"]["local"] = TensorLeaf{at::arange(3), {.kind = Placement::Kind::kRankLocal}};
  const State back = round_trip(tree);
  const Placement& shard = back.at("metrics").at("shard").as_leaf().placement;
  EXPECT_EQ(shard.kind, Placement::Kind::kSharded);
  EXPECT_EQ(shard.shard_name, "net/weight");
  EXPECT_EQ(shard.offset, int64_t{1} << 40);
  EXPECT_EQ(shard.global_shape, (std::vector<int64_t>{int64_t{1} << 40, 3}));
  EXPECT_EQ(back.at("metrics").at("local").as_leaf().placement.kind, Placement::Kind::kRankLocal);
}

TEST(StateJson, PiecesAreKept) {
  State tree = State::map();
  tree["model"]["net/0"] = TensorLeaf{at::arange(2), {Placement::Kind::kSharded, "net/0", 0, {2, 2}}};
  TensorsByFile tensors;
  const std::string text = encode_state(tree, tensors, [](const TensorLeaf&, const TensorReference& usual) {
    EXPECT_EQ(usual.file, kModelFile);
    EXPECT_EQ(usual.name, "net/0");
    TensorReference reference{.dtype = at::kLong, .shape = {2, 2}};
    reference.pieces = {{"a", "x", 0, 3}, {"b", "y", 3, 1}};
    return reference;
  });
  EXPECT_TRUE(tensors.empty()) << "they are in the ranks' files already";
  TensorReference back;
  decode_state(text, "state.json", [&](const TensorReference& reference) -> State {
    back = reference;
    return at::zeros(reference.shape, *reference.dtype);
  });
  EXPECT_TRUE(back.in_pieces());
  EXPECT_EQ(back.dtype, at::kLong);
  EXPECT_EQ(back.shape, (std::vector<int64_t>{2, 2}));
  ASSERT_EQ(back.pieces.size(), 2U);
  EXPECT_EQ(back.pieces[1].file, "b");
  EXPECT_EQ(back.pieces[1].name, "y");
  EXPECT_EQ(back.pieces[1].offset, 3);
  EXPECT_EQ(back.pieces[1].count, 1);
}

TEST(StateJson, OnlyTheSectionsAskedFor) {
  const State tree = testing::sample_tree(1);
  const State back = round_trip(tree, {"model", "versions", "none"});
  EXPECT_EQ(back.as_map().size(), 2U);
  testing::expect_same(tree.at("model"), back.at("model"));
}

TEST(StateJson, RefusesWhatItCannotSave) {
  TensorsByFile tensors;
  EXPECT_EQ(message_of([&] { encode_state(State(3), tensors); }),
            "[checkpoint] expected a mapping to save; got an integer");
  State tree = State::map();
  tree["callbacks"]["\xff"] = State(1);
  EXPECT_NE(message_of([&] { encode_state(tree, tensors); }).find("not UTF-8 text; got one below 'callbacks'"),
            std::string::npos);
}

TEST(StateJson, RefusesWhatItNeverWrites) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"{", "is not what a checkpoint holds"},
      {"[]", "is no JSON object; got array"},
      {R"({"a": {"b": 9223372036854775808}})", "at 'a/b'; got an integer beyond 64 bits"},
      {R"({"a": {"$double": "many"}})", "at 'a'; got the number 'many'"},
      {R"({"a": {"$double": 3}})", "is not what a checkpoint holds"},
      {R"({"a": {"$bytes": "f"}})", "half a byte"},
      {R"({"a": {"$bytes": "fg"}})", "not hexadecimal"},
      {R"({"a": {"$other": "f"}})", "the key '$other'"},
      {R"({"a": {"$double": "nan", "b": 1}})", "the key '$double'"},
      {R"({"a": {"$tensor": {"file": "x"}}})", "is not what a checkpoint holds"},
      {R"({"a": {"$tensor": {"file": "x", "name": "y", "dimension_order": [0, 0]}}})", "the dimension order [0,0]"},
      {R"({"a": {"$tensor": {"file": "x", "name": "y", "dimension_order": [0]}}})", "the dimension order [0]"},
      {R"({"a": {"$tensor": {"file": "x", "name": "y", "dimension_order": [1e300]}}})", "expected a whole number"},
      {R"({"a": {"$tensor": {"file": "x", "name": "y", "placement": {"kind": "lost"}}}})", "the placement 'lost'"},
      {R"({"a": {"$tensor": {"dtype": "F32", "shape": [0], "pieces": [], "dimension_order": [100000]}}})",
       "the dimension order [100000]"},
      {R"({"a": {"$tensor": {"dtype": "F31", "shape": [], "pieces": []}}})", "at 'a'; got the element type 'F31'"},
      {R"({"a": {"$tensor": {"dtype": "F32", "pieces": []}}})", "is not what a checkpoint holds"},
      {R"({"a": {"$tensor": {"dtype": "F32", "shape": [1], "pieces": [{"file": "x"}]}}})", "is not what a checkpoint"},
      {R"({"a": {"$tensor": {"dtype": "F32", "shape": [0.5], "pieces": []}}})", "expected a whole number of 64 bits"},
      {R"({"a": {"$tensor": {"dtype": "F32", "shape": 3, "pieces": []}}})", "expected whole numbers"},
  };
  for (const auto& [text, message] : cases) {
    const std::string got = message_of([&] { decoded(text); });
    EXPECT_NE(got.find(message), std::string::npos) << text << "\n" << got;
    EXPECT_TRUE(got.starts_with("[checkpoint] state.json ")) << got;
  }
}

/// A value below so many mappings (or lists).
State nested(size_t levels, bool lists = false) {
  State node = 1;
  for (size_t i = 0; i < levels; ++i) {
    State around = lists ? State::list() : State::map();
    if (lists)
      around.push_back(std::move(node));
    else
      around["a"] = std::move(node);
    node = std::move(around);
  }
  return node;
}

TEST(StateJson, DepthIsBoundedInBothDirections) {
  testing::expect_same(nested(kMaxStateDepth), round_trip(nested(kMaxStateDepth)));
  TensorsByFile tensors;
  EXPECT_NE(message_of([&] {
              encode_state(nested(kMaxStateDepth + 1), tensors);
            }).find("[checkpoint] the state to save has too many lists and mappings inside each other, below 'a/a/"),
            std::string::npos);
  State list = State::map();
  list["a"] = nested(kMaxStateDepth, /*lists=*/true);
  EXPECT_NE(message_of([&] { encode_state(list, tensors); }).find("valid: at most 500 levels"), std::string::npos);
  for (const bool lists : {false, true}) {
    std::string text = "{\"a\": ";
    for (int i = 0; i < 20'000; ++i) text += lists ? "[" : "{\"a\": ";
    text += "1";
    for (int i = 0; i < 20'000; ++i) text += lists ? "]" : "}";
    const std::string message = message_of([&] { decoded(text + "}"); });
    EXPECT_NE(message.find("[checkpoint] state.json has too many lists and mappings inside each other"),
              std::string::npos);
    EXPECT_LT(message.size(), 300U) << message;
  }
}

}  // namespace
}  // namespace levin
