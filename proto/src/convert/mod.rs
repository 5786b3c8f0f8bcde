//! Between the messages of the wire and the types of `graph`.
