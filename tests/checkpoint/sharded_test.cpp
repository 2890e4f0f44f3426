#include <levin/core/checkpoint/checkpoint.h>

#include <levin/core/base/error.h>
#include <levin/core/checkpoint/consolidate.h>
#include <levin/core/checkpoint/inspect.h>
#include <levin/core/checkpoint/manifest.h>
#include <levin/core/checkpoint/safetensors.h>
#include <levin/core/checkpoint/shard_index.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include "../support/thread_collective.h"
#include "sharded_fixture.h"

#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <thread>

namespace levin {
namespace {

using testing::message_of;
using testing::ThreadCollective;

class ShardedCheckpoint : public testing::CheckpointTest {
 protected:
  /// The ranks write together; every rank's error, empty where it had none.
  std::vector<std::string> errors_of_writing(const std::vector<State>& trees, int64_t step = 1) const {
    return testing::errors_of_ranks(static_cast<int64_t>(trees.size()), [&](ThreadCollective& ranks) {
      write_sharded_checkpoint(path_, trees[static_cast<size_t>(ranks.rank())], info(trees.size(), step), ranks);
    });
  }
  void write(const std::vector<State>& trees, int64_t step = 1) const {
    for (const std::string& error : errors_of_writing(trees, step)) ASSERT_EQ(error, "");
  }
  /// Expects the ranks to fail with one and the same error, and what was there before to be untouched.
  std::string refusal(const std::vector<State>& trees) const {
    const auto errors = errors_of_writing(trees);
    for (const std::string& error : errors) EXPECT_EQ(error, errors.front());
    EXPECT_EQ(FileSystem::current().list(folder_), std::vector<std::string>{"last"});
    EXPECT_EQ(message_of([&] { verify_checkpoint(path_); }), "");
    return errors.front();
  }
  static CheckpointInfo info(size_t ranks, int64_t step) {
    return {.global_step = step, .world_size = static_cast<int64_t>(ranks), .created = "2026-01-31T12:00:00.000000Z"};
  }
  std::vector<std::string> files() const { return FileSystem::current().list(path_); }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

  const std::string path_ = path("last");
};

/// Shapes with none, one and many elements, types of all sizes.
State random_tree(std::mt19937& random) {
  State tree = testing::sample_tree(static_cast<int64_t>(random() % 100));
  const std::vector<at::ScalarType> types{at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kByte};
  for (int i = 0; i < 6; ++i) {
    std::vector<int64_t> shape;
    for (uint64_t dimension = random() % 4; dimension > 0; --dimension)
      shape.push_back(static_cast<int64_t>(random() % 9));
    const at::ScalarType type = types[random() % types.size()];
    const std::string name = "unit/" + std::to_string(i) + ".~weight";
    tree["model"][name] = at::randint(0, 100, shape, at::kLong).to(type);
    tree["optimizers"].as_list().front()["state"][name]["exp_avg"] = at::rand(shape);
  }
  tree["metrics"]["sum"] = TensorLeaf{at::rand({3}), {.kind = Placement::Kind::kRankLocal}};
  return tree;
}

TEST_F(ShardedCheckpoint, AnySplitReadsBackUnderAnyNumberOfRanks) {
  for (uint32_t seed = 0; seed < 25; ++seed) {
    std::mt19937 random(seed);
    const State tree = random_tree(random);
    const auto writers = static_cast<int64_t>(1 + random() % 5);
    write(testing::shard_tree(tree, writers, [&](int64_t count) {
      std::vector<int64_t> ends;
      for (int64_t i = 1; i < writers; ++i) ends.push_back(static_cast<int64_t>(random() % uint64_t(count + 1)));
      std::sort(ends.begin(), ends.end());
      return ends;
    }));
    testing::expect_same(tree, read_checkpoint(path_));

    const State opened = open_checkpoint(path_);
    const auto readers = static_cast<int64_t>(1 + random() % 5);
    for_each_leaf(tree, [&](const std::string& where, const State& node) {
      if (!node.is_tensor()) return;
      const State* saved = &opened;
      for (const auto& key : keys_of("/" + where))
        saved = saved->is_list() ? &saved->as_list()[std::stoul(key)] : &saved->at(key);
      const at::Tensor flat = node.as_tensor().contiguous().flatten();
      const SavedTensor& handle = *saved->as_leaf().saved;
      EXPECT_EQ(at::IntArrayRef(handle.shape()), node.as_tensor().sizes()) << where;
      for (int64_t reader = 0; reader < readers; ++reader) {
        const int64_t begin = flat.numel() * reader / readers;
        const int64_t count = flat.numel() * (reader + 1) / readers - begin;
        const at::Tensor part = at::empty({count}, handle.dtype());
        handle.read(begin, part);
        testing::expect_same_tensor(part, flat.narrow(0, begin, count), where);
      }
    });
    testing::expect_same(tree, opened);
  }
}

TEST_F(ShardedCheckpoint, EachRankWritesFilesOfItsOwn) {
  const State tree = testing::sample_tree(3);
  write(testing::shard_evenly(tree, 3));
  EXPECT_EQ(files(),
            (std::vector<std::string>{"manifest.json", "model.rank-00000.safetensors", "model.rank-00001.safetensors",
                                      "model.rank-00002.safetensors", "optimizer.rank-00000.safetensors",
                                      "optimizer.rank-00001.safetensors", "optimizer.rank-00002.safetensors",
                                      "state.json", "state.rank-00000.safetensors"}));
  EXPECT_EQ(SafetensorsFile(file("model.rank-00001.safetensors")).shape("net.0.weight"), std::vector<int64_t>{4});
  EXPECT_NE(testing::read_bytes(file("manifest.json")).find("\"format_version\": 2"), std::string::npos);
  const State outline = read_outline(path_);
  EXPECT_EQ(outline.at("model").at("net.0.weight").as_tensor().sizes(), (std::vector<int64_t>{4, 3}));
  EXPECT_EQ(read_info(path_).world_size, 3);
  EXPECT_NE(describe_checkpoint(path_, true).find("model/net.0.weight"), std::string::npos);
  EXPECT_NE(describe_checkpoint(path_, true).find("  sharded, save "), std::string::npos);
  write_checkpoint(path("whole"), tree, {});
  const CheckpointDifference difference = diff_checkpoints(path_, path("whole"));
  EXPECT_TRUE(difference.equal());
  EXPECT_EQ(difference.same_tensors, 4);
}

TEST_F(ShardedCheckpoint, WithoutShardsItIsThatOfOneRank) {
  const State tree = testing::sample_tree(3);
  write({tree, State::map(), testing::sample_tree(4)});
  write_checkpoint(path("plain"), tree, info(3, 1));
  for (const auto& name : FileSystem::current().list(path("plain")))
    EXPECT_EQ(testing::read_bytes(file(name)), testing::read_bytes(path("plain/" + name))) << name;
  EXPECT_EQ(files().size(), 5U);
  EXPECT_NE(testing::read_bytes(file("manifest.json")).find("\"format_version\": 1"), std::string::npos);
}

TEST_F(ShardedCheckpoint, OneRankMayHoldAllShards) {
  const State tree = testing::sample_tree(3);
  write_checkpoint(path_, testing::shard_evenly(tree, 1).front(), {});
  testing::expect_same(tree, read_checkpoint(path_));
  EXPECT_NE(message_of([&] {
              write_checkpoint(path_, testing::shard_evenly(tree, 2).front(), {});
            }).find("no rank holds the elements 2 to 3 of tensor 'net.0.bias', which has 4"),
            std::string::npos);
}

TEST_F(ShardedCheckpoint, TheLowestOfSeveralReplicasWrites) {
  const State tree = testing::sample_tree(3);
  const auto halves = testing::shard_evenly(tree, 2);
  write({halves[0], halves[1], halves[0], halves[1]});
  EXPECT_EQ(files().size(), 7U) << "ranks 2 and 3 write nothing";
  testing::expect_same(tree, read_checkpoint(path_));

  // One tensor replicated, the other not.
  auto mixed = testing::shard_evenly(tree, 4);
  for (size_t rank = 0; rank < 4; ++rank)
    mixed[rank]["model"]["net.0.bias"] = halves[rank % 2].at("model").at("net.0.bias");
  write(mixed);
  testing::expect_same(tree, read_checkpoint(path_));
}

TEST_F(ShardedCheckpoint, ShardsThatAreNotTheWholeAreRefused) {
  const State tree = testing::sample_tree(3);
  const at::Tensor& weight = tree.at("model").at("net.0.weight").as_tensor();  // 12 elements
  const auto good = testing::shard_evenly(tree, 3);
  write(good);
  const auto with = [&](size_t rank, State weight_of_rank) {
    auto trees = good;
    trees[rank]["model"]["net.0.weight"] = std::move(weight_of_rank);
    return trees;
  };
  const auto expect = [&](const std::vector<State>& trees, const std::string& text) {
    const std::string message = refusal(trees);
    EXPECT_NE(message.find(text), std::string::npos) << message;
  };
  expect(with(1, testing::shard_of(weight, 5, 8, "w")), "no rank holds the elements 4 to 4 of tensor 'net.0.weight'");
  expect(with(2, testing::shard_of(weight, 8, 11, "w")), "no rank holds the elements 11 to 11 of tensor");
  expect(with(1, testing::shard_of(weight, 3, 8, "w")),
         "overlapping shards of tensor 'net.0.weight'; got elements 0 to 3 in model.rank-00000.safetensors, 3 to 7 in");
  expect(with(1, testing::shard_of(weight.to(at::kDouble), 4, 8, "w")),
         "shards of different tensors as 'net.0.weight'");
  expect(with(1, testing::shard_of(weight.view({3, 4}), 4, 8, "w")), "got F32 of shape [4, 3] in");
  expect(with(1, TensorLeaf{at::zeros({5}), {Placement::Kind::kSharded, "w", 8, {4, 3}}}),
         "cannot save the shard of tensor 'net.0.weight'; got 5 elements at 8; valid: within the 12 elements");
  expect(with(0, weight), "which is no sharded tensor in the tree of rank 0");
  auto extra = good;
  extra[2]["model"]["other"] = testing::shard_of(weight, 0, 12, "other");
  expect(extra, "model.rank-00002.safetensors holds a shard of tensor 'other'");
  testing::expect_same(tree, read_checkpoint(path_));
}

TEST_F(ShardedCheckpoint, AFailingDiskOfOneRankFailsAllAndLeavesWhatWasThere) {
  const State tree = testing::sample_tree(3);
  const auto trees = testing::shard_evenly(tree, 3);
  write(trees);
  testing::FailingPaths disk("rank-00001");
  write(trees, 2);
  const int64_t calls = disk.calls();
  ASSERT_GT(calls, 8);
  for (int64_t count = 0; count < calls; ++count) {
    disk.fail_after(count);
    const std::string message = refusal(testing::shard_evenly(testing::sample_tree(9), 3));
    EXPECT_TRUE(
        message.starts_with("[checkpoint] cannot save " + path_ + ": No space left on device; got 'cannot write "))
        << message;
    EXPECT_NE(message.find("rank-00001.safetensors'; hint: the last good checkpoint is untouched"), std::string::npos);
    EXPECT_EQ(read_info(path_).global_step, 2);
    disk.heal();
  }
  write(trees, 3);
  EXPECT_EQ(read_info(path_).global_step, 3);
}

TEST_F(ShardedCheckpoint, MissingAndDamagedShardsAreFoundWhenTheyAreNeeded) {
  const State tree = testing::sample_tree(3);
  const auto trees = testing::shard_evenly(tree, 3);
  at::Tensor first = at::empty({4});
  at::Tensor second = at::empty({4});
  for (const std::string name : {"model.rank-00001.safetensors", "optimizer.rank-00002.safetensors"}) {
    write(trees);
    const std::string bytes = testing::read_bytes(file(name));
    const auto expect = [&](const std::string& text) {
      const std::string expected = "[checkpoint] " + file(name) + " " + text;
      const std::string read = message_of([&] { read_checkpoint(path_); });
      EXPECT_TRUE(read.starts_with(expected)) << read;
      EXPECT_EQ(message_of([&] { verify_checkpoint(path_); }), read);
      const State opened = open_checkpoint(path_);
      const SavedTensor& weight = *opened.at("model").at("net.0.weight").as_leaf().saved;
      weight.read(0, first);
      EXPECT_TRUE(first.eq(3).all().item<bool>());
      const std::string lazy = message_of([&] { weight.read(4, second); });
      EXPECT_EQ(lazy, name.starts_with("model") ? read : "");
    };
    testing::write_bytes(file(name), bytes.substr(0, bytes.size() - 1));
    expect("is damaged; got " + std::to_string(bytes.size() - 1) + " bytes; valid: " + std::to_string(bytes.size()));
    testing::write_bytes(file(name), bytes);
    testing::flip_bit(file(name), bytes.size() - 1);
    expect("is damaged; got checksum ");
    testing::flip_bit(file(name), bytes.size() - 1);
    testing::flip_bit(file(name), 0);
    expect("is damaged; got checksum ");
    std::filesystem::remove(file(name));
    expect("is missing; hint: use an earlier checkpoint");
  }
}

TEST_F(ShardedCheckpoint, AShardOfAnotherSaveIsRefused) {
  const auto trees = testing::shard_evenly(testing::sample_tree(3), 3);
  write(trees);
  const std::string name = "model.rank-00001.safetensors";
  const std::string other = testing::read_bytes(file(name));
  write(testing::shard_evenly(testing::sample_tree(4), 3));
  ASSERT_EQ(testing::read_bytes(file(name)).size(), other.size());
  testing::write_bytes(file(name), other);
  const std::string message = message_of([&] { read_checkpoint(path_); });
  EXPECT_TRUE(message.starts_with("[checkpoint] " + file(name) + " belongs to another save; got ")) << message;
  EXPECT_EQ(message_of([&] { verify_checkpoint(path_); }), message);
  at::Tensor part = at::empty({1});
  EXPECT_EQ(message_of([&] { open_checkpoint(path_).at("model").at("net.0.weight").as_leaf().saved->read(5, part); }),
            message);
}

TEST_F(ShardedCheckpoint, ReadingRefusesWhatIsNotThere) {
  write(testing::shard_evenly(testing::sample_tree(3), 2));
  const State opened = open_checkpoint(path_, {"model"});
  EXPECT_FALSE(opened.contains("optimizers"));
  const SavedTensor& weight = *opened.at("model").at("net.0.weight").as_leaf().saved;
  const auto read = [&](int64_t offset, const at::Tensor& target) {
    return message_of([&] { weight.read(offset, target); });
  };
  EXPECT_EQ(read(12, at::empty({0})), "");
  EXPECT_NE(read(12, at::empty({1})).find("cannot read 1 elements at 12 of tensor 'net.0.weight', which has 12"),
            std::string::npos);
  EXPECT_NE(read(-1, at::empty({1})).find("cannot read 1 elements at -1"), std::string::npos);
  EXPECT_NE(read(0, at::empty({1}, at::kDouble)).find("type Double; valid: contiguous, Float"), std::string::npos);
  EXPECT_NE(read(0, at::empty({2, 2}).t()).find("that is not contiguous"), std::string::npos);
}

TEST_F(ShardedCheckpoint, ShapesThatNoTensorCanHaveAreRefused) {
  write(testing::shard_evenly(testing::sample_tree(3), 2));
  const std::string good = testing::read_bytes(file("state.json"));
  const auto forge = [&](const std::string& tensor) {
    const std::string model = "\"model\": {";
    const size_t place = good.find(model) + model.size();
    testing::write_bytes(file("state.json"),
                         good.substr(0, place) + "\"zz\": {\"$tensor\": " + tensor + "}, " + good.substr(place));
    Manifest manifest = read_manifest(path_);
    manifest.files["state.json"] = summarize_file(file("state.json"));
    testing::write_bytes(file("manifest.json"), manifest_text(manifest));
    const std::string message = message_of([&] { read_checkpoint(path_); });
    // Whoever else opens it says so as well, and nothing is written.
    EXPECT_NE(message_of([&] { diff_checkpoints(path_, path_); }), "") << tensor;
    for (const std::string& target : {path_ + "-whole", path_ + ".safetensors"}) {
      const std::string refusal = message_of([&] { consolidate_checkpoint(path_, target); });
      EXPECT_TRUE(refusal.starts_with("[checkpoint] ")) << tensor << refusal;
      EXPECT_EQ(refusal.find('\n'), std::string::npos) << refusal;
      EXPECT_FALSE(FileSystem::current().exists(target));
    }
    EXPECT_TRUE(message.starts_with("[checkpoint] ")) << message;
    EXPECT_EQ(message.find("Exception raised"), std::string::npos) << message;
    return message;
  };
  const auto pieces = [](const std::string& shape, const std::string& list) {
    return R"({"dtype": "F32", "shape": )" + shape + R"(, "pieces": )" + list + "}";
  };
  // 2^64 elements are none in 64 bits.
  for (const char* shape :
       {"[4294967296, 4294967296]", "[-1, -4]", "[4611686018427387904]", "[0, 4611686018427387904, 4]", "[0, -1]"})
    EXPECT_NE(forge(pieces(shape, "[]")).find("has a shape beyond all memory; got ["), std::string::npos) << shape;
  // What the file holds is looked at before so much memory is asked for.
  const std::string name = rank_file("model.safetensors", 0);
  const std::string message =
      forge(pieces("[1152921504606846976]", R"([{"file": ")" + name + R"(", "name": "net.0.weight", )" +
                                                R"("offset": 0, "count": 1152921504606846976}])"));
  EXPECT_NE(message.find("holds something else than 1152921504606846976 elements"), std::string::npos) << message;
  for (const char* bad : {R"([1.5])", R"("many")", R"([18446744073709551615])", R"([[2]])", "null"})
    forge(pieces(bad, "[]"));
  for (const char* placement :
       {R"("offset": -5, "global_shape": [12])", R"("offset": 13, "global_shape": [12])",
        R"("offset": 0, "global_shape": [-1])", R"("offset": 0, "global_shape": [4294967296, 4294967296])"}) {
    const std::string leaf = R"({"file": ")" + name + R"(", "name": "net.0.weight", )" +
                             R"("placement": {"kind": "sharded", "shard_name": "x", )" + placement + "}}";
    EXPECT_NE(forge(leaf).find("holds what no checkpoint has at 'model/zz'; got a shard at "), std::string::npos);
  }
}

TEST_F(ShardedCheckpoint, PiecesThatDoNotMakeUpTheWholeAreRefused) {
  write(testing::shard_evenly(testing::sample_tree(3), 2));
  const auto forge = [&](const std::string& from, const std::string& to) {
    std::string text = testing::read_bytes(file("state.json"));
    const size_t place = text.find(from);
    if (place == std::string::npos) throw Error("test", "no " + from);
    text.replace(place, from.size(), to);
    testing::write_bytes(file("state.json"), text);
    Manifest manifest = read_manifest(path_);
    manifest.files["state.json"] = summarize_file(file("state.json"));
    testing::write_bytes(file("manifest.json"), manifest_text(manifest));
    return message_of([&] { read_checkpoint(path_); });
  };
  EXPECT_NE(forge("\"count\": 2,", "\"count\": 1,").find("do not follow each other"), std::string::npos);
  EXPECT_NE(forge("\"count\": 1,", "\"count\": 3,").find("do not follow each other"), std::string::npos);
  EXPECT_NE(forge("\"count\": 3,", "\"count\": -2,").find("do not follow each other"), std::string::npos);
  EXPECT_NE(forge("\"count\": -2,", "\"count\": 9223372036854775807,").find("do not follow each other"),
            std::string::npos);
  EXPECT_EQ(forge("\"count\": 9223372036854775807,", "\"count\": 2,"), "") << "as it was";
  EXPECT_NE(forge("model.rank-00001", "model.rank-00007").find("needs the file 'model.rank-00007.safetensors', which"),
            std::string::npos);
}

TEST_F(ShardedCheckpoint, OpeningACheckpointOfOneRank) {
  State tree = testing::sample_tree(5);
  tree["model"]["conv"] = at::rand({2, 3, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast);
  tree["model"]["nothing"] = at::Tensor();
  write_checkpoint(path_, tree, {});
  const State opened = open_checkpoint(path_);
  const TensorLeaf& conv = opened.at("model").at("conv").as_leaf();
  EXPECT_FALSE(conv.value.defined());
  const at::Tensor part = at::empty({7});
  conv.saved->read(11, part);
  testing::expect_same_tensor(part, tree["model"]["conv"].as_tensor().contiguous().flatten().narrow(0, 11, 7), "conv");
  EXPECT_EQ(opened.at("model").at("conv").as_tensor().strides(), tree["model"]["conv"].as_tensor().strides());
  EXPECT_EQ(opened.at("model").at("conv").as_tensor().data_ptr(), opened.at("model").at("conv").as_tensor().data_ptr())
      << "the whole is kept";
  testing::expect_same(tree, opened);
  write_checkpoint(path("copy"), open_checkpoint(path_), {});
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.safetensors", "state.json"})
    EXPECT_EQ(testing::read_bytes(file(name)), testing::read_bytes(path("copy/") + name)) << name;
}

TEST_F(ShardedCheckpoint, KilledWritersLeaveAWholeCheckpoint) {
  const auto save = [&](int64_t step) { write(testing::shard_evenly(testing::sample_tree(step), 3), step); };
  save(0);
  std::mt19937 random(1);
  int64_t newest = 0;
  // A slow disk gets more time, up to minutes: some of the writers must have finished a save.
  for (int round = 0; round < 15 || (newest == 0 && round < 600); ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (int64_t step = newest + 1;; ++step) save(step);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % (60'000 * (1 + round / 15))));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    ASSERT_EQ(message_of([&] { verify_checkpoint(path_); }), "") << "round " << round;
    const int64_t step = read_checkpoint(path_).at("loops").at("global_step").as_int();
    ASSERT_EQ(read_info(path_).global_step, step);
    ASSERT_GE(step, newest);
    newest = step;
  }
  EXPECT_GT(newest, 0);
  save(newest);
  EXPECT_EQ(FileSystem::current().list(folder_), std::vector<std::string>{"last"});
}

}  // namespace
}  // namespace levin
