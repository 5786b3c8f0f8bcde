//! Send, Recv, `_Arg` and `_Retval` have no builders: the partitioner and function instantiation add them.
