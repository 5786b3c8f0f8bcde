//! Stack ops have no builders: the gradients of loops add them.
