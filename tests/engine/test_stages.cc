#include "comm/p2p/stages.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "check.h"

using namespace autotune;

namespace {

std::vector<int> one_host_each(int ranks) {
  std::vector<int> hosts(static_cast<size_t>(ranks));
  std::iota(hosts.begin(), hosts.end(), 0);
  return hosts;
}

std::vector<std::vector<int>> placements() {
  std::vector<std::vector<int>> all{{0, 0, 1, 1},          {0, 1, 0, 1},    {0, 0, 0, 1},
                                    {0, 0, 0, 1, 1, 1},    {0, 1, 2, 0, 1}, {0, 1, 1, 0, 2, 2},
                                    std::vector<int>(8, 0)};
  std::vector<int> large;
  for (int rank = 0; rank < 48; ++rank) large.push_back(rank / 12);
  all.push_back(large);
  for (int ranks = 2; ranks <= 40; ++ranks) all.push_back(one_host_each(ranks));
  return all;
}

}  // namespace

TEST(stages_are_those_of_the_table) {
  const auto same = [](int ranks, const std::vector<int>& sizes) {
    CHECK(stage_sizes(ranks) == sizes);
  };
  CHECK(stage_sizes(1).empty());
  for (int ranks = 2; ranks <= 8; ++ranks) same(ranks, {ranks});
  same(9, {3, 3});
  same(10, {2, 5});
  same(11, {11});
  same(12, {3, 4});
  same(13, {13});
  same(15, {3, 5});
  same(16, {4, 4});
  same(32, {4, 8});
  same(64, {4, 4, 4});
  same(128, {4, 4, 8});
}

TEST(every_rank_meets_all_others_once_and_at_the_same_places) {
  for (const std::vector<int>& hosts : placements()) {
    const auto ranks = static_cast<int>(hosts.size());
    std::vector<std::vector<ExchangeStage>> of_rank;
    for (int rank = 0; rank < ranks; ++rank) of_rank.push_back(make_stages(rank, hosts));
    // What each rank has the contributions of; every rank once.
    std::vector<std::vector<int>> known;
    for (int rank = 0; rank < ranks; ++rank) known.push_back({rank});
    for (size_t i = 0; i < of_rank[0].size(); ++i) {
      std::vector<std::vector<int>> learned;
      for (int rank = 0; rank < ranks; ++rank) {
        const ExchangeStage& stage = of_rank[static_cast<size_t>(rank)][i];
        CHECK_EQUAL(stage.ranks[static_cast<size_t>(stage.place)], rank);
        std::vector<int> sum;
        for (const int peer : stage.ranks) {
          CHECK(of_rank[static_cast<size_t>(peer)][i].ranks == stage.ranks);
          const auto& part = known[static_cast<size_t>(peer)];
          sum.insert(sum.end(), part.begin(), part.end());
        }
        learned.push_back(sum);
      }
      known = learned;
    }
    for (const auto& all : known) {
      CHECK(all == known[0]);  // in one order, wherever it is combined
      CHECK_EQUAL(all.size(), hosts.size());
      CHECK_EQUAL(std::set<int>(all.begin(), all.end()).size(), hosts.size());
    }
  }
}

TEST(ranks_of_a_host_come_first_where_hosts_are_equal) {
  const auto groups = [](int rank, const std::vector<int>& hosts) {
    std::vector<std::vector<int>> found;
    for (const ExchangeStage& stage : make_stages(rank, hosts)) found.push_back(stage.ranks);
    return found;
  };
  CHECK(groups(0, {0}) == (std::vector<std::vector<int>>{{0}}));
  CHECK(groups(2, {0, 0, 1, 1}) == (std::vector<std::vector<int>>{{2, 3}, {0, 2}}));
  CHECK(groups(2, {0, 1, 0, 1}) == (std::vector<std::vector<int>>{{0, 2}, {2, 3}}));
  CHECK(groups(1, {0, 0, 0, 1}) == (std::vector<std::vector<int>>{{0, 1, 2, 3}}));
  CHECK(groups(1, {0, 0, 0, 0}) == (std::vector<std::vector<int>>{{0, 1, 2, 3}}));
  std::vector<int> hosts;
  for (int rank = 0; rank < 32; ++rank) hosts.push_back(rank / 16);
  CHECK(groups(17, hosts) ==
        (std::vector<std::vector<int>>{{16, 17, 18, 19}, {17, 21, 25, 29}, {1, 17}}));
}
