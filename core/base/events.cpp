#include <levin/core/base/events.h>

namespace levin {

const char* to_string(Stage stage) {
  switch (stage) {
    case Stage::kFit:
      return "fit";
    case Stage::kValidate:
      return "validate";
    case Stage::kTest:
      return "test";
    case Stage::kPredict:
      return "predict";
  }
  return "";
}

const char* to_string(RunningStage stage) {
  switch (stage) {
    case RunningStage::kIdle:
      return "idle";
    case RunningStage::kSanityCheck:
      return "sanity check";
    case RunningStage::kTrain:
      return "train";
    case RunningStage::kValidate:
      return "validate";
    case RunningStage::kTest:
      return "test";
    case RunningStage::kPredict:
      return "predict";
  }
  return "";
}

const char* to_string(TrainerStatus status) {
  switch (status) {
    case TrainerStatus::kInitializing:
      return "initializing";
    case TrainerStatus::kRunning:
      return "running";
    case TrainerStatus::kFinished:
      return "finished";
    case TrainerStatus::kInterrupted:
      return "interrupted";
    case TrainerStatus::kFailed:
      return "failed";
  }
  return "";
}

}  // namespace levin
