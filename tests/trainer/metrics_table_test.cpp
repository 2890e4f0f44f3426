#include <levin/core/trainer/metrics_table.h>

#include "../support/captured_log.h"
#include "../support/tiny.h"

#include <cmath>
#include <string>

namespace levin::testing {
namespace {

TEST(MetricsTable, HasARowForEachMetricAndAColumnForEachLoader) {
  EXPECT_EQ(metrics_table({{{"val_loss", 0.5}, {"a", std::nan("")}}}),
            "metric           value\n"
            "----------------------\n"
            "a                  nan\n"
            "val_loss           0.5\n");
  EXPECT_EQ(metrics_table({{{"first", 1.0}}, {{"second", 12345.6}}}),
            "metric      loader 0      loader 1\n"
            "----------------------------------\n"
            "first              1              \n"
            "second                   1.235e+04\n");
}

/// What is said by validate and test of a trainer, each with `verbose` and without.
class Verbose : public ::testing::TestWithParam<const char*> {
 protected:
  template <class Call>
  static std::string said(const Call& call) {
    const CapturedLog log;
    call();
    return log.text();
  }
  static std::string table_of(const std::vector<MetricMap>& results) { return metrics_table(results); }
};

TEST_P(Verbose, PrintsTheTableOnceOrNothing) {
  TrainerOptions options = quiet(1);
  options.strategy = GetParam();
  if (options.strategy.name("", "") != "single_device") options.devices = 2;
  Trainer trainer(options);
  const auto module = make<TinyModule>({});
  std::vector<MetricMap> results;
  const std::string validated = said([&] { results = trainer.validate(module, tiny_loader(16)); });
  EXPECT_NE(validated.find("validate\n" + table_of(results)), std::string::npos) << validated;
  EXPECT_EQ(validated.find("val_loss"), validated.rfind("val_loss")) << validated;
  const std::string tested = said([&] { results = trainer.test(module, tiny_loader(16)); });
  EXPECT_NE(tested.find("test\n" + table_of(results)), std::string::npos) << tested;
  EXPECT_EQ(said([&] { trainer.validate(module, tiny_loader(16), "", false); }).find("val_loss"), std::string::npos);
  EXPECT_EQ(said([&] { trainer.test(module, tiny_loader(16), "", false); }).find("test_loss"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Strategies, Verbose, ::testing::Values("single_device", "ddp_threads", "ddp_spawn"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST(MetricsTable, IsNotPrintedWithoutMetrics) {
  class Silent : public TinyModule {
   public:
    using TinyModule::TinyModule;
    StepOutput validation_step(const Batch&, int64_t) override { return {}; }
  };
  const CapturedLog log;
  Trainer(quiet(1)).validate(make<Silent>({}), tiny_loader(8));
  EXPECT_EQ(log.text().find("metric"), std::string::npos) << log.text();
}

}  // namespace
}  // namespace levin::testing
