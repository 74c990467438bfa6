// The kernels of a GPU, as far as that needs none.
#include "check.h"
#include "comm/cuda/kernels.h"

using namespace autotune;

TEST(kernels_are_machine_code_where_the_compiler_knows_the_gpu_and_portable_where_it_is_newer) {
  const std::vector<int> known{75, 80, 86, 90, 100, 101, 120};
  const auto check = [&](int major, int minor, int architecture, bool is_machine_code) {
    const KernelTarget target = kernel_target(major, minor, known);
    CHECK_EQUAL(target.architecture, architecture);
    CHECK_EQUAL(target.is_machine_code, is_machine_code);
  };
  check(9, 0, 90, true);
  check(12, 0, 120, true);
  check(8, 9, 86, false);
  check(10, 3, 101, false);
  check(12, 1, 120, false);
  check(13, 0, 120, false);
  check(7, 0, 70, true);  // older than all: the compiler says so
  CHECK_EQUAL(kernel_target(9, 0, {}).architecture, 90);
}
