#include <levin/callbacks/model_summary.h>

#include <levin/callbacks/model_table.h>
#include <levin/callbacks/unit_sizes.h>
#include <levin/core/base/log.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/nn/module_type_name.h>
#include <levin/core/trainer/trainer.h>

namespace levin {
namespace {

void print(const Module& module, const ModelTable& table) {
  log::rank_zero_info("model " + short_type_name(module.name()) + "\n" + table.to_text());
}

}  // namespace

void ModelSummaryOptions::describe(Schema<ModelSummaryOptions>& schema) {
  schema
      .field("max_depth", &ModelSummaryOptions::max_depth,
             "levels of submodules in the table; -1 all, 0 the totals only")
      .at_least(-1);
  schema.field("sizes", &ModelSummaryOptions::sizes,
               "sizes and operations of each unit, printed after the first training batch");
}

ModelSummary::ModelSummary(const Options& options) : options_(options) {}
ModelSummary::~ModelSummary() = default;

void ModelSummary::on_fit_start(Trainer& trainer, Module& module) {
  recorder_.reset();
  waits_for_batch_ = options_.sizes && trainer.is_global_zero();
  if (options_.sizes || !trainer.is_global_zero()) return;
  print(module, tabulate_model(module, options_.max_depth));
}

void ModelSummary::on_train_batch_start(Trainer&, Module& module, const Batch&, int64_t) {
  if (waits_for_batch_) recorder_ = std::make_unique<UnitSizeRecorder>(module);
}

// The forward ends here; what checkpointed units repeat in backward is none of it.
void ModelSummary::on_before_backward(Trainer&, Module& module, const at::Tensor&) { print_with_sizes(module); }

// Of a step without a loss.
void ModelSummary::on_train_batch_end(Trainer&, Module& module, const StepOutput&, const Batch&, int64_t) {
  print_with_sizes(module);
}

void ModelSummary::print_with_sizes(Module& module) {
  if (recorder_ == nullptr) return;
  ModelTable table = tabulate_model(module, options_.max_depth);
  table.add_sizes(recorder_->sizes(), recorder_->flops());
  recorder_.reset();
  waits_for_batch_ = false;
  print(module, table);
}

void ModelSummary::on_exception(Trainer&, Module&, const std::exception_ptr&) { recorder_.reset(); }

// The module may have skipped the batch.
void ModelSummary::teardown(Trainer&, Module&, Stage) { recorder_.reset(); }

}  // namespace levin
