#include <levin/callbacks/model_summary.h>

#include "tiny_training.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace levin {
namespace {

using testing::CapturedLog;
using testing::PlainModule;
using testing::quiet_options;
using testing::RunFolder;
using testing::tiny_batches;

TEST(ModelSummary, PrintsATableWhenFitStarts) {
  const RunFolder folder;
  const CapturedLog log;
  auto options = quiet_options(folder, 2, {make<ModelSummary>()});
  options.enable_model_summary = true;
  Trainer(options).fit(std::make_shared<PlainModule>(), tiny_batches());
  EXPECT_NE(log.text().find("[levin] model PlainModule\n  name | type   |  params | mode\n"), std::string::npos)
      << log.text();
  EXPECT_NE(log.text().find("  net  | Linear |       3 | train\n"), std::string::npos) << log.text();
  EXPECT_EQ(log.text().find("model PlainModule"), log.text().rfind("model PlainModule"));
}

}  // namespace
}  // namespace levin
