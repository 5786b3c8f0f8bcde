//! Send, Recv and the ends of functions have no builders: partitioning and function expansion add them.
