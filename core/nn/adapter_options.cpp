#include <levin/core/nn/adapter_options.h>

namespace levin {

void AdapterOptions::describe(Schema<AdapterOptions>& schema) {
  using O = AdapterOptions;
  schema.field("name", &O::name, "`lora`, or `rslora`, which scales by alpha / √rank; empty: no adapters")
      .one_of({"", "lora", "rslora"});
  schema.field("rank", &O::rank, "rank of the products").at_least(1);
  schema.field("alpha", &O::alpha, "numerator of the scale, alpha / rank");
  schema.field("dropout", &O::dropout, "dropout of the adapters' inputs").at_least(0).below(1);
  schema.field("targets", &O::targets, "paths of linear layers and embeddings (*.q_proj)");
  schema.field("modules_to_save", &O::modules_to_save, "paths of modules that are trained whole, as a new head");
  schema.field("quantize", &O::quantize, "frozen linear layers in 4 bits (nf4) or 8 (int8); empty: as they are")
      .one_of({"", "nf4", "int8"});
  schema.field("save_adapters_only", &O::save_adapters_only,
               "save only adapters and modules_to_save, not the frozen weights");
  schema.field("adapter", &O::adapter, "name of this adapter");
}

}  // namespace levin
