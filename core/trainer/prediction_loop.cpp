#include <levin/core/trainer/prediction_loop.h>

#include <levin/core/base/signals.h>
#include <levin/core/checkpoint/state_bytes.h>
#include <levin/core/trainer/batch_state.h>
#include <levin/core/trainer/joined_predictions.h>
#include <levin/core/trainer/module_mode.h>
#include <levin/core/trainer/stand_in.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace levin {
namespace {

/// The batches of all ranks in the order of the examples: each in one, or in the parts of the ranks where one would not
/// hold all of them.
std::vector<Batch> gathered(Collective& collective, const std::vector<Batch>& own) {
  std::vector<std::vector<Batch>> parts;
  State batches = State::list();
  for (const Batch& batch : own) batches.push_back(to_state(batch));
  for (const std::string& bytes : collective.gather_bytes(state_to_bytes(batches))) {
    const State rank = state_from_bytes(bytes);
    if (parts.size() < rank.as_list().size()) parts.resize(rank.as_list().size());
    for (size_t i = 0; i < rank.as_list().size(); ++i) parts[i].push_back(to_batch(rank.as_list()[i]));
  }
  std::vector<Batch> all;
  all.reserve(parts.size());
  for (auto& of_batch : parts) {
    if (are_slices_of_one_batch(of_batch))
      all.push_back(Batch::concatenate(of_batch));
    else
      std::move(of_batch.begin(), of_batch.end(), std::back_inserter(all));
  }
  return all;
}

}  // namespace

std::vector<std::vector<Batch>> PredictionLoop::run(const DataLoaders& loaders, const std::vector<int64_t>& batches) {
  const EvaluationScope scope(core_, RunningStage::kPredict, /*collector=*/nullptr);
  core_.evaluation_batches = batches;
  const bool together = core_.strategy().forwards_together();
  const auto predict = [this](const Batch& batch, int64_t batch_idx) {
    const Activity activity(core_, "predict_step");
    const ForwardScope forward(core_.precision());
    const auto scope = core_.strategy().forward_scope();
    return call_user(
        core_, "predict_step", core_.module(), [&] { return core_.module().predict_step(batch, batch_idx); }, batch,
        batch_idx, core_.evaluation_loader);
  };
  const auto fetch = [this](DataLoader::Pass& pass) {
    const Activity activity(core_, "fetch_predict_batch");
    return noting_errors(
        [&] { return pass.next(); },
        [&](ErrorNotes& notes) { note_batch(notes, core_, pass.position(), core_.evaluation_loader); });
  };
  std::vector<std::vector<Batch>> predictions(loaders.size());
  hooks_.call("on_predict_start", &Callback::on_predict_start, &Module::on_predict_start);
  hooks_.call("on_predict_epoch_start", &Callback::on_predict_epoch_start, &Module::on_predict_epoch_start);
  for (size_t loader = 0; loader < loaders.size(); ++loader) {
    const auto dataloader_idx = static_cast<int64_t>(loader);
    core_.evaluation_loader = dataloader_idx;
    auto pass = loaders[loader].pass(core_.position(0, 0));
    const int64_t limit = batches[loader];
    std::optional<Batch> next;
    for (int64_t batch_idx = 0; limit < 0 || batch_idx < limit; ++batch_idx) {
      if (core_.profiler != nullptr) core_.profiler->step();
      const ProfilerSpan batch_span(core_.profiler, "predict_batch");
      auto fetched = next ? std::exchange(next, std::nullopt) : fetch(pass);
      if (together && !core_.any_rank(fetched.has_value(), false).first) break;
      if (!fetched && together) {
        const StandIn stand_in(core_, true);
        const Batch batch = core_.transfer(stand_in_batch(core_, loaders[loader]), dataloader_idx);
        predict(batch, batch_idx);
        continue;
      }
      if (!fetched) break;
      if (core_.prefetch() != nullptr && (limit < 0 || batch_idx + 1 < limit)) next = fetch(pass);
      const Batch batch = core_.transfer(std::move(*fetched), dataloader_idx, next);
      hooks_.call("on_predict_batch_start", &Callback::on_predict_batch_start, &Module::on_predict_batch_start, batch,
                  batch_idx, dataloader_idx);
      const Batch prediction = predict(batch, batch_idx);
      hooks_.call("on_predict_batch_end", &Callback::on_predict_batch_end, &Module::on_predict_batch_end, prediction,
                  batch, batch_idx, dataloader_idx);
      if (core_.strategy().owns_outputs()) predictions[loader].push_back(prediction.to(at::Device(at::kCPU)));
      if (SignalScope::received() != 0 && core_.world_size() == 1) return predictions;
    }
  }
  if (core_.world_size() > 1) {
    const ProfilerSpan span(core_.profiler, "gather_predictions");
    for (auto& of_loader : predictions) of_loader = gathered(core_.strategy().collective(), of_loader);
  }
  hooks_.call("on_predict_epoch_end", &Callback::on_predict_epoch_end, &Module::on_predict_epoch_end);
  hooks_.call("on_predict_end", &Callback::on_predict_end, &Module::on_predict_end);
  return predictions;
}

}  // namespace levin
