#include <levin/core/base/error.h>
#include <levin/core/base/shape_bytes.h>
#include <levin/core/checkpoint/safetensors.h>
#include <levin/core/interchange/describe_weights.h>
#include <levin/core/interchange/torch_file.h>
#include <levin/core/interchange/weight_plan.h>
#include <levin/core/interchange/weights.h>
#include <levin/core/interchange/write_weights.h>
#include <levin/core/interfaces/load_weights.h>

#include "../support/captured_log.h"
#include "../support/faulty_file_system.h"
#include "../support/run_program.h"
#include "../support/torch_python.h"
#include "folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <string>

namespace levin {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

void write_text(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

template <class Function>
std::string error_of(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

/// Files that Python wrote, once for all tests.
class PythonFiles : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new testing::Folder;
    const auto made = python("make");
    ASSERT_EQ(made.status, 0) << made.err;
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }

  static testing::ProgramResult python(const std::string& command) {
    return testing::run_program({testing::torch_python(), "-W", "ignore",
                                 testing::source_path("tests/interchange/files_of_python.py"), command,
                                 folder_->path()});
  }
  static std::string path(const std::string& name) { return folder_->path(name); }

  static void expect_as_oracle(const std::string& name) {
    const Weights weights = open_weights(path(name));
    const SafetensorsFile oracle(path("oracle.safetensors"));
    EXPECT_EQ(weights.tensors.size(), oracle.names().size());
    for (const auto& expected : oracle.names()) {
      ASSERT_TRUE(weights.tensors.contains(expected)) << expected;
      at::Tensor got = weights.tensors.at(expected)->read_whole();
      if (got.is_complex()) got = torch::view_as_real(got).contiguous();
      const at::Tensor wanted = oracle.read(expected);
      ASSERT_EQ(got.scalar_type(), wanted.scalar_type()) << expected;
      ASSERT_EQ(got.sizes(), wanted.sizes()) << expected;
      if (got.nbytes() > 0)  // else there may be no memory to compare
        EXPECT_EQ(std::memcmp(got.const_data_ptr(), wanted.const_data_ptr(), got.nbytes()), 0) << expected;
    }
  }

 private:
  static testing::Folder* folder_;
};

testing::Folder* PythonFiles::folder_ = nullptr;

TEST_F(PythonFiles, EveryTypeStrideAndProtocolIsReadAsPythonHasIt) {
  for (const char* name : {"state.pth", "state_legacy.pth", "state_3.pth", "state_4.pth", "state_5.pth"}) {
    SCOPED_TRACE(name);
    expect_as_oracle(name);
  }
}

TEST_F(PythonFiles, TensorsThatShareAStorageShareItHere) {
  for (const char* name : {"state.pth", "state_legacy.pth"}) {
    const TorchFile file(path(name));
    const at::Tensor w = file.root().find("w")->tensor;
    const at::Tensor turned = file.root().find("w_t")->tensor;
    EXPECT_EQ(w.const_data_ptr(), turned.const_data_ptr());
    EXPECT_EQ(turned.strides(), (std::vector<int64_t>{1, 6}));
    EXPECT_TRUE(file.root().find("parameter")->is_parameter);
  }
}

TEST_F(PythonFiles, OtherValuesAreDataAndUnknownClassesInert) {
  for (const char* name : {"odd_2.pth", "odd_4.pth"}) {
    const TorchFile file(path(name));
    const auto& root = file.root();
    EXPECT_EQ(root.find("np")->number, 1.25);
    EXPECT_TRUE(at::equal(root.find("array")->tensor, torch::arange(6, torch::kFloat).view({2, 3})));
    EXPECT_TRUE(at::equal(root.find("fortran")->tensor, torch::arange(6).view({2, 3})));
    EXPECT_EQ(root.find("custom")->text, "__main__.Custom");
    EXPECT_EQ(root.find("custom")->state->find("x")->integer, 3);
    EXPECT_EQ(root.find("size")->items.size(), 2U);
    EXPECT_EQ(root.find("bytes")->text, "ab\xff");
    EXPECT_EQ(root.find("itself")->items[1], root.find("itself")) << "a list that holds itself";
    EXPECT_EQ(root.find("big")->kind, PickleValue::Kind::kBigInt);
  }
}

TEST_F(PythonFiles, APickleThatCallsTheSystemIsInert) {
  const Weights weights = open_weights(path("evil.pth"));
  EXPECT_EQ(weights.tensors.size(), 1U);
  EXPECT_THAT(weights.torch_file->root().find("evil")->text, HasSubstr("system"));
  EXPECT_FALSE(std::filesystem::exists(path("ran")));
}

TEST_F(PythonFiles, WeightsAreFoundInModulesAndInsideOfOtherThings) {
  EXPECT_TRUE(open_weights(path("module.pth")).tensors.contains("1.running_mean"));
  EXPECT_TRUE(diff_weights(path("module.pth"), path("module_legacy.pth")).equal());
  EXPECT_EQ(open_weights(path("one.pth")).tensors.size(), 2U);
  EXPECT_THAT(error_of([] { open_weights(path("two.pth")); }), HasSubstr("several places; got model, ema"));
  EXPECT_EQ(open_weights(path("two.pth"), "ema").tensors.size(), 1U);
  EXPECT_THAT(error_of([] { open_weights(path("two.pth"), "emma"); }), HasSubstr("did you mean 'ema'?"));
  EXPECT_THAT(error_of([] { open_weights(path("script.pt")); }), HasSubstr("TorchScript"));
}

TEST_F(PythonFiles, TensorsThatCannotBeReadAreNamed) {
  for (const char* name : {"unread_nested.pth", "unread_meta.pth"})
    EXPECT_THAT(error_of([&] { open_weights(path(name)); }),
                HasSubstr("the tensor 'other' cannot be read; got one made by"));
}

TEST_F(PythonFiles, TensorsWithoutNamesAreLeftOutAndSaid) {
  const std::pair<const char*, const char*> left[] = {
      {"list", ": a left out"},  {"tuple", ": a left out"},      {"numbers", ": layers.0, layers.1 left out"},
      {"array", ": a left out"}, {"protocol_5", ": a left out"}, {"extra", ": fc._extra_state left out"}};
  for (const auto& [name, said] : left) {
    SCOPED_TRACE(name);
    const testing::CapturedLog log;
    const SavedTensors tensors = open_weights(path(std::string("left_") + name + ".pth")).tensors;
    ASSERT_EQ(tensors.size(), 1U);
    EXPECT_TRUE(at::equal(tensors.at("b")->read_whole(), torch::ones({2, 3})));
    EXPECT_THAT(log.text(), HasSubstr(said));
  }
  const testing::CapturedLog log;
  const SavedTensors tensors = open_weights(path("left_nothing.pth")).tensors;
  EXPECT_EQ(tensors.size(), 2U);
  EXPECT_EQ(tensors.at("empty")->read_whole().sizes(), (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(log.text(), "");
}

TEST_F(PythonFiles, BuffersThatAModuleDoesNotSaveAreNone) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : open_weights(path("passing.pth")).tensors) names.push_back(name);
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("0.norm.weight", "0.norm.bias", "0.norm.running_mean",
                                                     "0.norm.running_var", "0.norm.num_batches_tracked", "0.scale",
                                                     "1.weight", "1.bias"));
}

TEST_F(PythonFiles, TensorsBesideAStateDictAreNoWeights) {
  for (const char* name : {"imagenet", "tutorial", "beside", "beside_first", "state_dict_and_more", "deeper", "twice",
                           "parameters", "flat", "arrays", "derived", "derived_ordered"}) {
    SCOPED_TRACE(name);
    const std::string file = path(std::string("found_") + name + ".pth");
    const SavedTensors tensors = open_weights(file).tensors;
    ASSERT_EQ(tensors.size(), 2U);
    EXPECT_TRUE(at::equal(tensors.at("fc.weight")->read_whole(), torch::ones({2, 3})));
    EXPECT_TRUE(at::equal(tensors.at("fc.bias")->read_whole(), torch::zeros(2)));
    convert_weights(file, path("converted.safetensors"), WeightsFormat::kSafetensors);
    EXPECT_TRUE(open_weights(path("converted.safetensors")).tensors.contains("fc.weight"));
  }
}

TEST_F(PythonFiles, WhatIsCalledAsWeightsAreAndIsNoDictIsSaid) {
  const testing::CapturedLog log;
  torch::nn::Linear module(3, 2);
  load_weights(*module, {.path = path("namespace.pth"), .strip_prefix = "fc."});
  EXPECT_TRUE(at::equal(module->bias, torch::ones(2))) << "of 'ema'";
  EXPECT_THAT(log.text(), HasSubstr("state_dict is of a class that is not read as a dict, and was passed over; 'ema'"));
  const testing::CapturedLog of_module;
  load_weights(*module, path("module_inside.pth"));
  EXPECT_EQ(of_module.text(), "") << "a whole module is read";
}

TEST_F(PythonFiles, WhereWeightsAreInSeveralPlacesAKeySaysWhich) {
  const auto expect = [](const std::string& name, const std::string& places, const std::string& key) {
    SCOPED_TRACE(name);
    const std::string file = path("several_" + name + ".pth");
    const auto expect_error = [&](const std::string& message) {
      EXPECT_THAT(message, HasSubstr("several places; got " + places + "; hint: say which with 'key'"));
    };
    expect_error(error_of([&] { open_weights(file); }));
    expect_error(error_of([&] { convert_weights(file, path("x.safetensors"), WeightsFormat::kSafetensors); }));
    expect_error(error_of([&] {
      torch::nn::Linear module(3, 2);
      load_weights(*module, file);
    }));
    convert_weights(file, path("chosen.pth"), WeightsFormat::kPyTorch, {.key = key});
    EXPECT_TRUE(diff_weights(path("chosen.pth"), file, "", key).equal());
    EXPECT_GE(open_weights(path("chosen.pth")).tensors.size(), 2U);
  };
  expect("ema", "model, ema", "ema");
  expect("modules", "model, model_ema", "model_ema");
  expect("inside", "state_dict.model, state_dict.ema", "state_dict.ema");
  expect("deeper", "model.state_dict, ema.state_dict", "ema.state_dict");
  expect("matrix", "., encoder", "encoder");
  EXPECT_EQ(open_weights(path("several_matrix.pth"), kWholeFile).tensors.size(), 3U);
  EXPECT_THAT(error_of([] { open_weights(path("found_imagenet.pth"), "best_acc1"); }), HasSubstr("'best_acc1' of"));
}

TEST_F(PythonFiles, WhereNothingFitsAKeyIsAHint) {
  torch::nn::Linear module(3, 2);
  const auto message = [&](const std::string& name, const std::string& key = "") {
    return error_of([&] { load_weights(*module, {.path = path(name), .key = key, .strict = false}); });
  };
  EXPECT_THAT(message("found_imagenet.pth"),
              HasSubstr("'key' says where in the file the weights are: 'state_dict' was taken, not best_acc1"));
  EXPECT_THAT(message("several_ema.pth", "ema"), HasSubstr("'ema' was taken, not model, loss"));
  EXPECT_THAT(message("found_flat.pth"), HasSubstr("the whole file was taken"));
}

// ---- Tensors with several names

/// As Tied of files_of_python.py.
struct Tied : torch::nn::Module {
  struct Block : torch::nn::Module {
    explicit Block(const at::Tensor& scale) {
      register_module("norm", torch::nn::BatchNorm1d(3));
      register_buffer("scale", scale);
    }
  };
  struct Head : torch::nn::Module {
    explicit Head(const at::Tensor& weight) {
      register_parameter("weight", weight);
      register_parameter("bias", torch::zeros(5));
    }
  };
  Tied() {
    const at::Tensor scale = torch::rand({5});
    auto embedding = register_module("embedding", torch::nn::Embedding(5, 3));
    auto block = register_module("first", std::make_shared<Block>(scale));
    register_module("again", block);
    register_buffer("scale", scale);
    register_module("head", std::make_shared<Head>(embedding->weight));
    const torch::NoGradGuard no_grad;
    embedding->weight.copy_(torch::arange(15).view({5, 3}));
  }
};

TEST_F(PythonFiles, TiedTensorsHaveEveryNameInPython) {
  const Tied module;
  for (const char* name : {"out_tied_1.pth", "out_tied_2.ckpt"}) save_weights(module, path(name));
  std::vector<NamedLeaf> leaves;
  for (const auto& item : module.named_parameters()) leaves.emplace_back(item.key(), TensorLeaf{item.value()});
  for (const auto& item : module.named_buffers()) leaves.emplace_back(item.key(), TensorLeaf{item.value()});
  write_weights(path("levin"), WeightsFormat::kLevin, leaves);
  convert_weights(path("levin"), path("out_tied_3.pth"), WeightsFormat::kPyTorch);
  convert_weights(path("levin"), path("out_tied_4.ckpt"), WeightsFormat::kLightning);
  convert_weights(path("out_tied_1.pth"), path("out_tied_5.pth"), WeightsFormat::kPyTorch);
  convert_weights(path("out_tied_4.ckpt"), path("out_tied_6.ckpt"), WeightsFormat::kLightning);
  convert_weights(path("levin"), path("levin_2"), WeightsFormat::kLevin);
  convert_weights(path("levin_2"), path("out_tied_7.pth"), WeightsFormat::kPyTorch);
  const auto checked = python("check_tied");
  EXPECT_EQ(checked.status, 0) << checked.err;
  EXPECT_EQ(checked.out,
            "out_tied_1.pth\nout_tied_2.ckpt\nout_tied_3.pth\nout_tied_4.ckpt\nout_tied_5.pth\nout_tied_6.ckpt\n"
            "out_tied_7.pth\n");

  // Each once where a format has no tensor under several names, as safetensors.torch.save_model writes them.
  save_weights(module, path("tied.safetensors"));
  convert_weights(path("levin"), path("tied_2.safetensors"), WeightsFormat::kSafetensors);
  for (const char* name : {"tied.safetensors", "tied_2.safetensors"})
    EXPECT_EQ(SafetensorsFile(path(name)).names().size(), 8U) << name;

  for (const char* name : {"out_tied_1.pth", "out_tied_2.ckpt", "levin", "levin_2", "tied.safetensors",
                           "tied_2.safetensors", "tied.pth", "tied.ckpt"}) {
    SCOPED_TRACE(name);
    Tied loaded;
    EXPECT_TRUE(load_weights(loaded, path(name)).fits());
    if (std::string(name).find("tied.pth") == std::string::npos && std::string(name) != "tied.ckpt")
      EXPECT_TRUE(at::equal(loaded.parameters()[0], module.parameters()[0]));
  }
  // A module without the second name: the first has all that the file has.
  struct Untied : torch::nn::Module {
    Untied() {
      register_module("embedding", torch::nn::Embedding(5, 3));
      auto block = register_module("first", std::make_shared<Tied::Block>(torch::rand({5})));
      register_module("head", torch::nn::Linear(3, 5));
    }
  };
  for (const char* name : {"out_tied_1.pth", "levin"}) {
    Untied loaded;
    EXPECT_TRUE(load_weights(loaded, path(name)).fits()) << name;
  }
}

TEST_F(PythonFiles, WhatLevinWritesPythonReadsWeightsOnlyAndMapped) {
  convert_weights(path("state.pth"), path("written.pth"), WeightsFormat::kPyTorch);
  const auto checked = python("check");
  EXPECT_EQ(checked.status, 0) << checked.err;
  EXPECT_EQ(checked.out, "equal\n");
  EXPECT_TRUE(diff_weights(path("state.pth"), path("written.pth")).equal());
}

TEST_F(PythonFiles, FilesCutShortAreRefusedInOneSentence) {
  for (const char* name : {"state.pth", "state_legacy.pth"}) {
    const std::string whole = testing::read_text(path(name));
    for (const size_t size : {size_t{0}, size_t{1}, size_t{100}, whole.size() / 2, whole.size() - 1}) {
      write_text(path("cut.pth"), whole.substr(0, size));
      EXPECT_THAT(error_of([] { open_weights(path("cut.pth")); }), HasSubstr("cut.pth")) << name << " " << size;
    }
  }
}

// Longer, under the address sanitizer: LEVIN_FUZZ_ROUNDS=20000.
TEST_F(PythonFiles, BytesChangedAtRandomAreReadOrRefused) {
  const char* const given = std::getenv("LEVIN_FUZZ_ROUNDS");
  const int rounds = given != nullptr ? std::atoi(given) : 300;
  for (const char* name : {"state.pth", "state_legacy.pth", "odd_4.pth", "module.pth"}) {
    const std::string whole = testing::read_text(path(name));
    const size_t pickle = whole.find("\x80\x02");
    std::mt19937 random(7);
    int refused = 0;
    for (int round = 0; round < rounds; ++round) {
      std::string bytes = whole;
      for (uint32_t i = 0; i < 1 + random() % 4; ++i) {
        // Mostly in the pickle: elements are any bytes.
        const size_t span = random() % 4 == 0 ? bytes.size() : std::min<size_t>(bytes.size() - pickle, 3000);
        bytes[(span == bytes.size() ? 0 : pickle) + random() % span] = static_cast<char>(random());
      }
      if (random() % 8 == 0) bytes.resize(random() % bytes.size());
      write_text(path("changed.pth"), bytes);
      try {
        const Weights weights = open_weights(path("changed.pth"));
        for (const auto& [tensor, saved] : weights.tensors)
          if (bytes_of_shape(saved->shape(), 16).value_or(UINT64_MAX) < 1'000'000) saved->read_whole();
      } catch (const Error&) {
        ++refused;
      }
    }
    EXPECT_GT(refused, rounds / 4) << name;
  }
}

// ---- Rules

SavedTensors saved(const std::vector<NamedTensor>& tensors, const testing::Folder& folder) {
  std::vector<NamedLeaf> leaves;
  for (const auto& [name, tensor] : tensors) leaves.emplace_back(name, TensorLeaf{tensor});
  write_weights(folder.path("t.safetensors"), WeightsFormat::kSafetensors, leaves);
  return open_weights(folder.path("t.safetensors")).tensors;
}

TEST(WeightRules, PartsAreJoinedAndMatricesTurned) {
  const testing::Folder folder;
  const at::Tensor q = torch::rand({2, 3});
  const at::Tensor k = torch::rand({2, 3});
  const at::Tensor turned = torch::rand({4, 5});
  const auto tensors = saved({{"l.0.q.weight", q}, {"l.0.k.weight", k}, {"m.weight", turned}}, folder);
  const LoadWeightsOptions options{
      .rules = std::vector<WeightRule>{{.match = R"(l\.(\d+)\.{part}\.(\w+))", .to = "x.$1.qk_$2", .parts = {"q", "k"}},
                                       {.match = R"(m\.weight)", .to = "y", .transpose = true}}};
  const MappedWeights mapped = map_weights(tensors, options);
  EXPECT_TRUE(at::equal(mapped.tensors.at("x.0.qk_weight")->read_whole(), torch::cat({q, k})));
  EXPECT_TRUE(at::equal(mapped.tensors.at("y")->read_whole(), turned.t()));
  // A part of the joined tensor that reaches over both, as a sharded rank reads it.
  at::Tensor part = torch::empty({4});
  mapped.tensors.at("x.0.qk_weight")->read(4, part);
  EXPECT_TRUE(at::equal(part, torch::cat({q, k}).view({-1}).narrow(0, 4, 4)));
  // And back again.
  const MappedWeights back = map_weights(mapped.tensors, {.rules = options.rules.reversed()});
  EXPECT_EQ(back.tensors.size(), 3U);
  EXPECT_TRUE(at::equal(back.tensors.at("l.0.k.weight")->read_whole(), k));
  EXPECT_TRUE(at::equal(back.tensors.at("m.weight")->read_whole(), turned));
}

TEST(WeightRules, BuiltInSetsCanBeTurnedAround) {
  for (const auto& name : built_in_weight_rules()) EXPECT_FALSE(WeightRules(name.c_str()).reversed().empty()) << name;
}

TEST(WeightRules, ARuleThatMeetsNothingOrANameThatMeetsTwoIsRefused) {
  const testing::Folder folder;
  const auto tensors = saved({{"a", torch::ones(1)}, {"b", torch::ones(1)}}, folder);
  const auto error = [&](std::vector<WeightRule> rules) {
    return error_of([&] { map_weights(tensors, {.rules = std::move(rules)}); });
  };
  EXPECT_THAT(error({{.match = "c", .to = "d"}}), HasSubstr("the rule 'c' meets no name"));
  for (const auto& name : built_in_weight_rules())
    EXPECT_THAT(error(WeightRules(name.c_str()).rules()), HasSubstr("meets no name; the first of 2 is 'a'")) << name;
  EXPECT_THAT(error({{.match = "a", .to = "d"}, {.match = "[ab]", .to = "e"}}), HasSubstr("two rules meet 'a'"));
  EXPECT_THAT(error({{.match = "[ab]", .to = "e"}}), HasSubstr("'a' and 'b' both become 'e'"));
  EXPECT_THAT(error({{.match = "a[", .to = "e"}}), HasSubstr("no regular expression"));
  EXPECT_THAT(error({{.match = "a", .to = "$1"}}), HasSubstr("names a group"));
  EXPECT_THAT(error({{.match = "{part}", .to = "e", .parts = {"a", "z"}}}), HasSubstr("needs the parts a, z"));
}

// ---- Into a module

struct Net : torch::nn::Module {
  explicit Net(int64_t classes = 3) {
    body = register_module("body", torch::nn::Linear(4, 5));
    head = register_module("head", torch::nn::Linear(5, classes));
  }
  torch::nn::Linear body{nullptr};
  torch::nn::Linear head{nullptr};
};

std::vector<NamedLeaf> leaves_of(const torch::nn::Module& module, const std::string& prefix = "") {
  std::vector<NamedLeaf> leaves;
  for (const auto& item : module.named_parameters()) leaves.emplace_back(prefix + item.key(), TensorLeaf{item.value()});
  return leaves;
}

TEST(LoadWeights, EveryFormatGivesTheSameWeights) {
  const testing::Folder folder;
  const Net source;
  write_text(folder.path("config.json"), "{}");
  for (const char* name : {"w.safetensors", "w.pth", "w.ckpt", "hf"}) {
    write_weights(folder.path(name), weights_format_of(name), leaves_of(source),
                  {.config = folder.path("config.json"), .max_shard_bytes = 90});
    Net target;
    const WeightReport report = load_weights(target, folder.path(name));
    EXPECT_TRUE(report.fits()) << name;
    EXPECT_TRUE(at::equal(target.head->weight, source.head->weight)) << name;
  }
  EXPECT_TRUE(std::filesystem::exists(folder.path("hf/model.safetensors.index.json")));
}

TEST(LoadWeights, AFileOfAllWeightsGoesBeforeAnIndexAsInTransformers) {
  const testing::Folder folder;
  const Net shards;
  const Net whole;
  write_text(folder.path("config.json"), "{}");
  write_weights(folder.path("hf"), WeightsFormat::kHuggingFace, leaves_of(shards),
                {.config = folder.path("config.json"), .max_shard_bytes = 90});
  write_weights(folder.path("hf/model.safetensors"), WeightsFormat::kSafetensors, leaves_of(whole), {});
  Net target;
  load_weights(target, folder.path("hf"));
  EXPECT_TRUE(at::equal(target.head->weight, whole.head->weight));
}

TEST(WriteWeights, AFolderOfHuggingFaceIsReplacedWhenAllIsWritten) {
  const testing::Folder folder;
  const Net source;
  const std::string hf = folder.path("hf");
  std::filesystem::create_directories(hf);
  write_text(hf + "/config.json", "{}");
  write_text(hf + "/model_other.safetensors", "the user's");
  write_weights(hf, WeightsFormat::kHuggingFace, leaves_of(source), {.max_shard_bytes = 90});
  const auto files = FileSystem::current().list(hf);
  EXPECT_THAT(files, UnorderedElementsAre("config.json", "model_other.safetensors", "model.safetensors.index.json",
                                          "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                                          "model-00003-of-00003.safetensors"));
  const auto expect_source = [&] {
    Net target;
    EXPECT_TRUE(load_weights(target, hf).fits());
    EXPECT_TRUE(at::equal(target.head->weight, source.head->weight));
    EXPECT_TRUE(at::equal(target.body->weight, source.body->weight));
  };
  {
    testing::FaultyFileSystem faulty;
    for (const int64_t bytes : {0, 100}) {
      faulty.fail_after_bytes(bytes);
      EXPECT_THROW(convert_weights(hf, hf, WeightsFormat::kHuggingFace, {}, /*weights_only=*/true), Error) << bytes;
      faulty.heal();
      EXPECT_EQ(FileSystem::current().list(hf), files);
      expect_source();
    }
  }
  convert_weights(hf, hf, WeightsFormat::kHuggingFace, {}, /*weights_only=*/true);
  EXPECT_THAT(FileSystem::current().list(hf),
              UnorderedElementsAre("config.json", "model_other.safetensors", "model.safetensors"));
  expect_source();
}

TEST(WriteWeights, AFailureLeavesWhatHasATemporaryName) {
  const testing::Folder folder;
  for (const std::string name : {"w.safetensors", "w.pth"}) {
    for (const char* suffix : {".tmp", ".unfinished"}) {
      std::filesystem::create_directories(folder.path(name + suffix));
      write_text(folder.path(name + suffix + "/thesis.tex"), "precious");
      try {
        write_weights(folder.path(name), weights_format_of(name), leaves_of(Net()), {});
      } catch (const Error&) {  // a folder has the name that the file is to have first
      }
      EXPECT_TRUE(std::filesystem::exists(folder.path(name + suffix + "/thesis.tex"))) << name << suffix;
    }
  }
}

TEST(LoadWeights, NumbersThatTheModuleDoesNotHoldAreRefused) {
  struct Counted final : torch::nn::Module {
    Counted() {
      weight = register_parameter("weight", torch::zeros({2}));
      count = register_buffer("count", torch::zeros({2}, torch::kLong));
    }
    at::Tensor weight;
    at::Tensor count;
  };
  const testing::Folder folder;
  const auto error = [&](const at::Tensor& weight, const at::Tensor& count) {
    write_weights(folder.path("w.pth"), WeightsFormat::kPyTorch,
                  {{"weight", TensorLeaf{weight}}, {"count", TensorLeaf{count}}});
    Counted module;
    return error_of([&] { load_weights(module, {.path = folder.path("w.pth")}); });
  };
  const at::Tensor whole = torch::ones({2}, torch::kLong);
  const at::Tensor real = torch::ones({2}, torch::kDouble);
  EXPECT_THAT(error(torch::ones({2}, torch::kComplexFloat), whole),
              HasSubstr("'weight' has numbers that the module's tensor does not hold; got ComplexFloat; valid: Float"));
  EXPECT_THAT(error(real, real * 1.5), HasSubstr("'count' has numbers that the module's tensor does not hold"));
  EXPECT_EQ(error(real, torch::ones({2}, torch::kInt)), error(torch::ones({2}), whole));
  EXPECT_THAT(error(real * 1e300, whole), AllOf(HasSubstr("numbers that become infinite"), HasSubstr("got Double")));
  EXPECT_EQ(error(real * std::numeric_limits<double>::infinity(), whole), error(real, whole));
  struct Small final : torch::nn::Module {
    Small() { count = register_buffer("count", torch::zeros({2}, torch::kByte)); }
    at::Tensor count;
  } small;
  for (const int64_t number : {int64_t{300}, int64_t{-1}, int64_t{1} << 40}) {
    write_weights(folder.path("n.pth"), WeightsFormat::kPyTorch, {{"count", TensorLeaf{whole * number}}});
    EXPECT_THAT(error_of([&] { load_weights(small, {.path = folder.path("n.pth")}); }),
                HasSubstr("whole numbers outside of its range"));
  }
  // Types that differ in their signs alone.
  const auto error_between = [&](int64_t number, at::ScalarType from, at::ScalarType to) {
    struct One final : torch::nn::Module {
      explicit One(at::ScalarType type) { register_buffer("count", torch::zeros({2}, type)); }
    } one(to);
    write_weights(folder.path("s.pth"), WeightsFormat::kPyTorch, {{"count", TensorLeaf{(whole * number).to(from)}}});
    return error_of([&] { load_weights(one, {.path = folder.path("s.pth")}); });
  };
  EXPECT_THAT(error_between(-5, at::kChar, at::kByte), HasSubstr("whole numbers outside of its range"));
  EXPECT_THAT(error_between(200, at::kByte, at::kChar), HasSubstr("whole numbers outside of its range"));
  EXPECT_THAT(error_between(40000, at::kUInt16, at::kShort), HasSubstr("whole numbers outside of its range"));
  EXPECT_EQ(error_between(100, at::kByte, at::kChar), "no error");
  EXPECT_EQ(error_between(100, at::kShort, at::kUInt16), "no error");
  write_weights(folder.path("n.pth"), WeightsFormat::kPyTorch, {{"count", TensorLeaf{whole * 255}}});
  load_weights(small, {.path = folder.path("n.pth")});
  EXPECT_EQ(small.count.sum().item<int64_t>(), 510);
}

TEST(LoadWeights, TiedTensorsOfOtherValuesAreRefused) {
  struct Tied final : torch::nn::Module {
    Tied() {
      e = register_parameter("e", torch::zeros({2}));
      register_parameter("h", e);
    }
    at::Tensor e;
  };
  const testing::Folder folder;
  const auto error = [&](const at::Tensor& e, const at::Tensor& h, bool strict = true) {
    write_weights(folder.path("w.pth"), WeightsFormat::kPyTorch, {{"e", TensorLeaf{e}}, {"h", TensorLeaf{h}}});
    Tied module;
    return error_of([&] { load_weights(module, {.path = folder.path("w.pth"), .strict = strict}); });
  };
  const at::Tensor values = torch::tensor({1.0F, 2.0F});
  EXPECT_EQ(error(values, values.clone()), "no error");
  EXPECT_THAT(error(values, values + 1),
              HasSubstr("1 of the file has other values than the tensor that the module ties "
                        "to it: h"));
  EXPECT_THAT(error(values, torch::ones({3})), HasSubstr("the module ties to it: h"));
  EXPECT_EQ(error(values, values + 1, /*strict=*/false), "no error");
}

TEST(LoadWeights, AllOrNothingUnlessNotStrict) {
  const testing::Folder folder;
  const Net source(7);
  write_weights(folder.path("w.pth"), WeightsFormat::kPyTorch, leaves_of(source, "model."));
  Net target;
  const at::Tensor before = target.body->weight.detach().clone();
  const LoadWeightsOptions options{.path = folder.path("w.pth"), .strip_prefix = "model."};
  EXPECT_THAT(error_of([&] { load_weights(target, options); }),
              HasSubstr("head.weight ([7, 5] in the file, [3, 5] in the module)"));
  EXPECT_TRUE(at::equal(target.body->weight, before)) << "nothing is half loaded";
  LoadWeightsOptions lenient = options;
  lenient.strict = false;
  const WeightReport report = load_weights(target, lenient);
  EXPECT_THAT(report.loaded, UnorderedElementsAre("body.weight", "body.bias"));
  EXPECT_EQ(report.other_shape.size(), 2U);
  EXPECT_TRUE(at::equal(target.body->weight, source.body->weight));
}

TEST(LoadWeights, NamesTheNearestWhereNothingFits) {
  const testing::Folder folder;
  write_weights(folder.path("w.pth"), WeightsFormat::kPyTorch, {{"bodi.weight", TensorLeaf{torch::ones({5, 4})}}});
  Net target;
  EXPECT_THAT(error_of([&] { load_weights(target, {.path = folder.path("w.pth"), .strict = false}); }),
              HasSubstr("body.weight (the file has 'bodi.weight')"));
}

TEST(LoadWeights, BadFoldersAndFilesAreNamed) {
  const testing::Folder folder;
  const auto error = [&](const std::string& name) { return error_of([&] { open_weights(folder.path(name)); }); };
  EXPECT_THAT(error("none"), HasSubstr("there is no"));
  std::filesystem::create_directory(folder.path("empty"));
  EXPECT_THAT(error("empty"), HasSubstr("holds no weights that can be read; valid:"));
  std::filesystem::create_directory(folder.path("parts"));
  write_text(folder.path("parts/model-00001-of-00002.safetensors"), "x");
  EXPECT_THAT(error("parts"), HasSubstr("no index of them"));
  write_text(folder.path("parts/model.safetensors.index.json"), R"({"weight_map": {"a": "gone.safetensors"}})");
  EXPECT_THAT(error("parts"), HasSubstr("files that are missing: gone.safetensors"));
  write_text(folder.path("parts/model.safetensors.index.json"), R"({"weight_map": {"a": "../x.safetensors"}})");
  EXPECT_THAT(error("parts"), HasSubstr("outside of its folder"));
  write_text(folder.path("parts/model.safetensors.index.json"), "{");
  EXPECT_THAT(error("parts"), HasSubstr("no index of weights"));
  std::filesystem::create_directory(folder.path("flax"));
  write_text(folder.path("flax/flax_model.msgpack"), "x");
  write_text(folder.path("flax/model.onnx"), "x");
  EXPECT_THAT(error("flax"), HasSubstr("got flax_model.msgpack, model.onnx; valid:"));
}

TEST(LoadWeights, FilesOfOtherProgramsAreNamed) {
  const testing::Folder folder;
  const auto error = [&](const std::string& name, const std::string& text) {
    write_text(folder.path(name), text);
    return error_of([&] { open_weights(folder.path(name)); });
  };
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 46827520\n";
  for (const char* name : {"w.pth", "w.safetensors"}) {
    EXPECT_THAT(error(name, pointer), HasSubstr("a pointer of Git LFS to the file itself; hint: 'git lfs pull'"));
    EXPECT_THAT(error(name, "\n<!DOCTYPE html><html>"), HasSubstr("a web page")) << name;
    EXPECT_THAT(error(name, "\x89HDF\r\n\x1a\n"), HasSubstr("HDF5")) << name;
    EXPECT_THAT(error(name, "GGUF\x03"), HasSubstr("llama.cpp")) << name;
    EXPECT_THAT(error(name, std::string("\x08\x08\x12\x07pytorch", 11)), HasSubstr("ONNX")) << name;
  }
  EXPECT_THAT(error("flax_model.msgpack", "\x81\xa6"), HasSubstr("Flax"));
  EXPECT_THAT(error("saved_model.pb", "\x08\x01"), HasSubstr("TensorFlow"));
  EXPECT_THAT(error("model.ckpt.data-00000-of-00001", "\x01\x02"), HasSubstr("TensorFlow"));
  EXPECT_THAT(error("text.pth", "hello"), HasSubstr("another format"));
  EXPECT_THAT(error("empty.pth", ""), HasSubstr("an empty file"));
  EXPECT_THAT(error("w.safetensors", "hello, hello"), HasSubstr("not a whole safetensors file"));
}

}  // namespace
}  // namespace levin
