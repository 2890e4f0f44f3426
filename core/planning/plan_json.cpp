#include <levin/core/planning/plan_json.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace levin {
namespace {

using Json = nlohmann::ordered_json;

Json null_or(bool is_set, Json value) { return is_set ? std::move(value) : Json(); }

/// `devices`: the options that choose them.
Json json_of(const PlanRow& row, const std::string& devices) {
  const bool is_pipeline = row.pipeline > 1;
  return {{"text", strategy_text(row)},
          {"strategy", row.strategy()},
          {"mesh",
           {{"pipeline", row.pipeline}, {"replicate", row.replicate}, {"shard", row.shard}, {"tensor", row.tensor}}},
          {"stage", null_or(row.stage > 0, row.stage)},
          {"shard_group", null_or(row.shard > 1 && row.replicate > 1, row.shard)},
          {"offload", row.offload},
          {"stages", null_or(is_pipeline, row.pipeline)},
          {"pipelines", null_or(is_pipeline, row.batches())},
          {"schedule", null_or(is_pipeline, row.schedule)},
          {"chunks_per_rank", null_or(is_pipeline, row.chunks)},
          {"checkpointing", row.checkpoints},
          {"is_possible", row.is_possible},
          {"fits", row.fits},
          {"largest_batch", null_or(row.largest_batch != PlanRow::kAnyBatch, row.largest_batch)},
          {"bytes",
           {{"parameters", row.parameters},
            {"gradients", row.gradients},
            {"optimizer", row.optimizer},
            {"activations", row.activations},
            {"backward", row.backward},
            {"gathered", row.gathered},
            {"widened", row.widened},
            {"total", row.total()},
            {"on_host", row.host},
            {"sent", row.sent()},
            {"sent_pipeline", row.sent_pipeline},
            {"sent_replicate", row.sent_replicate},
            {"sent_shard", row.sent_shard},
            {"sent_tensor", row.sent_tensor}}},
          {"options", how_to_set(row, devices)}};
}

Json json_of(const MemoryPlan& plan) {
  Json rows = Json::array();
  Json cheapest;
  const PlanRow* const best = plan.cheapest();
  for (const PlanRow& row : plan.rows) {
    if (&row == best) cheapest = rows.size();
    rows.push_back(json_of(row, fmt::format("--trainer.devices={}", plan.devices)));
  }
  return {{"devices", plan.devices},
          {"memory", plan.memory},
          {"batch_size", plan.batch_size},
          {"rows", std::move(rows)},
          {"cheapest", std::move(cheapest)}};
}

Json json_of(const ClusterPlan& plan) {
  const Cluster& cluster = plan.cluster;
  Json rows = Json::array();
  for (const ClusterPlan::Row& row : plan.rows) {
    Json json = json_of(row.memory, devices_options(cluster));
    json["examples_per_second"] = row.examples_per_second;
    json["seconds"] = {{"step", row.time.total()},
                       {"compute", row.time.compute},
                       {"communication", row.time.communication},
                       {"not_hidden", row.time.exposed},
                       {"bubble", row.time.bubble}};
    rows.push_back(std::move(json));
  }
  return {{"hosts", cluster.hosts},
          {"devices", cluster.devices},
          {"intra_gb_s", cluster.intra_gb_s},
          {"inter_gb_s", cluster.inter_gb_s},
          {"latency_us", cluster.latency_us},
          {"flops", cluster.flops},
          {"pass_us", cluster.pass_us},
          {"optimizer_us", cluster.optimizer_us},
          {"memory", plan.memory},
          {"batch_size", plan.batch_size},
          {"rows", std::move(rows)},
          {"best", null_or(plan.best() != nullptr, 0)}};
}

}  // namespace

std::string plan_json(const TrainingNeeds& needs, const std::vector<MemoryPlan>& plans,
                      const std::optional<ClusterPlan>& cluster) {
  Json json{{"parameters", needs.weights.elements},
            {"trained_parameters", needs.weights.trainable_elements},
            {"micro_batches", needs.micro_batches},
            {"flops_per_example", needs.flops_per_example},
            {"plans", Json::array()},
            {"cluster", Json()}};
  for (const MemoryPlan& plan : plans) json["plans"].push_back(json_of(plan));
  if (cluster) json["cluster"] = json_of(*cluster);
  return json.dump(2);
}

}  // namespace levin
