#include <levin/core/trainer/prediction_loop.h>

#include <levin/core/trainer/module_mode.h>
#include <levin/core/trainer/signals.h>

namespace levin {

std::vector<std::vector<Batch>> PredictionLoop::run(const DataLoaders& loaders, const std::vector<int64_t>& batches) {
  const EvaluationScope scope(core_, RunningStage::kPredict, /*collector=*/nullptr);
  core_.evaluation_batches = batches;
  std::vector<std::vector<Batch>> predictions(loaders.size());
  hooks_.call("on_predict_start", &Callback::on_predict_start, &Module::on_predict_start);
  hooks_.call("on_predict_epoch_start", &Callback::on_predict_epoch_start, &Module::on_predict_epoch_start);
  for (size_t loader = 0; loader < loaders.size(); ++loader) {
    const auto dataloader_idx = static_cast<int64_t>(loader);
    core_.evaluation_loader = dataloader_idx;
    auto pass = loaders[loader].pass(core_.position(0, 0));
    for (int64_t batch_idx = 0; batches[loader] < 0 || batch_idx < batches[loader]; ++batch_idx) {
      auto fetched = pass.next();
      if (!fetched) break;
      const Batch batch = core_.transfer(std::move(*fetched), dataloader_idx);
      hooks_.call("on_predict_batch_start", &Callback::on_predict_batch_start, &Module::on_predict_batch_start, batch,
                  batch_idx, dataloader_idx);
      Batch prediction;
      {
        const ProfilerSpan span(core_.profiler, "predict_step");
        const ForwardScope forward(core_.precision());
        prediction = core_.module().predict_step(batch, batch_idx);
      }
      hooks_.call("on_predict_batch_end", &Callback::on_predict_batch_end, &Module::on_predict_batch_end, prediction,
                  batch, batch_idx, dataloader_idx);
      predictions[loader].push_back(prediction.to(at::Device(at::kCPU)));
      if (SignalScope::received() != 0) return predictions;
    }
  }
  hooks_.call("on_predict_epoch_end", &Callback::on_predict_epoch_end, &Module::on_predict_epoch_end);
  hooks_.call("on_predict_end", &Callback::on_predict_end, &Module::on_predict_end);
  return predictions;
}

}  // namespace levin
