// What users get wrong, and what goes wrong around them. Each mistake gives one message that says what to do, a status
// other than 0, and leaves nothing half-written behind.

#include "bad_input.h"
#include "tests/support/tree.h"

#include <iterator>

namespace levin {
namespace {

namespace fs = std::filesystem;
using testing::BadInput;
using testing::kFailure;
using testing::kUsageError;
using testing::Linear;
using testing::Outcome;
using testing::read_text;
using testing::Saboteur;
using testing::write_text;

// ---- Configuration

using BadConfiguration = BadInput;

TEST_F(BadConfiguration, InYaml) {
  const std::string file = folder_.path("bad.yaml");
  expect_bad_yaml("trainer:\n  max_epochz: 3\n",
                  {file + ":2:3", "unknown key 'max_epochz' in 'trainer'", "did you mean 'max_epochs'?"});
  expect_bad_yaml("trainr: {max_epochs: 3}\n", {file + ":1:1", "unknown key 'trainr'", "did you mean 'trainer'?"});
  expect_bad_yaml("model: {name: linear, hiden: 3}\n", {file + ":1:23", "'hiden'", "did you mean 'hidden'?"});
  expect_bad_yaml("model: linaer\n", {file + ":1:8", "unknown model 'linaer'", "did you mean 'linear'?"});
  expect_bad_yaml("trainer: {callbacks: [{early_stoping: {monitor: val_loss}}]}\n",
                  {file + ":1:", "unknown callback 'early_stoping'", "did you mean 'early_stopping'?"});
  expect_bad_yaml("trainer: {callbacks: [{model_checkpoint: {monitr: val_loss}}]}\n",
                  {file + ":1:", "unknown key 'monitr'", "did you mean 'monitor'?"});
  expect_bad_yaml("trainer:\n  max_steps: many\n", {file + ":2:14", "trainer.max_steps", "an integer", "got 'many'"});
  expect_bad_yaml("model: {hidden: 0}\n", {file + ":1:17", "model.hidden must be at least 1; got 0"});
  expect_bad_yaml("model: {lr: 0.1, lr: 0.2}\n", {file + ":1:18", "'lr' is given twice"});
  expect_bad_yaml("trainer: {max_epochs: 3\n", {file + ":2:1", "not YAML"});
  expect_bad_yaml("trainer:\n\tmax_epochs: 3\n", {file + ":2:", "not YAML"});
  expect_bad_yaml("- a\n- b\n", {file + ":1:1", "a mapping"});
}

TEST_F(BadConfiguration, OnTheCommandLine) {
  expect_config_error({"--trainer.max_epochz=3"}, {"--trainer.max_epochz", "did you mean 'max_epochs'?"});
  expect_config_error({"--max_epochs=3"}, {"unknown key 'max_epochs'", "did you mean 'trainer.max_epochs'?"});
  expect_config_error({"--trainer.logger=csvv"}, {"unknown logger 'csvv'", "did you mean 'csv'?", "tensorboard"});
  expect_config_error({"--trainer.strategy=sigle_device"}, {"unknown strategy", "did you mean 'single_device'?"});
  expect_config_error({"--trainer.precision=33-true"}, {"unknown precision '33-true'", "did you mean '32-true'?"});
  expect_config_error({"--trainer.callbacks=[nothing]"}, {"unknown callback 'nothing'", "valid: ", "model_checkpoint"});
  expect_config_error({"--model=none"}, {"unknown model 'none'", "valid: linear"});
  expect_config_error({"--data.name=fashion"}, {"unknown data module 'fashion'", "fashion_mnist"});
  expect_config_error({"--trainer.max_steps=x"}, {"trainer.max_steps", "an integer", "got 'x'"});
  expect_config_error({"--trainer.accumulate_grad_batches=0"}, {"trainer.accumulate_grad_batches must be at least 1"});
  expect_config_error({"--trainer.limit_val_batches=1.5"}, {"limit_val_batches", "1.5"});
  expect_config_error({"--model.trouble=some"},
                      {"model.trouble must be one of none, exception, libtorch, nan; got some"});
  expect_config_error({"--trainer.callbacks=[{a: b"}, {"--trainer.callbacks", "not YAML"});
  expect_config_error({"--config=" + folder_.path("none.yaml")}, {"cannot read", "none.yaml"});
  expect_config_error({"--seed=-1"}, {"seed must be at least 0"});
  expect_config_error({"stray"}, {"unexpected argument 'stray'"});
}

TEST_F(BadConfiguration, Commands) {
  expect_error(run({"fti"}), kUsageError, {"unknown command 'fti'", "did you mean 'fit'?", "validate"});
  expect_error(run({}), kUsageError, {"no command", "fit, validate, test, predict", "--help"});
}

TEST_F(BadConfiguration, Conflicts) {
  expect_config_error({"--trainer.enable_checkpointing=false", "--trainer.callbacks=[model_checkpoint]"},
                      {"model_checkpoint", "enable_checkpointing"});
  expect_config_error({"--trainer.min_epochs=3", "--trainer.max_epochs=2"}, {"min_epochs is 3", "max_epochs is 2"});
  expect_config_error({"--trainer.gpus=1", "--trainer.devices=1"}, {"trainer.gpus and trainer.devices"});
  expect_config_error({"--trainer.devices=2", "--trainer.strategy=single_device"}, {"2 devices", "runs on one"});
  expect_config_error({"--trainer.num_nodes=2"}, {"trainer.num_nodes is 2", "no launcher has started ranks"});
  expect_config_error(
      {"--trainer.barebones", "--trainer.enable_progress_bar=true", "--trainer.callbacks=[progress_bar]"},
      {"barebones"});
  expect_config_error({"--trainer.callbacks=[early_stopping]"}, {"early_stopping.monitor is required"});
  expect_config_error({"--trainer.callbacks=[{model_checkpoint: {every_n_epochs: 1, every_n_train_steps: 1}}]"},
                      {"several intervals", "every_n_train_steps and every_n_epochs"});
  expect_config_error({"--trainer.callbacks=[{model_checkpoint: {save_top_k: 3}}]"}, {"save_top_k=3 needs", "monitor"});
  if (!torch::cuda::is_available())
    expect_config_error({"--trainer.accelerator=cuda"},
                        {"trainer.accelerator asks for devices of 'cuda'", "none can be used here"});
}

TEST_F(BadConfiguration, TheProgramSaysTheSame) {
  const std::string kProgram = testing::build_path("bin/fashion_mnist");
  if (!fs::exists(kProgram)) GTEST_SKIP() << "there is no " << kProgram << "; hint: build the examples";
  const auto result = testing::run_program({kProgram, "fit", "--trainer.max_epochz=3"}, {.folder = folder_.path()});
  expect_error({result.status, result.out, result.err}, kUsageError, {"did you mean 'max_epochs'?"});
  const auto missing =
      testing::run_program({kProgram, "fit", "--data.root=" + folder_.path("no")}, {.folder = folder_.path()});
  expect_error({missing.status, missing.out, missing.err}, kFailure, {folder_.path("no"), "dataset-fashion-mnist"});
}

// ---- Data

using BadData = BadInput;

TEST_F(BadData, MissingTruncatedForeignAndUnequalFiles) {
  const std::string images = data() + "/train-images-idx3-ubyte";
  const auto expect_data_error = [this](const std::vector<std::string>& parts) {
    expect_error(run_small("fit"), kFailure, parts);
  };
  const std::string whole = read_text(images);

  fs::remove(images);
  expect_data_error({"[data]", "train-images-idx3-ubyte", data(), "set root"});

  write_text(images, whole.substr(0, whole.size() - 100));
  expect_data_error({images, "truncated", std::to_string(whole.size() - 116)});

  write_text(images, "<html>404 Not Found</html>");
  expect_data_error({images, "not an IDX file", "3c 68 74 6d"});

  write_text(images, testing::tiny_images(59));
  expect_data_error({images, "59 images", "60 labels"});

  fs::remove(images);
  write_gzip(images + ".gz", whole);
  EXPECT_EQ(run_small("fit").status, 0);
  const std::string compressed = read_text(images + ".gz");
  write_text(images + ".gz", compressed.substr(0, compressed.size() / 2));
  expect_data_error({images + ".gz", "truncated"});

  write_text(images + ".gz", "");
  expect_data_error({images + ".gz"});
}

TEST_F(BadData, HoldingOutMoreThanThereIs) {
  expect_error(run_small("fit", {"--data.val_size=61"}), kFailure, {"val_size", "61", "60"});
}

// ---- Checkpoints

class BadCheckpoint : public BadInput {
 protected:
  /// Damages one file of the newest checkpoint, sees what comes of it, and mends it.
  template <class Damage>
  void damage_each_file(const Damage& damage, const std::vector<std::string>& explicit_parts) {
    ASSERT_NO_FATAL_FAILURE(save_every_step());
    const std::string newest = checkpoint("epoch=0-step=5");
    for (const char* name :
         {"model.safetensors", "optimizer.safetensors", "state.safetensors", "state.json", "manifest.json"}) {
      SCOPED_TRACE(name);
      const std::string file = newest + "/" + name;
      const std::string content = read_text(file);
      damage(file, content);

      const Outcome last = run_small("validate", {"--ckpt=last"});
      EXPECT_EQ(last.status, 0) << last.err;
      EXPECT_NE(last.err.find("warning: falling back to " + checkpoint("epoch=0-step=4")), std::string::npos)
          << last.err;
      EXPECT_NE(last.err.find(name), std::string::npos) << last.err;

      std::vector<std::string> parts = explicit_parts;
      parts.push_back(newest);
      parts.emplace_back(name);
      expect_error(run_small("fit", {"--ckpt=" + newest, "--trainer.max_epochs=2"}), kFailure, parts);
      write_text(file, content);
    }
  }
};

TEST_F(BadCheckpoint, AFlippedBit) {
  damage_each_file(
      [](const std::string& file, std::string content) {
        content[content.size() / 2] ^= 1;
        write_text(file, content);
      },
      {"damaged"});
}

TEST_F(BadCheckpoint, AMissingFile) {
  damage_each_file([](const std::string& file, const std::string&) { fs::remove(file); }, {});
}

TEST_F(BadCheckpoint, ACutFile) {
  damage_each_file([](const std::string& file,
                      const std::string& content) { write_text(file, content.substr(0, content.size() / 2)); },
                   {"damaged"});
}

TEST_F(BadCheckpoint, OfAnotherModel) {
  save_every_step();
  expect_error(run_small("fit", {"--ckpt=last", "--model.hidden=6"}), kFailure,
               {"{hidden: 4, ", "{hidden: 6, ", "net.1.weight ([4, 784] in the checkpoint, [6, 784] in the module)"});
}

TEST_F(BadCheckpoint, ThatIsNotThere) {
  expect_error(run_small("fit", {"--ckpt=last"}), kFailure,
               {"cannot find the last checkpoint", root(), "default_root_dir"});
  expect_error(run_small("test", {"--ckpt=best"}), kFailure, {"cannot find the best checkpoint"});
  expect_error(run_small("fit", {"--ckpt=" + folder_.path("none")}), kFailure,
               {"there is no checkpoint", folder_.path("none"), "last, auto, best"});
  expect_error(run_small("fit", {"--ckpt=" + data()}), kFailure, {data(), "manifest.json"});
  EXPECT_EQ(run_small("fit", {"--ckpt=auto"}).status, 0);
}

// ---- While training

using BadRun = BadInput;

TEST_F(BadRun, AMonitorThatNobodyLogs) {
  expect_error(run_small("fit", {"--trainer.callbacks=[{early_stopping: {monitor: val_los}}]"}), kFailure,
               {"[early_stopping]", "'val_los' was not logged", "did you mean 'val_loss'?", "train_loss"});
  expect_error(run_small("fit", {"--trainer.callbacks=[{model_checkpoint: {monitor: accuracy}}]"}), kFailure,
               {"[model_checkpoint]", "'accuracy' was not logged", "valid: epoch, step, train_loss, val_loss"});
}

TEST_F(BadRun, NotANumberInTheMonitoredMetric) {
  const Outcome stopped = run_small("fit", {"--model.trouble=nan", "--trainer.max_epochs=4",
                                            "--trainer.callbacks=[{early_stopping: {monitor: val_loss}}]"});
  EXPECT_EQ(stopped.status, 0) << stopped.err;
  EXPECT_NE(stopped.err.find("training was asked to stop: early_stopping: val_loss = nan is not finite"),
            std::string::npos)
      << stopped.err;
  EXPECT_TRUE(fs::exists(checkpoint("epoch=0-step=5")));

  const Outcome saved = run_small("fit", {"--model.trouble=nan", "--trainer.max_epochs=2",
                                          "--trainer.callbacks=[{model_checkpoint: {monitor: val_loss}}]"});
  EXPECT_EQ(saved.status, 0) << saved.err;
  EXPECT_NE(saved.err.find("val_loss is NaN in epoch 0, step 5"), std::string::npos) << saved.err;
}

TEST_F(BadRun, ExceptionsOfUserCode) {
  const std::string saboteur = "--trainer.callbacks=[saboteur]";
  expect_error(run_small("fit", {"--model.trouble=exception", saboteur}), kFailure, {"the user's own message"});
  EXPECT_EQ(Saboteur::exceptions, 1);
  expect_error(run_small("fit", {"--model.trouble=libtorch", saboteur}), kFailure, {"mat1 and mat2 shapes"});
  EXPECT_EQ(Saboteur::exceptions, 2);

  // In a program of one's own the exception arrives as it was thrown.
  auto data = make<data::FashionMnist>({.root = this->data(), .batch_size = 8, .val_size = 20});
  Trainer trainer({.max_epochs = 1,
                   .accelerator = "cpu",
                   .callbacks = {make<Saboteur>()},
                   .logger = false,
                   .enable_checkpointing = false,
                   .enable_progress_bar = false,
                   .enable_model_summary = false});
  EXPECT_THROW(trainer.fit(make<Linear>({.trouble = "exception"}), data), std::out_of_range);
  EXPECT_EQ(trainer.status(), TrainerStatus::kFailed);
  EXPECT_EQ(Saboteur::exceptions, 3);
}

TEST_F(BadRun, AFolderThatCannotBeMade) {
  write_text(folder_.path("file"), "");
  expect_error(run_small("fit", {"--trainer.default_root_dir=" + folder_.path("file/runs")}), kFailure,
               {"cannot create directory " + folder_.path("file/runs"), "Not a directory"});
  expect_error(run_small("fit", {"--trainer.default_root_dir=/proc/levin"}), kFailure,
               {"cannot create directory /proc/levin"});
}

TEST_F(BadRun, AFullDiskWhileSaving) {
  // The disk takes nothing more, part of the next checkpoint, and some more of them.
  for (const int64_t bytes : {0, 5000, 100000}) {
    SCOPED_TRACE(bytes);
    fs::remove_all(root());
    Outcome outcome;
    {
      testing::FaultyFileSystem files;
      Saboteur::files = &files;
      Saboteur::bytes = bytes;
      outcome = run_small(
          "fit", {"--trainer.callbacks=[{model_checkpoint: {every_n_train_steps: 1, save_top_k: -1}}, saboteur]"});
      Saboteur::files = nullptr;
    }
    expect_error(outcome, kFailure,
                 {"[checkpoint]", "cannot save", "No space left on device", "the last good checkpoint is untouched"});
    EXPECT_NO_THROW(verify_checkpoint(checkpoint("epoch=0-step=1")));
    EXPECT_NO_THROW(verify_checkpoint(checkpoint("epoch=0-step=2")));
    EXPECT_FALSE(fs::exists(checkpoint("epoch=0-step=5")));
    // With room again it goes on.
    EXPECT_EQ(run_small("fit", {"--ckpt=last"}).status, 0);
  }
}

TEST_F(BadRun, ADiskThatIsReallyFull) {
  const std::string kProgram = testing::build_path("bin/fashion_mnist");
  if (!fs::exists(kProgram)) GTEST_SKIP() << "there is no " << kProgram << "; hint: build the examples";
  const std::string disk = folder_.path("disk");
  fs::create_directories(disk);
  if (testing::run_program({"/usr/bin/mount", "-t", "tmpfs", "-o", "size=3m", "levin_test", disk}).status != 0)
    GTEST_SKIP() << "a tmpfs cannot be mounted here; that takes root";
  // A checkpoint of this model takes 1.2 MB.
  const auto result =
      testing::run_program({kProgram, "fit", "--data.root=" + data(), "--data.val_size=20", "--data.batch_size=8",
                            "--trainer.accelerator=cpu", "--trainer.default_root_dir=" + disk + "/runs",
                            "--trainer.max_epochs=1", kEveryStep});
  const std::string checkpoints = disk + "/runs/version_0/checkpoints";
  expect_error({result.status, result.out, result.err}, kFailure,
               {"[checkpoint]", "cannot save " + checkpoints + "/epoch=0-step=3", "No space left on device"});
  EXPECT_NO_THROW(verify_checkpoint(checkpoints + "/epoch=0-step=1"));
  EXPECT_NO_THROW(verify_checkpoint(checkpoints + "/epoch=0-step=2"));
  EXPECT_EQ(std::distance(fs::directory_iterator(checkpoints), fs::directory_iterator()), 2);
  EXPECT_EQ(testing::run_program({"/usr/bin/umount", disk}).status, 0);
}

}  // namespace
}  // namespace levin
