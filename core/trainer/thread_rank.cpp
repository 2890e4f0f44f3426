#include <levin/core/trainer/thread_rank.h>

#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/core/interfaces/logger.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/interfaces/tuner.h>
#include <levin/core/optim/named_optimizer.h>
#include <levin/core/precision/precision.h>
#include <levin/core/trainer/rank_run.h>

#include <fmt/format.h>

namespace levin {
namespace {

/// A second one made as the first was; a name or a mapping makes one anyway.
template <class Base>
Spec<Base> second(const Spec<Base>& spec) {
  if (spec.object() == nullptr) return spec;
  return Spec<Base>(std::static_pointer_cast<Base>(spec.object()->rebuild()));
}

}  // namespace

TrainerOptions ThreadRank::options_for(const TrainerComponents& first, const std::shared_ptr<Strategy>& strategy) {
  TrainerOptions options = first.options.given;
  options.strategy = Spec<Strategy>(strategy);
  options.precision = second(options.precision);
  options.optimizer = second(options.optimizer);
  options.logger = false;
  std::vector<Spec<Callback>> callbacks;
  for (const auto& spec : options.callbacks) {
    if (spec.object() == nullptr || spec.object()->can_rebuild()) {
      callbacks.push_back(second(spec));
    } else if (const Callback& object = *spec.object(); dynamic_cast<const Tuner*>(&object) != nullptr) {
      throw Error("trainer", fmt::format("a {} must run on every rank, and the one handed over cannot be made again; "
                                         "hint: make it with levin::make",
                                         detail::demangled(typeid(object).name())));
    } else {
      log::warning_once(
          fmt::format("a callback of type {} was handed over as an object, so it serves rank 0 alone; hint: make it "
                      "with levin::make, and every rank gets one",
                      detail::demangled(typeid(object).name())));
    }
  }
  options.callbacks = std::move(callbacks);
  if (const Profiler* object = options.profiler.object().get(); object == nullptr || object->can_rebuild()) {
    options.profiler = second(options.profiler);
  } else {
    log::warning_once(
        fmt::format("a profiler of type {} was handed over as an object, so it serves rank 0 alone; hint: make it with "
                    "levin::make, and every rank gets one",
                    detail::demangled(typeid(*object).name())));
    options.profiler = {};
  }
  return options;
}

ThreadRank::ThreadRank(const TrainerComponents& first, const std::shared_ptr<Strategy>& strategy,
                       const RunRequest& request)
    : trainer_(options_for(first, strategy)),
      call_(trainer_.components_->at_work, to_string(request.stage)),
      request_(request) {
  const Module& module = *request.module;
  if (!module.can_rebuild())
    throw Error("trainer",
                fmt::format("strategy '{}' needs a second copy of the module, which was made in a way that cannot be "
                            "repeated; hint: make it with levin::make<{}>({{...}}), or name it in YAML",
                            strategy->name(), detail::demangled(typeid(module).name())));
  request_.module = std::static_pointer_cast<Module>(request.module->rebuild());
  TrainerComponents& own = *trainer_.components_;
  own.options.config = first.options.config;
  own.options.writes_files = first.options.writes_files;
  own.data.share_data_module();
  if (request.stage == Stage::kFit) own.begin_fit();
}

ThreadRank::~ThreadRank() = default;

void ThreadRank::run(int64_t local_rank) {
  trainer_.strategy().ranks().enter(local_rank);
  RankRun(*trainer_.components_, request_).run();
}

}  // namespace levin
