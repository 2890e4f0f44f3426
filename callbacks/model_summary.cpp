#include <levin/callbacks/model_summary.h>

#include <levin/callbacks/model_table.h>
#include <levin/core/base/log.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/nn/module_type_name.h>
#include <levin/core/trainer/trainer.h>

namespace levin {

void ModelSummaryOptions::describe(Schema<ModelSummaryOptions>& schema) {
  schema
      .field("max_depth", &ModelSummaryOptions::max_depth,
             "levels of submodules in the table; -1 all, 0 the totals only")
      .at_least(-1);
}

void ModelSummary::on_fit_start(Trainer& trainer, Module& module) {
  if (!trainer.is_global_zero()) return;
  log::rank_zero_info("model " + short_type_name(module.name()) + "\n" +
                      tabulate_model(module, options_.max_depth).to_text());
}

}  // namespace levin
