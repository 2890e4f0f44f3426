#include <tests/support/captured_log.h>
#include <tests/support/tiny.h>

#include <levin/callbacks/lambda_callback.h>
#include <levin/callbacks/model_checkpoint.h>
#include <levin/core/base/file_system.h>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

namespace levin {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// A fit in what looks like a job of SLURM, whose scontrol is a script; tests/launchers has the real one.
class Requeue : public ::testing::Test {
 protected:
  Requeue() : folder_(testing::fresh_folder("requeue")) {
    set("PATH", folder_ + ":" + std::getenv("PATH"));
    set("SLURM_JOB_ID", "7");
    set_scontrol(0);
  }
  ~Requeue() override {
    for (const auto& [name, value] : former_) value ? setenv(name.c_str(), value->c_str(), 1) : unsetenv(name.c_str());
  }

  void set(const std::string& name, const std::string& value) {
    const char* const former = std::getenv(name.c_str());
    former_.try_emplace(name, former == nullptr ? std::nullopt : std::optional<std::string>(former));
    setenv(name.c_str(), value.c_str(), 1);
  }

  void set_scontrol(int status) const {
    const std::string path = folder_ + "/scontrol";
    std::ofstream(path) << fmt::format("#!/bin/sh\necho \"$@\" >> {}/calls\nexit {}\n", folder_, status);
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  }

  /// What scontrol was called with.
  std::string calls() const {
    const std::string path = folder_ + "/calls";
    return std::filesystem::exists(path) ? FileSystem::current().read_file(path) : "";
  }

  /// Trains until the signal comes in the second step; gives what was said.
  std::string fit(int signal, const std::string& ckpt) const {
    TrainerOptions options = testing::quiet(2);
    options.default_root_dir = folder_ + "/runs";
    options.enable_checkpointing = true;
    options.callbacks = {
        make<ModelCheckpoint>({.save_last = true}),
        make<LambdaCallback>({.on_train_batch_start = [signal](Trainer&, Module&, const Batch&, int64_t batch_idx) {
          if (batch_idx == 1) std::raise(signal);
        }})};
    const testing::CapturedLog log;
    Trainer trainer(options);
    trainer.fit(make<testing::TinyModule>({}), DataLoader(testing::tiny_dataset(16), {.batch_size = 4}), {}, ckpt);
    EXPECT_EQ(trainer.interrupt_signal(), signal);
    EXPECT_EQ(trainer.global_step(), 2);
    EXPECT_NE(trainer.checkpoint_callback()->last_model_path(), "");
    return log.text();
  }

  const std::string folder_;

 private:
  std::map<std::string, std::optional<std::string>> former_;
};

TEST_F(Requeue, OnItsSignal) {
  EXPECT_THAT(fit(SIGUSR1, "auto"), HasSubstr("SLURM has requeued the job"));
  EXPECT_EQ(calls(), "requeue 7\n");
}

TEST_F(Requeue, OneTaskOfAnArray) {
  set("SLURM_ARRAY_JOB_ID", "5");
  set("SLURM_ARRAY_TASK_ID", "2");
  fit(SIGUSR1, "auto");
  EXPECT_EQ(calls(), "requeue 5_2\n");
}

TEST_F(Requeue, NotOnOtherSignals) {
  EXPECT_THAT(fit(SIGTERM, "auto"), Not(HasSubstr("requeue")));
  EXPECT_EQ(calls(), "");
}

TEST_F(Requeue, NotWhereTheNextRunWouldBeginAnew) {
  EXPECT_THAT(fit(SIGUSR1, ""), HasSubstr("the job is not requeued: the next run would begin anew; hint: --ckpt=auto"));
  EXPECT_EQ(calls(), "");
}

TEST_F(Requeue, WithoutScontrolThatIsSaid) {
  set("PATH", folder_ + "/nothing");
  EXPECT_THAT(fit(SIGUSR1, "auto"), HasSubstr("scontrol: No such file or directory"));
}

TEST_F(Requeue, WhatScontrolRefusesIsSaid) {
  set_scontrol(3);
  EXPECT_THAT(fit(SIGUSR1, "auto"),
              HasSubstr("[slurm] job 7 is not requeued: scontrol ended with status 3; hint: it must be submitted with "
                        "--requeue"));
}

}  // namespace
}  // namespace levin
