// The operations as TensorFlow knows them: inputs, outputs, attributes, shapes.
#pragma once

#include <string>

namespace autotune::tensorflow {

// Names and attributes are used by kernels.cc and horovod/tensorflow/mpi_ops.py, too.
namespace name_of_op {
constexpr const char* allreduce = "HorovodAllreduce";
constexpr const char* allgather = "HorovodAllgather";
constexpr const char* broadcast = "HorovodBroadcast";
constexpr const char* alltoall = "HorovodAlltoall";
constexpr const char* reducescatter = "HorovodReducescatter";
constexpr const char* join = "HorovodJoin";
constexpr const char* use = "HorovodUse";  // of a result, which is therefore not left out
constexpr const char* rank = "HorovodRank";
constexpr const char* size = "HorovodSize";
constexpr const char* local_rank = "HorovodLocalRank";
constexpr const char* local_size = "HorovodLocalSize";
constexpr const char* set_included = "HorovodProcessSetIncluded";
}  // namespace name_of_op

// Tells TensorFlow of all of them. Returns what it says against one, "" for nothing.
std::string define_all();

}  // namespace autotune::tensorflow
