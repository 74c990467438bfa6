"""What libraries ask Horovod's module of this name: whether jobs start without MPI."""

from horovod.common.util import gloo_built as gloo_built
