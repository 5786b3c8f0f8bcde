//! Send and Recv: the ends of an edge between devices.
