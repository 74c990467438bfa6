#include "engine/negotiation/fusion.h"

#include <numeric>
#include <random>

#include "check.h"
#include "returning.h"

using namespace autotune;

namespace {

Response response(DataType dtype = DataType::float32, ReduceOp op = ReduceOp::sum) {
  Response r;
  r.dtype = dtype;
  r.reduce_op = op;
  return r;
}

using Groups = std::vector<std::vector<size_t>>;

}  // namespace

TEST(threshold_zero_fuses_nothing) {
  const Response r = response();
  CHECK(plan_fusion({{&r, 1, 0}, {&r, 1, 0}}, 0) == (Groups{{0}, {1}}));
}

TEST(a_group_never_exceeds_the_threshold_unless_it_is_one_tensor) {
  const Response r = response();
  std::mt19937 random(7);
  std::vector<FusionCandidate> candidates;
  for (int i = 0; i < 500; ++i) candidates.push_back({&r, int64_t(random() % 3000), 0});
  size_t seen = 0;
  for (const auto& group : plan_fusion(candidates, 4096)) {
    int64_t bytes = 0;
    for (size_t i : group) bytes += candidates[i].bytes;
    CHECK(bytes <= 4096);
    seen += group.size();
  }
  CHECK_EQUAL(seen, candidates.size());
  const FusionCandidate large{&r, 5000, 0};
  CHECK(plan_fusion({large, large}, 4096) == (Groups{{0}, {1}}));
}

TEST(different_operations_types_scales_steps_sets_and_groups_do_not_fuse) {
  const Response a = response(), b = response(DataType::float64),
                 c = response(DataType::float32, ReduceOp::max);
  Response scaled = response();
  scaled.postscale = 0.5;
  Response gathered = response();
  gathered.operation = Operation::allgather;
  Response in_set = response();
  in_set.process_set = 1;
  const std::vector<FusionCandidate> candidates{
      {&a, 1, 0}, {&b, 1, 0}, {&c, 1, 0},      {&scaled, 1, 0}, {&gathered, 1, 0},
      {&a, 1, 1}, {&a, 1, 0}, {&in_set, 1, 0}, {&a, 1, 0, 5},   {&a, 1, 0, 5}};
  CHECK(plan_fusion(candidates, 1 << 20) == (Groups{{0, 6}, {1}, {2}, {3}, {4}, {5}, {7}, {8, 9}}));
}

TEST(errors_broadcasts_and_barriers_stand_alone) {
  Response error = response(), broadcast = response(), barrier = response();
  error.error = "no";
  broadcast.operation = Operation::broadcast;
  barrier.operation = Operation::barrier;
  for (const Response* r : {&error, &broadcast, &barrier}) {
    CHECK(plan_fusion({{r, 1, 0}, {r, 1, 0}}, 1 << 20) == (Groups{{0}, {1}}));
  }
}
