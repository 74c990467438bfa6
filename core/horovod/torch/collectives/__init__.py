"""The collectives on tensors, one module per kind; ``horovod.torch.operations`` lists the names.

Every kind has up to five forms: synchronous (differentiable), in place (trailing ``_``),
asynchronous (``_async``, returns a handle), both, and grouped (``grouped_``, lists of tensors).

An operation is identified between ranks by its name. Without ``name`` it gets the next number of
its kind within its process set, so all members must issue unnamed operations in the same order.
Tensors must be contiguous; out-of-place operations leave their input alone.

Every form describes what is to be done (``horovod.common.operation.How``) and hands it with its
tensors to ``start``, the one way to the engine. What comes back is ``prepared`` once; ``results``
says what the script gets; ``plain`` holds the collectives without autograd, of which gradients
consist.
"""
