#include <levin/callbacks/model_graph.h>

#include <levin/core/base/log.h>
#include <levin/core/trainer/trainer.h>

#include <fmt/format.h>

#include <exception>

namespace levin {

void ModelGraph::on_train_start(Trainer& trainer, Module&) { is_due_ = !trainer.resumed(); }

void ModelGraph::on_train_batch_start(Trainer& trainer, Module&, const Batch& batch, int64_t) {
  if (!is_due_) return;
  is_due_ = false;
  try {
    trainer.log_graph(batch);
  } catch (const std::exception& error) {
    log::rank_zero_warning(fmt::format("the graph of the model is not logged: {}", error.what()));
  }
}

}  // namespace levin
