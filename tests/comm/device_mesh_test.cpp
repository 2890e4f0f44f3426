#include <levin/core/base/error.h>
#include <levin/core/comm/device_mesh.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <set>
#include <string>

namespace levin {
namespace {

using ::testing::HasSubstr;
using Groups = DeviceMesh::Groups;

TEST(DeviceMesh, NeighboursDifferAlongTheInnermostDimension) {
  const DeviceMesh mesh({{"pipeline", 2}, {"replicate", 2}, {"shard", 3}}, 12);
  EXPECT_EQ(mesh.groups({"shard"}), (Groups{{0, 1, 2}, {3, 4, 5}, {6, 7, 8}, {9, 10, 11}}));
  EXPECT_EQ(mesh.groups({"pipeline"}), (Groups{{0, 6}, {1, 7}, {2, 8}, {3, 9}, {4, 10}, {5, 11}}));
  EXPECT_EQ(mesh.groups({"replicate", "shard"}), (Groups{{0, 1, 2, 3, 4, 5}, {6, 7, 8, 9, 10, 11}}));
  EXPECT_EQ(mesh.groups({"pipeline", "shard"}), (Groups{{0, 1, 2, 6, 7, 8}, {3, 4, 5, 9, 10, 11}}));
  EXPECT_EQ(mesh.coordinate(10, "pipeline"), 1);
  EXPECT_EQ(mesh.coordinate(10, "replicate"), 1);
  EXPECT_EQ(mesh.coordinate(10, "shard"), 1);
}

TEST(DeviceMesh, ADimensionThatIsNotThereHasOnePlace) {
  const DeviceMesh mesh({{"replicate", 4}}, 4);
  EXPECT_EQ(mesh.size("replicate"), 4);
  EXPECT_EQ(mesh.size("shard"), 1);
  EXPECT_EQ(mesh.coordinate(3, "shard"), 0);
  EXPECT_EQ(mesh.groups({"shard"}), (Groups{{0}, {1}, {2}, {3}}));
  EXPECT_EQ(DeviceMesh({}, 1).groups({}), (Groups{{0}}));
}

TEST(DeviceMesh, GroupsDivideTheRanksOfAnyMesh) {
  std::mt19937 random(5);
  const std::vector<std::string> names = {"a", "b", "c", "d"};
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<DeviceMesh::Dimension> dimensions;
    int64_t ranks = 1;
    for (const std::string& name : names) {
      dimensions.push_back({name, std::uniform_int_distribution<int64_t>(1, 4)(random)});
      ranks *= dimensions.back().size;
    }
    const DeviceMesh mesh(dimensions, ranks);
    std::vector<std::string_view> along;
    int64_t size = 1;
    for (const auto& dimension : dimensions) {
      if (random() % 2 == 0) continue;
      along.emplace_back(dimension.name);
      size *= dimension.size;
    }
    const Groups groups = mesh.groups(along);
    std::vector<int64_t> all;
    for (const auto& group : groups) {
      EXPECT_EQ(std::ssize(group), size);
      EXPECT_TRUE(std::ranges::is_sorted(group));
      all.insert(all.end(), group.begin(), group.end());
      // Alike along all other dimensions, and no two alike along these.
      std::set<std::vector<int64_t>> places;
      for (const int64_t rank : group) {
        std::vector<int64_t> place;
        for (const auto& [name, of] : dimensions) {
          place.push_back(mesh.coordinate(rank, name));
          EXPECT_LT(place.back(), of);
          if (std::ranges::find(along, name) == along.end())
            EXPECT_EQ(place.back(), mesh.coordinate(group.front(), name));
        }
        places.insert(place);
      }
      EXPECT_EQ(places.size(), group.size());
    }
    std::ranges::sort(all);
    std::vector<int64_t> expected(static_cast<size_t>(ranks));
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(all, expected);
  }
}

std::string error_of(std::vector<DeviceMesh::Dimension> dimensions, int64_t ranks) {
  try {
    const DeviceMesh mesh(std::move(dimensions), ranks);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(DeviceMesh, SizesThatDoNotFitAreToldWithTheArithmetic) {
  EXPECT_THAT(error_of({{"pipeline", 2}, {"shard", 3}}, 8), HasSubstr("8 ranks = pipeline 2 x shard 3?"));
  EXPECT_THAT(error_of({}, 2), HasSubstr("2 ranks = no dimension?"));
  EXPECT_THAT(error_of({{"shard", int64_t{1} << 40}, {"replicate", int64_t{1} << 40}}, 2),
              HasSubstr("2 ranks = shard"));
  EXPECT_THAT(error_of({{"shard", 2}, {"shard", 1}}, 2), HasSubstr("'shard' twice"));
  EXPECT_THAT(error_of({{"shard", 0}}, 0), HasSubstr("'shard' must be at least 1; got 0"));
}

}  // namespace
}  // namespace levin
