// File descriptors that a forked child lets go of.
//
// A connection ends when all processes that have it have ended. A child that was forked, a data
// loader's worker for example, has a copy: the death of its parent would be seen by nobody as long
// as it lives. FD_CLOEXEC is for children that run another program; this is for those that do not.
#pragma once

namespace autotune {

// In every child forked from now on `fd` is open on /dev/null: the number stays taken, so that
// nothing that the child inherited with it can reach a file that it opened later.
void drop_in_children(int fd);

// Close such a descriptor.
void close_dropped(int fd);

}  // namespace autotune
