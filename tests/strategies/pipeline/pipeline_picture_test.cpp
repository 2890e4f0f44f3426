#include <levin/strategies/pipeline/pipeline_picture.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/strategies/pipeline/pipeline_timelines.h"
#include "tests/support/run_program.h"
#include "tests/support/tiny.h"
#include "tests/support/tree.h"

namespace levin {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using EventKind = PipelineEvent::Kind;
using testing::gpipe_events;
using testing::one_forward_one_backward_events;

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

/// What an XML parser reads: the text of every element that has some, one a line.
std::string texts_in(const std::string& svg) {
  const std::string path = testing::fresh_folder("pipeline_picture") + "/picture.svg";
  std::ofstream(path) << svg;
  const auto result = testing::run_program(
      {testing::torch_python(), "-c",
       "import sys, xml.etree.ElementTree as tree\n"
       "for element in tree.parse(sys.argv[1]).iter():\n"
       "    if (element.text or '').strip(): print(element.tag.split('}')[1] + ': ' + element.text)\n",
       path});
  EXPECT_EQ(result.status, 0) << result.err;
  return result.out;
}

TEST(PipelinePicture, IsXmlWithEveryEvent) {
  if (!std::filesystem::exists(testing::torch_python())) GTEST_SKIP() << "no Python; set LEVIN_PYTHON to one";
  const auto events = one_forward_one_backward_events(4, 8);
  const std::string texts = texts_in(pipeline_picture(events, "1f1b & <more>", 3.0 / 11));
  EXPECT_EQ(count_of(texts, "title: "), events.size());
  EXPECT_THAT(texts, HasSubstr("text: 1f1b & <more>\n"));
  EXPECT_THAT(texts, HasSubstr("text: bubble: measured 27.3 % (mean of 4 ranks), theoretical 27.3 %\n"));
  EXPECT_THAT(texts, HasSubstr("title: forward, micro-batch 0: 0.000 to 1.000 ms\n"));
  EXPECT_THAT(texts, HasSubstr("title: backward, micro-batch 7: 31.000 to 33.000 ms\n"));
  EXPECT_EQ(count_of(texts, "text: 27.3 % idle\n"), 4u);
  for (int64_t rank = 0; rank < 4; ++rank) EXPECT_THAT(texts, HasSubstr(fmt::format("text: rank {}\n", rank)));
  // Each micro-batch's number stands in its forward and its backward on four ranks.
  EXPECT_EQ(count_of(texts, "text: 7\n"), 8u);
}

TEST(PipelinePicture, OddTitlesStayXml) {
  if (!std::filesystem::exists(testing::torch_python())) GTEST_SKIP() << "no Python; set LEVIN_PYTHON to one";
  EXPECT_THAT(texts_in(pipeline_picture({}, "a\"b'c\x01\n]]>&amp;", 0)), HasSubstr("text: a\"b'c  ]]>&amp;\n"));
}

TEST(PipelinePicture, LegendOfWhatThereIs) {
  EXPECT_THAT(pipeline_picture(gpipe_events(1, 2), "", 0),
              AllOf(HasSubstr(">forward</text>"), HasSubstr(">backward</text>"), Not(HasSubstr(">optimizer</text>")),
                    Not(HasSubstr("chunk"))));
  EXPECT_THAT(pipeline_picture(one_forward_one_backward_events(2, 2, 2), "", 0),
              AllOf(HasSubstr(">wait to receive</text>"), HasSubstr("(lighter: the later stages of a rank)"),
                    HasSubstr("forward, micro-batch 1, chunk 1: ")));
}

TEST(PipelinePicture, NumbersOnlyWhereTheyFit) {
  const std::string picture = pipeline_picture(gpipe_events(2, 400), "", 0);
  EXPECT_THAT(picture, HasSubstr("<title>backward, micro-batch 399: "));
  EXPECT_THAT(picture, Not(HasSubstr(">399</text>")));
}

TEST(PipelinePicture, NoEvents) {
  const std::string picture = pipeline_picture({}, "gpipe", 0.25);
  EXPECT_THAT(picture,
              AllOf(HasSubstr(">no events</text>"), HasSubstr(">bubble: nothing computed, theoretical 25.0 %</text>")));
}

TEST(PipelinePicture, OneRank) {
  EXPECT_THAT(pipeline_picture(gpipe_events(1, 1), "gpipe", 0),
              AllOf(HasSubstr(">bubble: measured 0.0 % (mean of 1 rank), theoretical 0.0 %</text>"),
                    HasSubstr(">0.0 % idle</text>")));
}

TEST(PipelinePicture, NoNumberIsBroken) {
  const PipelineEvent moment{.begin_ns = 5, .end_ns = 5};
  const PipelineEvent backwards{.begin_ns = 5, .end_ns = 1};
  const PipelineEvent long_ago{.kind = EventKind::kReduce, .begin_ns = -(int64_t{1} << 61), .end_ns = int64_t{1} << 61};
  for (const auto& events : std::vector<std::vector<PipelineEvent>>{{}, {moment}, {backwards}, {moment, long_ago}}) {
    const std::string picture = pipeline_picture(events, "", 0);
    EXPECT_THAT(picture, AllOf(Not(HasSubstr("nan")), Not(HasSubstr("inf")), Not(HasSubstr("width=\"-"))));
    EXPECT_THAT(picture, ::testing::EndsWith("</svg>\n"));
    EXPECT_EQ(count_of(picture, "<g>"), events.size());
  }
}

}  // namespace
}  // namespace levin
